//! The rules of admission policies and their bindings beyond their fields. The API server compiles their expressions.

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::rules::Site;

/// Validates the name of a variable.
pub(crate) fn cel_identifier(name: &At<'_>, errors: &mut Errors) {
    let text = name.text();
    let start = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_word = start && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !is_word || names::CEL_WORDS.contains(&text) {
        errors.push(name.invalid("must be a valid CEL identifier"));
    }
}

/// Validates a message, or an expression for one, which may be absent but not blank.
pub(crate) fn not_only_blank(at: &At<'_>, errors: &mut Errors) {
    if !at.is_empty() && at.text().trim().is_empty() {
        errors.push(at.invalid("must be non-empty if specified"));
    }
}

pub(crate) fn one_line(message: &At<'_>, errors: &mut Errors) {
    if message.text().trim().contains(['\n', '\r']) {
        errors.push(message.invalid("must not contain line breaks"));
    }
}

/// Validates the key of an audit annotation, which the policy's name makes unique.
pub(crate) fn audit_key(site: &Site<'_, '_>, errors: &mut Errors) {
    let key = site.at;
    match corten_meta::name(site.root) {
        "" => errors.push(key.invalid("requires metadata.name be non-empty")),
        policy => {
            let full_name = format!("{policy}/{}", key.text());
            let messages = names::qualified_name(&full_name).into_iter();
            errors.extend(messages.map(|m| FieldError::invalid(&key.path, full_name.as_str(), m)));
        }
    }
}

pub(crate) fn short_expression(expression: &At<'_>, errors: &mut Errors) {
    const MAX_EXPRESSION: usize = 5 * 1024;
    if expression.text().trim().len() > MAX_EXPRESSION {
        errors.push(expression.required(&format!("must not exceed {MAX_EXPRESSION} bytes in length")));
    }
}

/// Validates the path of a field in a warning of the type checker.
pub(crate) fn json_path(at: &At<'_>, errors: &mut Errors) {
    let path = at.text().trim();
    if let Err(why) = crate::JsonPath::parse(path) {
        errors.push(FieldError::invalid(&at.path, path, format!("invalid JSONPath: {why}")));
    }
}

/// Refuses deletions: a deleted object cannot be mutated.
pub(crate) fn mutable_operations(resources: &At<'_>, errors: &mut Errors) {
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "UPDATE"];
    let path = resources.path.child("resourceRules").child("operations");
    for operation in resources.get("resourceRules").items().flat_map(|rule| rule.get("operations").items()) {
        operation.with(path.clone()).one_of(errors, OPERATIONS);
    }
}

/// Validates that a mutation has no patch of another form.
pub(crate) fn one_patch(mutation: &At<'_>, errors: &mut Errors) {
    let kind = mutation.get("patchType").text();
    let other = match kind {
        "ApplyConfiguration" => "jsonPatch",
        "JSONPatch" => "applyConfiguration",
        _ => return,
    };
    if mutation.get(other).is_object() {
        let detail = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(&mutation.path.child(other), format!("{{{other}}}"), detail));
    }
}

/// Validates a version with or without a group.
pub(crate) fn param_version(version: &At<'_>, errors: &mut Errors) {
    let text = version.text();
    let invalid = |value: &str, detail: String| FieldError::invalid(&version.path, value, detail);
    let (group, name) = text.split_once('/').unwrap_or(("", text));
    if text.matches('/').count() > 1 {
        errors.push(invalid(text, format!("unexpected GroupVersion string: {text}")));
        return;
    }
    let messages = names::dns1123_subdomain(group);
    if !group.is_empty() && !messages.is_empty() {
        errors.push(invalid(group, messages.join(",")));
    }
    let messages = names::dns1035_label(name);
    if name.is_empty() {
        errors.push(invalid(text, "version must be specified".to_string()));
    } else if !messages.is_empty() {
        errors.push(invalid(name, messages.join(",")));
    }
}

/// Validates the name of a kind, in any case.
pub(crate) fn kind_name(name: &At<'_>, errors: &mut Errors) {
    let messages = names::dns1035_label(&name.text().to_lowercase());
    if !messages.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", messages.join(","));
        errors.push(name.invalid(detail));
    }
}

pub(crate) fn deny_or_warn(actions: &At<'_>, errors: &mut Errors) {
    let has = |word: &str| actions.texts().any(|action| action == word);
    if has("Deny") && has("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(actions.invalid(detail));
    }
}
