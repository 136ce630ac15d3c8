//! From the claims of a verified token to a user. Pure.

use corten_meta::Value;

use super::configuration::{Issuer, Mapping};
use crate::authentication::User;

/// A token is good from its `nbf` to its `exp`, which it must have.
pub fn check_times(claims: &Value, now: i64) -> Result<(), String> {
    /// Clocks of issuers run a little ahead.
    const LEEWAY: i64 = 300;
    let at = |key: &str| claims[key].as_f64().map(|seconds| seconds as i64);
    match at("exp") {
        Some(expires) if expires > now => {}
        _ => return Err("oidc: token is expired".to_owned()),
    }
    match at("nbf") {
        Some(begins) if begins > now + LEEWAY => Err("oidc: current time before the nbf (not before) time".to_owned()),
        _ => Ok(()),
    }
}

/// The user that the claims make under the issuer's mappings.
pub fn user(issuer: &Issuer, claims: &Value) -> Result<User, String> {
    check_audience(issuer, claims)?;
    for (claim, wanted) in &issuer.required {
        match claims[claim.as_str()].as_str() {
            Some(value) if value == wanted => {}
            Some(_) => {
                return Err(format!(
                    "oidc: required claim {claim} value does not match. Got = {}, want = {wanted}",
                    claims[claim.as_str()]
                ));
            }
            None => return Err(format!("oidc: required claim {claim} not present in ID token")),
        }
    }
    let name = username(&issuer.username, claims)?;
    let groups = match &issuer.groups {
        None => Vec::new(),
        Some(mapping) => groups(mapping, claims)?,
    };
    let uid = match &issuer.uid {
        None => String::new(),
        Some(claim) => claims[claim.as_str()]
            .as_str()
            .ok_or_else(|| format!("oidc: parse uid claim {claim:?}: it is no text"))?
            .to_owned(),
    };
    Ok(User { name, uid, groups, ..User::default() })
}

fn check_audience(issuer: &Issuer, claims: &Value) -> Result<(), String> {
    let carried: Vec<&str> = match &claims["aud"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if issuer.audiences.iter().any(|audience| carried.contains(&audience.as_str())) {
        return Ok(());
    }
    Err(format!("oidc: expected audience in {:?} got {carried:?}", issuer.audiences))
}

fn username(mapping: &Mapping, claims: &Value) -> Result<String, String> {
    let claim = mapping.claim.as_str();
    let name =
        claims[claim].as_str().ok_or_else(|| format!("oidc: parse username claims {claim:?}: claim not present"))?;
    // An address that its owner never confirmed is anybody's.
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != true) {
        return Err("oidc: email not verified".to_owned());
    }
    if name.is_empty() {
        return Err(format!("oidc: parse username claims {claim:?}: claim is empty"));
    }
    Ok(format!("{}{name}", mapping.prefix))
}

fn groups(mapping: &Mapping, claims: &Value) -> Result<Vec<String>, String> {
    let names: Vec<&str> = match &claims[mapping.claim.as_str()] {
        Value::Null => Vec::new(),
        Value::String(one) => vec![one],
        Value::Array(many) if many.iter().all(Value::is_string) => many.iter().filter_map(Value::as_str).collect(),
        _ => {
            return Err(format!(
                "oidc: parse groups claim {:?}: it is neither text nor a list of texts",
                mapping.claim
            ));
        }
    };
    Ok(names.into_iter().map(|name| format!("{}{name}", mapping.prefix)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::configuration::parse;
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_make_a_user_or_not() {
        let config = "{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, jwt: [{issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {claim: email, prefix: 'o:'}, groups: {claim: groups, prefix: 'g:'}}, claimValidationRules: [{claim: hd, requiredValue: x}]}]}";
        let issuer = parse(config).unwrap().remove(0);
        let good = json!({ "aud": "a", "hd": "x", "email": "e@x", "email_verified": true, "groups": ["one"] });
        let jane = user(&issuer, &good).unwrap();
        assert_eq!((jane.name.as_str(), jane.groups.as_slice()), ("o:e@x", ["g:one".to_owned()].as_slice()));
        for (key, value, error) in [
            ("aud", json!(["b"]), "expected audience"),
            ("hd", json!("y"), "required claim hd value does not match"),
            ("hd", Value::Null, "required claim hd not present"),
            ("email_verified", json!(false), "email not verified"),
            ("email", json!(""), "claim is empty"),
            ("groups", json!([1]), "parse groups claim"),
        ] {
            let mut claims = good.clone();
            claims[key] = value;
            let found = user(&issuer, &claims).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn a_token_has_its_time() {
        assert!(check_times(&json!({ "exp": 10 }), 9).is_ok());
        assert!(check_times(&json!({ "exp": 10 }), 10).is_err());
        assert!(check_times(&json!({}), 0).is_err());
        assert!(check_times(&json!({ "exp": 10_000, "nbf": 1_000 }), 9).is_err());
    }
}
