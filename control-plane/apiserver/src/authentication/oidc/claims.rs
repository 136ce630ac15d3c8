//! Maps the claims of a verified token to a user. Pure.

use std::collections::BTreeMap;

use corten_access::User;
use corten_cel::durations::evaluating;
use corten_cel::value::to_json;
use corten_cel::{Program, Value as Cel};
use corten_meta::Value;
use corten_meta::quote::{quote, quote_list};

use super::configuration::{Issuer, Mapping, Rule};

/// Checks that a token is valid from its `nbf` to its `exp`, which is required.
pub fn check_times(claims: &Value, now: i64) -> Result<(), String> {
    /// The tolerance for issuers' clocks that are ahead.
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

/// Returns the user that the issuer's mappings and rules make of the claims.
pub fn user(issuer: &Issuer, claims: &Value) -> Result<User, String> {
    check_audience(issuer, claims)?;
    let name = username(&issuer.username, claims)?;
    let groups = match &issuer.groups {
        None => Vec::new(),
        Some(mapping) => groups(mapping, claims)?,
    };
    let uid = issuer.uid.as_ref().map(|mapping| uid(mapping, claims)).transpose()?.unwrap_or_default();
    let mut extra = BTreeMap::new();
    for (key, program) in &issuer.extra {
        let failed = |e: String| format!("oidc: error evaluating extra claim expression: {e}");
        let values = evaluate(program, "claims", claims).and_then(|value| strings(&value)).map_err(failed)?;
        if !values.is_empty() {
            extra.insert(key.clone(), values);
        }
    }
    check_required(issuer, claims)?;
    let failed = |e: String| format!("oidc: error evaluating claim validation expression: {e}");
    check_rules(&issuer.claim_rules, "claims", claims).map_err(failed)?;
    let user = User { name, uid, groups, extra };
    let mut shown = user.to_value();
    for (field, empty) in [("uid", Value::from("")), ("extra", serde_json::json!({}))] {
        if shown.get(field).is_none() {
            shown[field] = empty;
        }
    }
    let failed = |e: String| format!("oidc: error evaluating user info validation rule: {e}");
    check_rules(&issuer.user_rules, "user", &shown).map_err(failed)?;
    Ok(user)
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
    let wanted = quote_list(&issuer.audiences);
    let carried = quote_list(&carried);
    Err(format!("oidc: expected audience in {wanted} got {carried}"))
}

fn check_required(issuer: &Issuer, claims: &Value) -> Result<(), String> {
    for (claim, wanted) in &issuer.required {
        match claims[claim.as_str()].as_str() {
            Some(value) if value == wanted => {}
            Some(value) => {
                return Err(format!(
                    "oidc: required claim {claim} value does not match. Got = {value}, want = {wanted}"
                ));
            }
            None => return Err(format!("oidc: required claim {claim} not present in ID token")),
        }
    }
    Ok(())
}

/// Evaluates an expression over one variable, and returns its value in JSON.
fn evaluate(program: &Program, variable: &str, value: &Value) -> Result<Value, String> {
    let failed = |e: String| format!("expression '{}' resulted in error: {e}", program.text());
    let outcome = evaluating(|| program.eval(&[(variable, Cel::json(value))]));
    let value = outcome.value.map_err(|e| failed(e.to_string()))?;
    to_json(&value).map_err(|e| failed(e.to_string()))
}

fn check_rules(rules: &[Rule], variable: &str, value: &Value) -> Result<(), String> {
    for rule in rules {
        if evaluate(&rule.program, variable, value)? != true {
            let expression = rule.program.text();
            let message = &rule.message;
            return Err(format!("validation expression '{expression}' failed: {message}"));
        }
    }
    Ok(())
}

fn username(mapping: &Mapping, claims: &Value) -> Result<String, String> {
    let (claim, prefix) = match mapping {
        Mapping::Claim { claim, prefix } => (claim.as_str(), prefix),
        Mapping::Expression(program) => {
            let failed = |e: &str| format!("oidc: error evaluating username claim expression: {e}");
            let name = evaluate(program, "claims", claims).map_err(|e| failed(&e))?;
            let name = name.as_str().ok_or_else(|| failed("username claim expression must return a string"))?;
            if name.is_empty() {
                return Err("oidc: empty username via CEL expression is not allowed".to_owned());
            }
            return Ok(name.to_owned());
        }
    };
    let name = claims[claim]
        .as_str()
        .ok_or_else(|| format!("oidc: parse username claims {}: claim not present", quote(claim)))?;
    // An email address that is not verified may belong to another user.
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != true) {
        return Err("oidc: email not verified".to_owned());
    }
    if name.is_empty() {
        return Err(format!("oidc: parse username claims {}: claim is empty", quote(claim)));
    }
    Ok(format!("{prefix}{name}"))
}

fn groups(mapping: &Mapping, claims: &Value) -> Result<Vec<String>, String> {
    match mapping {
        Mapping::Claim { claim, prefix } => {
            let names = match &claims[claim.as_str()] {
                Value::Null => Vec::new(),
                value @ (Value::String(_) | Value::Array(_)) => {
                    strings(value).map_err(|e| format!("oidc: parse groups claim {}: {e}", quote(claim)))?
                }
                _ => return Err(format!("oidc: parse groups claim {}: unsupported type", quote(claim))),
            };
            Ok(names.into_iter().map(|name| format!("{prefix}{name}")).collect())
        }
        Mapping::Expression(program) => {
            let failed = |e: String| format!("oidc: error evaluating group claim expression: {e}");
            evaluate(program, "claims", claims).and_then(|value| strings(&value)).map_err(failed)
        }
    }
}

fn uid(mapping: &Mapping, claims: &Value) -> Result<String, String> {
    match mapping {
        Mapping::Claim { claim, .. } => {
            let uid = claims[claim.as_str()].as_str();
            Ok(uid.ok_or_else(|| format!("oidc: parse uid claim {}: it is no text", quote(claim)))?.to_owned())
        }
        Mapping::Expression(program) => {
            let failed = |e: &str| format!("oidc: error evaluating uid claim expression: {e}");
            let uid = evaluate(program, "claims", claims).map_err(|e| failed(&e))?;
            Ok(uid.as_str().ok_or_else(|| failed("uid claim expression must return a string"))?.to_owned())
        }
    }
}

/// Returns a string or a list of strings as a list, without empty ones.
fn strings(value: &Value) -> Result<Vec<String>, String> {
    let strings = match value {
        Value::Null => Vec::new(),
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => {
            let each = many.iter().map(|one| one.as_str().map(str::to_owned));
            each.collect::<Option<Vec<_>>>().ok_or("expected values of a list to be text")?
        }
        _ => return Err("unsupported type: neither text nor a list of texts".to_owned()),
    };
    Ok(strings.into_iter().filter(|string| !string.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::configuration::parse;
    use super::*;
    use serde_json::json;

    fn issuer(rest: &str) -> Issuer {
        let head = "apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration";
        let yaml = format!("{{{head}, jwt: [{{issuer: {{url: 'https://i', audiences: [a]}}, {rest}}}]}}");
        parse(&yaml, "").unwrap().issuers.remove(0)
    }

    #[test]
    fn claims_make_a_user_or_not() {
        let issuer = issuer(
            "claimMappings: {username: {claim: email, prefix: 'o:'}, groups: {claim: groups, prefix: 'g:'}}, claimValidationRules: [{claim: hd, requiredValue: x}]",
        );
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
    fn expressions_make_a_user_or_not() {
        let issuer = issuer(
            "claimMappings: {username: {expression: '\"o:\" + claims.sub'}, groups: {expression: 'claims.roles.split(\",\")'}, uid: {expression: 'claims.?oid.orValue(\"\")'}, extra: [{key: example.com/tenant, valueExpression: claims.tenant}]}, claimValidationRules: [{expression: 'claims.exp - claims.nbf <= 86400', message: 'it lasts too long'}], userValidationRules: [{expression: '!user.username.startsWith(\"o:system:\")', message: 'a reserved name'}, {expression: 'user.groups.all(g, g != \"root\") && !(\"x\" in user.extra)'}]",
        );
        let good =
            json!({ "aud": "a", "sub": "jane", "roles": "dev,,ops", "tenant": ["t1", "t2"], "nbf": 10, "exp": 20 });
        let jane = user(&issuer, &good).unwrap();
        assert_eq!((jane.name.as_str(), jane.groups.join(" ")), ("o:jane", "dev ops".to_owned()));
        assert_eq!(
            (jane.uid.as_str(), &jane.extra["example.com/tenant"]),
            ("", &vec!["t1".to_owned(), "t2".to_owned()])
        );
        for (key, value, error) in [
            ("sub", json!("system:admin"), "a reserved name"),
            ("sub", json!(7), "resulted in error"),
            ("roles", json!("root"), "user info validation rule"),
            ("roles", Value::Null, "group claim expression"),
            ("tenant", json!(7), "extra claim expression"),
            ("oid", json!(7), "uid claim expression must return a string"),
            ("exp", json!(1_000_000), "it lasts too long"),
        ] {
            let mut claims = good.clone();
            claims[key] = value;
            let found = user(&issuer, &claims).unwrap_err();
            assert!(found.contains(error), "{key}: {found}");
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
