//! AuthenticationConfiguration: which issuers are trusted, and what their claims mean. Pure.

use corten_meta::Value;

/// One issuer of tokens.
#[derive(Debug)]
pub struct Issuer {
    pub url: String,
    discovery: Option<String>,
    pub audiences: Vec<String>,
    /// PEM; empty for the authorities that this machine trusts.
    pub certificate_authority: String,
    /// Claims that must have a value.
    pub required: Vec<(String, String)>,
    pub username: Mapping,
    pub groups: Option<Mapping>,
    pub uid: Option<String>,
}

/// A claim and what is put before it.
#[derive(Debug, PartialEq, Eq)]
pub struct Mapping {
    pub claim: String,
    pub prefix: String,
}

impl Issuer {
    /// Where the issuer tells about itself.
    pub fn discovery_url(&self) -> String {
        let own = || format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        self.discovery.clone().unwrap_or_else(own)
    }
}

/// Reads an AuthenticationConfiguration of apiserver.config.k8s.io, in YAML or JSON.
pub fn parse(text: &str) -> Result<Vec<Issuer>, String> {
    let config = corten_meta::decode_yaml(text.as_bytes()).map_err(|e| e.to_string())?;
    let version = config["apiVersion"].as_str().unwrap_or_default();
    let known = ["v1", "v1beta1", "v1alpha1"].map(|v| format!("apiserver.config.k8s.io/{v}"));
    if !known.iter().any(|k| k == version) || config["kind"] != "AuthenticationConfiguration" {
        return Err("it is no AuthenticationConfiguration of apiserver.config.k8s.io".to_owned());
    }
    if config.get("anonymous").is_some_and(|a| !a.is_null()) {
        return Err("anonymous: this server's anonymous access cannot be configured".to_owned());
    }
    let issuers = config["jwt"].as_array().cloned().unwrap_or_default();
    let read = |(at, jwt): (usize, &Value)| issuer(jwt).map_err(|e| format!("jwt[{at}].{e}"));
    let issuers = issuers.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    for (at, issuer) in issuers.iter().enumerate() {
        if issuers[..at].iter().any(|other| other.url == issuer.url) {
            return Err(format!("jwt[{at}].issuer.url: Duplicate value: {:?}", issuer.url));
        }
    }
    Ok(issuers)
}

fn issuer(jwt: &Value) -> Result<Issuer, String> {
    let text = |pointer: &str| jwt.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let list = |pointer: &str| jwt.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let url = text("/issuer/url");
    if !url.starts_with("https://") {
        return Err(format!("issuer.url: Invalid value: {url:?}: URL scheme must be https"));
    }
    let discovery = Some(text("/issuer/discoveryURL")).filter(|d| !d.is_empty());
    if discovery.as_ref().is_some_and(|d| !d.starts_with("https://") || *d == url) {
        return Err("issuer.discoveryURL: must be another https URL than issuer.url".to_owned());
    }
    let audiences: Vec<String> =
        list("/issuer/audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let policy = text("/issuer/audienceMatchPolicy");
    if audiences.is_empty() {
        return Err("issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required".to_owned());
    }
    if audiences.len() > 1 && policy != "MatchAny" {
        return Err("issuer.audienceMatchPolicy: must be MatchAny for multiple audiences".to_owned());
    }
    refuse_expressions(jwt)?;
    let required = list("/claimValidationRules");
    let required = required.iter().map(|rule| (field(rule, "claim"), field(rule, "requiredValue"))).collect();
    let mapping = |at: &str, must_prefix: bool| -> Result<Option<Mapping>, String> {
        let claim = text(&format!("/claimMappings/{at}/claim"));
        if claim.is_empty() {
            return Ok(None);
        }
        let prefix = jwt.pointer(&format!("/claimMappings/{at}/prefix")).and_then(Value::as_str);
        match prefix {
            Some(prefix) => Ok(Some(Mapping { claim, prefix: prefix.to_owned() })),
            None if must_prefix => Err(format!(
                "claimMappings.{at}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"
            )),
            None => Ok(Some(Mapping { claim, prefix: String::new() })),
        }
    };
    Ok(Issuer {
        discovery,
        audiences,
        certificate_authority: text("/issuer/certificateAuthority"),
        required,
        username: mapping("username", true)?
            .ok_or("claimMappings.username: Required value: claim or expression is required")?,
        groups: mapping("groups", true)?,
        uid: Some(text("/claimMappings/uid/claim")).filter(|claim| !claim.is_empty()),
        url,
    })
}

fn field(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// What this server cannot evaluate it must not seem to accept.
fn refuse_expressions(jwt: &Value) -> Result<(), String> {
    let has = |value: &Value, key: &str| value.get(key).is_some_and(|v| !v.is_null());
    let rules = jwt["claimValidationRules"].as_array().cloned().unwrap_or_default();
    for (at, rule) in rules.iter().enumerate() {
        if has(rule, "expression") {
            return Err(format!("claimValidationRules[{at}].expression: expressions are not supported"));
        }
    }
    for at in ["username", "groups", "uid"] {
        if jwt.pointer(&format!("/claimMappings/{at}")).is_some_and(|mapping| has(mapping, "expression")) {
            return Err(format!("claimMappings.{at}.expression: expressions are not supported"));
        }
    }
    for at in ["/claimMappings/extra", "/userValidationRules"] {
        if jwt.pointer(at).and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
            return Err(format!("{}: expressions are not supported", at.trim_start_matches('/').replace('/', ".")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_or_refused() {
        let parse_jwt = |jwt: &str| {
            parse(&format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- {jwt}\n"
            ))
        };
        let good = "{issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: 'o:'}, groups: {claim: groups, prefix: ''}, uid: {claim: oid}}, claimValidationRules: [{claim: hd, requiredValue: x}]}";
        let issuer = parse_jwt(good).unwrap().remove(0);
        assert_eq!(issuer.discovery_url(), "https://i/.well-known/openid-configuration");
        assert_eq!(issuer.username, Mapping { claim: "sub".to_owned(), prefix: "o:".to_owned() });
        assert_eq!((issuer.uid.as_deref(), issuer.required.len()), (Some("oid"), 1));
        for (jwt, error) in [
            ("{issuer: {url: 'http://i', audiences: [a]}}", "jwt[0].issuer.url: Invalid value"),
            ("{issuer: {url: 'https://i'}}", "jwt[0].issuer.audiences: Required value"),
            ("{issuer: {url: 'https://i', audiences: [a, b]}}", "must be MatchAny"),
            ("{issuer: {url: 'https://i', audiences: [a]}}", "claimMappings.username: Required value"),
            (
                "{issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {claim: sub}}}",
                "prefix is required",
            ),
            (
                "{issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {expression: x}}}",
                "expressions are not supported",
            ),
        ] {
            let found = parse_jwt(jwt).err().unwrap_or_default();
            assert!(found.contains(error), "{found}");
        }
    }
}
