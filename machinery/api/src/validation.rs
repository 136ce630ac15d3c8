//! The checks that many kinds share, with upstream's paths and messages.

use corten_meta::field::{FieldError, Path};
use corten_meta::quote::quote;
use corten_meta::{Value, names};

pub(crate) use crate::check::quantity;
use crate::check::{At, Errors, TextRule};

/// Makes one error per message, at the same field.
pub(crate) fn invalid_each(path: &Path, value: &str, messages: Vec<String>) -> Vec<FieldError> {
    messages.into_iter().map(|message| FieldError::invalid(path, value, message)).collect()
}

/// Validates a number that is not negative, if it is set.
pub(crate) fn nonnegative(value: &Value, path: &Path) -> Option<FieldError> {
    let number = value.as_i64()?;
    (number < 0).then(|| FieldError::invalid(path, number, "must be greater than or equal to 0"))
}

/// Validates a port number.
pub(crate) fn port(value: i64, path: &Path) -> Vec<FieldError> {
    names::port_number(value).into_iter().map(|m| FieldError::invalid(path, value, m)).collect()
}

/// Validates a port by number or by name.
pub(crate) fn port_number_or_name(value: &Value, path: &Path) -> Vec<FieldError> {
    match value {
        Value::String(name) => invalid_each(path, name, names::port_name(name)),
        other => port(other.as_i64().unwrap_or_default(), path),
    }
}

/// Validates conditions of the common form: one of each type, each with a reason and a transition time.
pub(crate) fn conditions(conditions: &At<'_>, errors: &mut Errors) {
    const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
                          alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. \
                          'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex \
                          used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
    let mut seen = Vec::new();
    for condition in conditions.items() {
        let kind = condition.get("type");
        if seen.contains(&kind.text()) {
            errors.push(kind.duplicate());
        }
        seen.push(kind.text());
        kind.follows_also_empty(errors, names::qualified_name);
        let status = condition.get("status");
        if !["True", "False", "Unknown"].contains(&status.text()) {
            errors.push(FieldError::not_supported(&status.path, status.text(), &["False", "True", "Unknown"]));
        }
        let generation = condition.get("observedGeneration");
        if generation.number().is_some_and(|number| number < 0) {
            errors.push(generation.invalid("must be greater than or equal to zero"));
        }
        condition.get("lastTransitionTime").must(errors);
        let reason = condition.get("reason");
        if reason.must(errors) {
            if !is_reason(reason.text()) {
                errors.push(reason.invalid(REASON));
            }
            reason.at_most_bytes(errors, 1024);
        }
        condition.get("message").at_most_bytes(errors, 32 * 1024);
    }
}

fn is_reason(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_,:".contains(b))
}

/// Validates a UUID in its usual form, with the messages of upstream's parser.
pub(crate) fn uuid(at: &At<'_>, errors: &mut Errors) {
    let text = at.text();
    let is_hex = |part: &str| part.bytes().all(|b| b.is_ascii_hexdigit());
    let detail = match text.len() {
        36 if !text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) || !text.split('-').all(is_hex) => {
            "error validating uid: invalid UUID format".to_string()
        }
        36 if !text.bytes().any(|b| b.is_ascii_uppercase()) => return,
        32 | 36 if is_hex(&text.replace('-', "")) => "uid must be in RFC 4122 normalized form, \
            `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters"
            .to_string(),
        32 => "error validating uid: invalid UUID format".to_string(),
        length => format!("error validating uid: invalid UUID length: {length}"),
    };
    errors.push(at.invalid(detail));
}

/// Validates a number or a percentage that is not negative, if it is set.
pub(crate) fn int_or_percent(value: &Value, path: &Path) -> Vec<FieldError> {
    match value {
        Value::String(text) => names::percent(text)
            .into_iter()
            .map(|why| FieldError::invalid(path, text.as_str(), why).as_json())
            .collect(),
        other => nonnegative(other, path).into_iter().collect(),
    }
}

/// Validates that a percentage is at most 100%.
pub(crate) fn at_most_all(at: &At<'_>, errors: &mut Errors) {
    let percent = at.text().strip_suffix('%').and_then(|number| number.parse::<i64>().ok());
    if percent.is_some_and(|p| p > 100) {
        errors.push(at.invalid("must not be greater than 100%"));
    }
}

/// Reports whether a number or percentage is zero.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        // An invalid percentage counts as zero.
        Value::String(text) => match text.strip_suffix('%') {
            Some(percent) => percent.parse::<u32>().unwrap_or_default() == 0,
            None => text.parse::<i64>().unwrap_or_default() == 0,
        },
        other => other.as_i64().unwrap_or_default() == 0,
    }
}

/// Validates the keys and values of labels.
pub(crate) fn labels(value: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        errors.extend(invalid_each(path, key, names::qualified_name(key)));
        errors.extend(invalid_each(path, value, names::label_value(value)));
    }
    errors
}

/// Validates a LabelSelector, if it is set.
pub(crate) fn label_selector(selector: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = labels(&selector["matchLabels"], &path.child("matchLabels"));
    let at = At::new(selector, path);
    at.get("matchExpressions").each(&mut errors, |at, errors| errors.extend(label_requirement(at, false)));
    errors
}

/// Validates one requirement of a label selector. Access reviews accept unknown operators, which a newer client may
/// know.
pub(crate) fn label_requirement(requirement: &At<'_>, any_operator: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let values = requirement.get("values");
    let operator = requirement.get("operator");
    match operator.text() {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(values.required("must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ if any_operator => {}
        other => errors.push(FieldError::invalid(&operator.path, other, "not a valid selector operator").as_json()),
    }
    requirement.get("key").follows_also_empty(&mut errors, names::qualified_name);
    values.each(&mut errors, |value, errors| value.follows_also_empty(errors, names::label_value));
    errors
}

/// Validates `domain/name`: a domain of two labels or more, and a path of subdomains.
pub(crate) fn signer_name(at: &At<'_>, errors: &mut Errors) {
    const MAX_DOMAIN: usize = 253;
    const MAX_NAME: usize = MAX_DOMAIN + 1 + 253 + 63 + 1;
    if !at.must(errors) {
        return;
    }
    let Some((domain, path)) = at.text().split_once('/').filter(|(_, path)| !path.contains('/')) else {
        errors.push(at.invalid("must be a fully qualified domain and path of the form 'example.com/signer-name'"));
        return;
    };
    if domain.len() > MAX_DOMAIN {
        errors.push(FieldError::too_long(&at.path, MAX_DOMAIN));
    }
    signer_name_part(at, domain, names::dns1123_label, errors);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(&at.path, domain, detail));
    }
    signer_name_part(at, path, names::dns1123_subdomain, errors);
    at.at_most_bytes(errors, MAX_NAME);
}

/// Validates `acme.io/foo`: a subdomain, a slash, and a path.
pub(crate) fn domain_prefixed_path(at: &At<'_>, errors: &mut Errors) {
    const PATH: &str = "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+";
    if !at.must(errors) {
        return;
    }
    let Some((host, path)) = at.text().split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty())
    else {
        errors.push(at.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")"));
        return;
    };
    errors.extend(names::dns1123_subdomain(host).into_iter().map(|m| FieldError::invalid(&at.path, host, m)));
    if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
        let detail = names::regex_message("Invalid path", PATH, &[]);
        errors.push(FieldError::invalid(&at.path, path, detail));
    }
}

/// Returns the first label of a part that breaks the rule.
fn signer_name_part(at: &At<'_>, part: &str, rule: TextRule, errors: &mut Errors) {
    let invalid = part.split('.').map(|label| (label, rule(label))).find(|(_, messages)| !messages.is_empty());
    let Some((label, messages)) = invalid else { return };
    let error = |message| FieldError::invalid(&at.path, part, format!("validating label {}: {message}", quote(label)));
    errors.extend(messages.into_iter().map(error));
}

/// Validates an address in a field that is older than the rule of canonical form: only new values must follow it.
pub(crate) fn legacy_ip(at: &At<'_>, old: &[&str], errors: &mut Errors) {
    if !old.contains(&at.text()) {
        at.follows_also_empty(errors, names::address::ip_legacy);
    }
}

/// Validates an address of an endpoint: not the node's own or link-local.
pub(crate) fn endpoint_ip(at: &At<'_>, errors: &mut Errors) {
    let Some(address) = names::address::parse_sloppy(at.text()) else {
        errors.push(at.invalid("must be a valid IP address"));
        return;
    };
    let (unicast, multicast) = match address {
        std::net::IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        std::net::IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.octets()[..2] == [0xff, 0x02]),
    };
    if address.is_unspecified() {
        errors.push(at.invalid(format!("may not be unspecified ({})", at.text())));
    }
    if address.is_loopback() {
        errors.push(at.invalid("may not be in the loopback range (127.0.0.0/8, ::1/128)"));
    }
    if unicast {
        errors.push(at.invalid("may not be in the link-local range (169.254.0.0/16, fe80::/10)"));
    }
    if multicast {
        errors.push(at.invalid("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"));
    }
}

/// Validates a network in a field that is older than the rule of canonical form.
pub(crate) fn legacy_cidr(at: &At<'_>, old: &[&str], errors: &mut Errors) {
    if !old.contains(&at.text()) {
        at.follows_also_empty(errors, names::address::cidr_legacy);
    }
}

/// Validates that a field does not change.
pub(crate) fn immutable(new: &Value, old: &Value, pointer: &str, path: &Path) -> Option<FieldError> {
    let at = |object: &Value| object.pointer(pointer).filter(|v| !v.is_null()).cloned();
    let new = at(new);
    let old = at(old);
    (new != old).then(|| FieldError::invalid(path, new.unwrap_or_default(), "field is immutable"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_complete() {
        let complete =
            json!({"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2020-01-01T00:00:00Z"});
        let with = |field: &str, value: Value| {
            let mut condition = complete.clone();
            condition[field] = value;
            condition
        };
        for (input, expected) in [
            (json!([complete]), vec![]),
            (json!([complete, complete]), vec!["type"]),
            (json!([with("status", "Odd".into())]), vec!["status"]),
            (json!([with("observedGeneration", (-1).into())]), vec!["observedGeneration"]),
            (json!([with("reason", "not a reason".into())]), vec!["reason"]),
            (json!([{}]), vec!["type", "type", "status", "lastTransitionTime", "reason"]),
        ] {
            let mut errors = Errors::new();
            conditions(&At::new(&input, &Path::root("c")), &mut errors);
            let fields: Vec<&str> = errors.iter().filter_map(|e| e.field.rsplit('.').next()).collect();
            assert_eq!(fields, expected, "{input}");
        }
    }

    #[test]
    fn uuids_are_in_their_usual_form() {
        for (text, expected) in [
            ("0190e0d0-9dfb-7b24-8bb7-ea4a9ba8f2b1", ""),
            ("x", "error validating uid: invalid UUID length: 1"),
            ("0190e0d0-9dfb-7b24-8bb7-ea4a9ba8f2bz", "error validating uid: invalid UUID format"),
            (
                "0190E0D0-9dfb-7b24-8bb7-ea4a9ba8f2b1",
                "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters",
            ),
        ] {
            let value = Value::from(text);
            let mut errors = Errors::new();
            uuid(&At::new(&value, &Path::root("u")), &mut errors);
            let details: Vec<&str> = errors.iter().map(|e| e.detail.as_str()).collect();
            assert_eq!(details.concat(), expected, "{text}");
        }
    }
}
