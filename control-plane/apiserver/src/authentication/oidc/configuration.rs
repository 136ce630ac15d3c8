//! AuthenticationConfiguration: the trusted issuers, the mappings of their claims, and the paths that allow anonymous
//! requests. Pure.
//!
//! It refuses what upstream refuses, in upstream's words.

use corten_cel::{Env, Program, Type};
use corten_meta::{FieldError, Path, Value};

use super::environments::{CLAIMS, USER};
use corten_cel::durations::compiling;

/// An AuthenticationConfiguration.
#[derive(Debug, Default)]
pub struct Configuration {
    pub issuers: Vec<Issuer>,
    pub anonymous: Anonymous,
}

/// The paths at which requests without a credential are allowed as `system:anonymous`.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    #[default]
    Everywhere,
    Nowhere,
    /// Allowed at these paths.
    At(Vec<String>),
}

impl Anonymous {
    pub fn is_allowed(&self, path: &str) -> bool {
        match self {
            Anonymous::Everywhere => true,
            Anonymous::Nowhere => false,
            Anonymous::At(paths) => paths.iter().any(|known| known == path),
        }
    }
}

/// An issuer of tokens.
#[derive(Debug)]
pub struct Issuer {
    pub url: String,
    discovery: Option<String>,
    pub audiences: Vec<String>,
    /// PEM; empty for the authorities that this machine trusts.
    pub certificate_authority: String,
    /// Claims that must have a value.
    pub required: Vec<(String, String)>,
    pub claim_rules: Vec<Rule>,
    pub user_rules: Vec<Rule>,
    pub username: Mapping,
    pub groups: Option<Mapping>,
    pub uid: Option<Mapping>,
    /// Keys, and the expressions of their values.
    pub extra: Vec<(String, Program)>,
}

/// The source of a user's field.
#[derive(Debug)]
pub enum Mapping {
    /// A claim and its prefix.
    Claim {
        claim: String,
        prefix: String,
    },
    Expression(Program),
}

/// An expression that must be true, and the message if it is not.
#[derive(Debug)]
pub struct Rule {
    pub program: Program,
    pub message: String,
}

impl Issuer {
    /// Returns the URL of the issuer's discovery document.
    pub fn discovery_url(&self) -> String {
        let own = || format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        self.discovery.clone().unwrap_or_else(own)
    }
}

/// Reads an AuthenticationConfiguration of apiserver.config.k8s.io, in YAML or JSON. No issuer in it may have the URL
/// of this cluster's own issuer.
pub fn parse(yaml: &str, own_issuer: &str) -> Result<Configuration, String> {
    let config = corten_meta::decode_yaml(yaml.as_bytes()).map_err(|e| e.to_string())?;
    let version = config["apiVersion"].as_str().unwrap_or_default();
    let known = ["v1", "v1beta1", "v1alpha1"].map(|v| format!("apiserver.config.k8s.io/{v}"));
    if !known.iter().any(|k| k == version) || config["kind"] != "AuthenticationConfiguration" {
        return Err("it is no AuthenticationConfiguration of apiserver.config.k8s.io".to_owned());
    }
    let root = Path::root("jwt");
    let issuers = config["jwt"].as_array().cloned().unwrap_or_default();
    let mut reader = Reader { own_issuer, errors: Vec::new() };
    if issuers.len() > 64 {
        reader.errors.push(FieldError::too_many(&root, issuers.len(), 64));
    }
    for (at, issuer) in issuers.iter().enumerate() {
        for field in ["url", "discoveryURL"] {
            let value = string_at(&issuer["issuer"], field);
            let same = |other: &Value| string_at(&other["issuer"], field) == value;
            if !value.is_empty() && issuers[..at].iter().any(same) {
                reader.errors.push(FieldError::duplicate(&root.index(at).child("issuer").child(field), value));
            }
        }
    }
    let anonymous = reader.anonymous(&config["anonymous"]);
    let read = issuers.iter().enumerate().map(|(at, jwt)| reader.issuer(jwt, &root.index(at)));
    let issuers: Vec<Option<Issuer>> = read.collect();
    match corten_meta::field::aggregate(&reader.errors) {
        Some(message) => Err(message),
        None => Ok(Configuration { issuers: issuers.into_iter().flatten().collect(), anonymous }),
    }
}

fn string_at<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Collects the errors of a configuration.
struct Reader<'a> {
    own_issuer: &'a str,
    errors: Vec<FieldError>,
}

impl Reader<'_> {
    fn refuse(&mut self, path: &Path, value: &str, why: impl Into<String>) {
        self.errors.push(FieldError::invalid(path, value, why));
    }

    fn anonymous(&mut self, config: &Value) -> Anonymous {
        if !config.is_object() {
            return Anonymous::Everywhere;
        }
        let conditions = config["conditions"].as_array().cloned().unwrap_or_default();
        let path = Path::root("anonymous").child("conditions");
        match (config["enabled"] == true, conditions.is_empty()) {
            (true, true) => Anonymous::Everywhere,
            (true, false) => Anonymous::At(conditions.iter().map(|c| string_at(c, "path").to_owned()).collect()),
            (false, true) => Anonymous::Nowhere,
            (false, false) => {
                let why = "enabled should be set to true when conditions are defined";
                self.errors.push(FieldError::invalid(&path, config["conditions"].clone(), why));
                Anonymous::Nowhere
            }
        }
    }

    fn issuer(&mut self, jwt: &Value, path: &Path) -> Option<Issuer> {
        let issuer = &jwt["issuer"];
        let at = path.child("issuer");
        let url = string_at(issuer, "url");
        let discovery = string_at(issuer, "discoveryURL");
        match url {
            "" => self.errors.push(FieldError::required(&at.child("url"), "")),
            url if url == self.own_issuer => {
                let why = format!("URL must not overlap with disallowed issuers: [{url}]");
                self.refuse(&at.child("url"), url, why);
            }
            url => self.url(url, &at.child("url")),
        }
        if !discovery.is_empty() {
            if discovery.trim_end_matches('/') == url.trim_end_matches('/') {
                self.refuse(&at.child("discoveryURL"), discovery, "discoveryURL must be different from URL");
            }
            self.url(discovery, &at.child("discoveryURL"));
        }
        let egress = string_at(issuer, "egressSelectorType");
        if !egress.is_empty() {
            self.refuse(&at.child("egressSelectorType"), egress, "this server has no egress selectors");
        }
        let audiences = self.audiences(issuer, &at);
        let (required, claim_rules) = self.claim_rules(jwt, &path.child("claimValidationRules"));
        let mappings = path.child("claimMappings");
        let mapping = &jwt["claimMappings"];
        let username = self.mapping(&mapping["username"], &mappings.child("username"));
        if username.is_none() && string_at(&mapping["username"], "expression").is_empty() {
            let why = "claim or expression is required";
            if string_at(&mapping["username"], "claim").is_empty() {
                self.errors.push(FieldError::required(&mappings.child("username"), why));
            }
        }
        let groups = self.mapping(&mapping["groups"], &mappings.child("groups"));
        let uid = self.uid(&mapping["uid"], &mappings.child("uid"));
        let extra = self.extra(&mapping["extra"], &mappings.child("extra"));
        let user_rules = self.user_rules(&jwt["userValidationRules"], &path.child("userValidationRules"));
        let issuer = Issuer {
            url: url.to_owned(),
            discovery: Some(discovery.to_owned()).filter(|d| !d.is_empty()),
            audiences,
            certificate_authority: string_at(issuer, "certificateAuthority").to_owned(),
            required,
            claim_rules,
            user_rules,
            username: username?,
            groups,
            uid,
            extra,
        };
        self.check_email(&issuer, &mappings.child("username").child("expression"));
        Some(issuer)
    }

    fn url(&mut self, url: &str, path: &Path) {
        let Some(rest) = url.strip_prefix("https://") else {
            return self.refuse(path, url, "URL scheme must be https");
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            self.refuse(path, url, "URL must not contain a username or password");
        }
        if rest.split('#').next().is_some_and(|rest| rest.contains('?')) {
            self.refuse(path, url, "URL must not contain a query");
        }
        if rest.contains('#') {
            self.refuse(path, url, "URL must not contain a fragment");
        }
    }

    fn audiences(&mut self, issuer: &Value, path: &Path) -> Vec<String> {
        let at = path.child("audiences");
        let values = issuer["audiences"].as_array().cloned().unwrap_or_default();
        let audiences: Vec<String> = values.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if audiences.is_empty() {
            self.errors.push(FieldError::required(&at, format!("at least one {at} is required")));
        }
        for (index, audience) in audiences.iter().enumerate() {
            if audience.is_empty() {
                self.errors.push(FieldError::required(&at.index(index), ""));
            } else if audiences[..index].contains(audience) {
                self.errors.push(FieldError::duplicate(&at.index(index), audience.as_str()));
            }
        }
        let policy = string_at(issuer, "audienceMatchPolicy");
        let at = path.child("audienceMatchPolicy");
        if audiences.len() > 1 && policy != "MatchAny" {
            self.refuse(&at, policy, "audienceMatchPolicy must be MatchAny for multiple audiences");
        } else if !policy.is_empty() && policy != "MatchAny" {
            self.refuse(&at, policy, "audienceMatchPolicy must be empty or MatchAny for single audience");
        }
        audiences
    }

    fn compile(&mut self, env: &Env, expression: &str, wanted: &[Type], path: &Path) -> Option<Program> {
        match compiling(|| env.compile(expression, wanted)) {
            Ok(program) => Some(program),
            Err(e) => {
                let why = match e {
                    corten_cel::CompileError::Output(wanted, _) => wanted,
                    other => format!("compilation failed: {other}"),
                };
                self.refuse(path, expression, why);
                None
            }
        }
    }

    fn claim_rules(&mut self, jwt: &Value, path: &Path) -> (Vec<(String, String)>, Vec<Rule>) {
        let rules = jwt["claimValidationRules"].as_array().cloned().unwrap_or_default();
        let (mut required, mut compiled): (Vec<(String, String)>, Vec<Rule>) = Default::default();
        for (at, rule) in rules.iter().enumerate() {
            let path = path.index(at);
            let claim = string_at(rule, "claim");
            let expression = string_at(rule, "expression");
            let earlier = |field: &str, value: &str| rules[..at].iter().any(|other| string_at(other, field) == value);
            match (claim.is_empty(), expression.is_empty()) {
                (false, false) => self.refuse(&path, claim, "claim and expression can't both be set"),
                (true, true) => self.errors.push(FieldError::required(&path, "claim or expression is required")),
                (false, true) => {
                    if !string_at(rule, "message").is_empty() {
                        let why = "may not be specified when claim is set";
                        self.refuse(&path.child("message"), string_at(rule, "message"), why);
                    }
                    if earlier("claim", claim) {
                        self.errors.push(FieldError::duplicate(&path.child("claim"), claim));
                    }
                    required.push((claim.to_owned(), string_at(rule, "requiredValue").to_owned()));
                }
                (true, false) => {
                    let at = path.child("expression");
                    if !string_at(rule, "requiredValue").is_empty() {
                        let why = "may not be specified when expression is set";
                        self.refuse(&path.child("requiredValue"), string_at(rule, "requiredValue"), why);
                    }
                    if earlier("expression", expression) {
                        self.errors.push(FieldError::duplicate(&at, expression));
                    }
                    let program = self.compile(&CLAIMS, expression, &[Type::Bool], &at);
                    let message = string_at(rule, "message").to_owned();
                    compiled.extend(program.map(|program| Rule { program, message }));
                }
            }
        }
        (required, compiled)
    }

    fn user_rules(&mut self, rules: &Value, path: &Path) -> Vec<Rule> {
        let rules = rules.as_array().cloned().unwrap_or_default();
        let mut compiled = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let expression = string_at(rule, "expression");
            let path = path.index(at).child("expression");
            if expression.is_empty() {
                self.errors.push(FieldError::required(&path, ""));
                continue;
            }
            if rules[..at].iter().any(|other| string_at(other, "expression") == expression) {
                self.errors.push(FieldError::duplicate(&path, expression));
            }
            let program = self.compile(&USER, expression, &[Type::Bool], &path);
            compiled.extend(program.map(|program| Rule { program, message: string_at(rule, "message").to_owned() }));
        }
        compiled
    }

    /// Reads a claim with its prefix, or an expression.
    fn mapping(&mut self, config: &Value, path: &Path) -> Option<Mapping> {
        let claim = string_at(config, "claim");
        let expression = string_at(config, "expression");
        let prefix = config["prefix"].as_str();
        match (claim.is_empty(), expression.is_empty()) {
            (true, true) => None,
            (false, false) => {
                self.refuse(path, "", "claim and expression can't both be set");
                None
            }
            (true, false) => {
                if let Some(prefix) = prefix {
                    self.refuse(&path.child("prefix"), prefix, "may not be specified when expression is set");
                }
                self.compile(&CLAIMS, expression, &[], &path.child("expression")).map(Mapping::Expression)
            }
            (false, true) => {
                if prefix.is_none() {
                    let why =
                        "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.errors.push(FieldError::required(&path.child("prefix"), why));
                }
                Some(Mapping::Claim { claim: claim.to_owned(), prefix: prefix.unwrap_or_default().to_owned() })
            }
        }
    }

    fn uid(&mut self, config: &Value, path: &Path) -> Option<Mapping> {
        let claim = string_at(config, "claim");
        let expression = string_at(config, "expression");
        match (claim.is_empty(), expression.is_empty()) {
            (true, true) => None,
            (false, false) => {
                self.refuse(path, "", "claim and expression can't both be set");
                None
            }
            (true, false) => self.compile(&CLAIMS, expression, &[], &path.child("expression")).map(Mapping::Expression),
            (false, true) => Some(Mapping::Claim { claim: claim.to_owned(), prefix: String::new() }),
        }
    }

    fn extra(&mut self, config: &Value, path: &Path) -> Vec<(String, Program)> {
        let mappings = config.as_array().cloned().unwrap_or_default();
        let mut extra: Vec<(String, Program)> = Vec::new();
        for (at, mapping) in mappings.iter().enumerate() {
            let path = path.index(at);
            let key = string_at(mapping, "key");
            let expression = string_at(mapping, "valueExpression");
            let (domain, rest) = key.split_once('/').unwrap_or_default();
            let reserved = |root: &str| domain == root || domain.ends_with(&format!(".{root}"));
            let at_key = path.child("key");
            if domain.is_empty() || rest.is_empty() || !corten_meta::names::dns1123_subdomain(domain).is_empty() {
                self.refuse(&at_key, key, "must be a domain-prefixed path (such as \"acme.io/foo\")");
            } else if key != key.to_lowercase() {
                self.refuse(&at_key, key, "must be lowercase");
            } else if reserved("kubernetes.io") || reserved("k8s.io") {
                let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
                self.refuse(&at_key, key, why);
            } else if extra.iter().any(|(known, _)| known == key) {
                self.errors.push(FieldError::duplicate(&at_key, key));
            }
            if expression.is_empty() {
                self.errors.push(FieldError::required(&path.child("valueExpression"), ""));
                continue;
            }
            let program = self.compile(&CLAIMS, expression, &[], &path.child("valueExpression"));
            extra.extend(program.map(|program| (key.to_owned(), program)));
        }
        extra
    }

    /// Checks that a username expression with the email claim also uses `email_verified`: an unverified address may
    /// belong to another user.
    fn check_email(&mut self, issuer: &Issuer, path: &Path) {
        let Mapping::Expression(username) = &issuer.username else { return };
        let mut all = std::iter::once(username)
            .chain(issuer.extra.iter().map(|(_, program)| program))
            .chain(issuer.claim_rules.iter().map(|rule| &rule.program));
        if username.selects("claims", "email") && !all.any(|program| program.selects("claims", "email_verified")) {
            let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
            self.refuse(path, username.text(), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_jwt(jwt: &str) -> Result<Configuration, String> {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration";
        parse(&format!("{head}\njwt:\n- {jwt}\n"), "https://own")
    }

    #[test]
    fn a_configuration_is_decoded_or_refused() {
        let good = "{issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: 'o:'}, groups: {claim: groups, prefix: ''}, uid: {claim: oid}}, claimValidationRules: [{claim: hd, requiredValue: x}]}";
        let issuer = parse_jwt(good).unwrap().issuers.remove(0);
        assert_eq!(issuer.discovery_url(), "https://i/.well-known/openid-configuration");
        assert!(matches!(&issuer.username, Mapping::Claim { claim, prefix } if claim == "sub" && prefix == "o:"));
        assert_eq!(issuer.required.len(), 1);
        let with = |rest: &str| format!("{{issuer: {{url: 'https://i', audiences: [a]}}, {rest}}}");
        let username = "username: {claim: sub, prefix: ''}";
        for (jwt, error) in [
            ("{issuer: {url: 'http://i', audiences: [a]}}".to_owned(), "jwt[0].issuer.url: Invalid value"),
            ("{issuer: {url: 'https://own', audiences: [a]}}".to_owned(), "disallowed issuers"),
            ("{issuer: {url: 'https://u@i?q#f', audiences: [a]}}".to_owned(), "must not contain a query"),
            ("{issuer: {url: 'https://i'}}".to_owned(), "jwt[0].issuer.audiences: Required value"),
            ("{issuer: {url: 'https://i', audiences: [a, b]}}".to_owned(), "must be MatchAny"),
            (with(""), "claimMappings.username: Required value"),
            (with("claimMappings: {username: {claim: sub}}"), "prefix is required"),
            (with("claimMappings: {username: {claim: sub, expression: claims.sub}}"), "can't both be set"),
            (with("claimMappings: {username: {expression: 'claims.('}}"), "compilation failed"),
            (with("claimMappings: {username: {expression: claims.email}}"), "claims.email_verified must be used"),
            (
                with(&format!("claimMappings: {{{username}, extra: [{{key: a, valueExpression: '1'}}]}}")),
                "domain-prefixed path",
            ),
            (
                with(&format!("claimMappings: {{{username}, extra: [{{key: a.k8s.io/b, valueExpression: '1'}}]}}")),
                "reserved for Kubernetes use",
            ),
            (
                with(&format!("claimMappings: {{{username}}}, claimValidationRules: [{{expression: claims.sub}}]")),
                "must evaluate to bool",
            ),
            (
                with(&format!("claimMappings: {{{username}}}, userValidationRules: [{{expression: user.nobody}}]")),
                "compilation failed",
            ),
        ] {
            let found = parse_jwt(&jwt).err().unwrap_or_else(|| panic!("accepted: {jwt}"));
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn anonymous_requests_are_allowed_everywhere_nowhere_or_at_paths() {
        let read = |anonymous: &str| {
            let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration";
            parse(&format!("{head}\n{anonymous}"), "").map(|configuration| configuration.anonymous)
        };
        assert_eq!(read(""), Ok(Anonymous::Everywhere));
        assert_eq!(read("anonymous: {enabled: true}"), Ok(Anonymous::Everywhere));
        assert_eq!(read("anonymous: {enabled: false}"), Ok(Anonymous::Nowhere));
        let some = read("anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}").unwrap();
        assert!(some.is_allowed("/livez") && !some.is_allowed("/livez/ping") && !some.is_allowed("/api"));
        assert!(read("anonymous: {enabled: false, conditions: [{path: /livez}]}").is_err());
    }
}
