//! The rules of admission policies and their bindings. The API server compiles their expressions.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use super::webhook::{validate_match_conditions, validate_rule};
use crate::check::{At, Errors};
use crate::validation::label_selector;

/// Validates the fields that both kinds of policy have.
fn validate_policy(spec: &At<'_>, is_mutating: bool, errors: &mut Errors) {
    spec.get("failurePolicy").must_be_set_to_one_of(errors, &["Fail", "Ignore"]);
    spec.get("paramKind").when_object(errors, validate_param_kind);
    let constraints = spec.get("matchConstraints");
    if constraints.is_object() {
        validate_match_resources(&constraints, errors);
        constraints.get("resourceRules").must(errors);
    } else {
        errors.push(constraints.required(""));
    }
    if is_mutating {
        validate_mutable_operations(&constraints, errors);
    }
    validate_match_conditions(&spec.get("matchConditions"), errors);
    for variable in spec.get("variables").items() {
        let name = variable.get("name");
        let expression = variable.get("expression");
        if name.text().trim().is_empty() {
            errors.push(name.required("name is not specified"));
        } else if !is_identifier(name.text()) {
            errors.push(name.invalid("must be a valid CEL identifier"));
        }
        if expression.text().trim().is_empty() {
            errors.push(expression.required("expression is not specified"));
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let start = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    start && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !names::CEL_WORDS.contains(&name)
}

pub(super) fn validate_validating_policy(object: &Value) -> Errors {
    let object = At::object(object);
    let name = object.get("metadata").get("name").text();
    let spec = object.get("spec");
    let mut errors = Errors::new();
    validate_policy(&spec, false, &mut errors);
    let validations = spec.get("validations");
    let annotations = spec.get("auditAnnotations");
    if validations.is_empty() && annotations.is_empty() {
        const MISSING: &str = "validations or auditAnnotations must contain at least one item";
        errors.push(validations.required(MISSING));
        errors.push(annotations.required(MISSING));
        return errors;
    }
    validations.each(&mut errors, validate_validation);
    if annotations.len() > 20 {
        errors.push(annotations.invalid("must not have more than 20 auditAnnotations"));
    }
    let mut keys = BTreeSet::new();
    for annotation in annotations.items() {
        validate_audit_annotation(&annotation, name, &mut errors);
        let key = annotation.get("key");
        if !keys.insert(key.text()) {
            errors.push(key.duplicate());
        }
    }
    errors
}

fn validate_validation(validation: &At<'_>, errors: &mut Errors) {
    let [expression, message_expression, message] =
        ["expression", "messageExpression", "message"].map(|field| validation.get(field));
    if expression.text().trim().is_empty() {
        errors.push(expression.required("expression is not specified"));
    }
    for at in [&message_expression, &message] {
        if !at.is_empty() && at.text().trim().is_empty() {
            errors.push(at.invalid("must be non-empty if specified"));
        }
    }
    if message.text().trim().contains(['\n', '\r']) {
        errors.push(message.invalid("must not contain line breaks"));
    }
    validation.get("reason").one_of(errors, &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
}

fn validate_audit_annotation(annotation: &At<'_>, policy: &str, errors: &mut Errors) {
    const MAX_EXPRESSION: usize = 5 * 1024;
    let key = annotation.get("key");
    let expression = annotation.get("valueExpression");
    if policy.is_empty() {
        errors.push(key.invalid("requires metadata.name be non-empty"));
    } else {
        let full_name = format!("{policy}/{}", key.text());
        let messages = names::qualified_name(&full_name).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&key.path, full_name.as_str(), m)));
    }
    match expression.text().trim().len() {
        0 => errors.push(expression.required("valueExpression is not specified")),
        length if length > MAX_EXPRESSION => {
            errors.push(expression.required(&format!("must not exceed {MAX_EXPRESSION} bytes in length")));
        }
        _ => {}
    }
}

pub(super) fn validate_mutating_policy(object: &Value) -> Errors {
    let spec = At::object(object).get("spec");
    let mut errors = Errors::new();
    validate_policy(&spec, true, &mut errors);
    spec.get("mutations").must_say(&mut errors, "mutations must contain at least one item");
    spec.get("mutations").each(&mut errors, validate_mutation);
    spec.get("reinvocationPolicy").must_be_one_of(&mut errors, &["IfNeeded", "Never"]);
    errors
}

/// Refuses deletions: a deleted object cannot be mutated.
fn validate_mutable_operations(resources: &At<'_>, errors: &mut Errors) {
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "UPDATE"];
    let path = resources.path.child("resourceRules").child("operations");
    for operation in resources.get("resourceRules").items().flat_map(|rule| rule.get("operations").items()) {
        operation.with(path.clone()).one_of(errors, OPERATIONS);
    }
}

fn validate_mutation(mutation: &At<'_>, errors: &mut Errors) {
    const FORMS: [(&str, &str); 2] = [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
    let kind = mutation.get("patchType");
    kind.must_be_one_of(errors, &["ApplyConfiguration", "JSONPatch"]);
    let Some((name, own)) = FORMS.iter().find(|(name, _)| *name == kind.text()) else { return };
    let patch = mutation.get(own);
    if !patch.is_object() {
        errors.push(patch.required(&format!("must be specified when patchType is {name}")));
    } else if patch.get("expression").text().trim().is_empty() {
        errors.push(patch.get("expression").required(""));
    }
    for (_, other) in FORMS.iter().filter(|(_, field)| field != own) {
        if mutation.get(other).is_object() {
            let detail = format!("must not be specified when patchType is {name}");
            errors.push(FieldError::invalid(&mutation.path.child(other), format!("{{{other}}}"), detail));
        }
    }
}

fn validate_param_kind(kind: &At<'_>, errors: &mut Errors) {
    let version = kind.get("apiVersion");
    if version.must(errors) {
        let text = version.text();
        let invalid = |value: &str, detail: String| FieldError::invalid(&version.path, value, detail);
        let (group, name) = text.split_once('/').unwrap_or(("", text));
        if text.matches('/').count() > 1 {
            errors.push(invalid(text, format!("unexpected GroupVersion string: {text}")));
        } else {
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
    }
    let name = kind.get("kind");
    let messages = names::dns1035_label(&name.text().to_lowercase());
    if name.must(errors) && !messages.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", messages.join(","));
        errors.push(name.invalid(detail));
    }
}

fn validate_match_resources(resources: &At<'_>, errors: &mut Errors) {
    resources.get("matchPolicy").must_be_set_to_one_of(errors, &["Equivalent", "Exact"]);
    for selector in ["namespaceSelector", "objectSelector"].map(|field| resources.get(field)) {
        if selector.is_object() {
            errors.extend(label_selector(selector.value, &selector.path));
        } else {
            errors.push(selector.required(""));
        }
    }
    for rules in ["resourceRules", "excludeResourceRules"].map(|field| resources.get(field)) {
        for rule in rules.items() {
            let named = rule.get("resourceNames");
            named.each_once(errors, |name, e| name.follows_also_empty(e, names::path_segment_name));
            validate_rule(&rule, errors);
        }
    }
}

/// Validates the fields that both kinds of binding have.
fn validate_binding(spec: &At<'_>, errors: &mut Errors) {
    spec.get("policyName").must_follow(errors, names::dns1123_subdomain);
    spec.get("paramRef").when_object(errors, validate_param_ref);
    spec.get("matchResources").when_object(errors, validate_match_resources);
}

fn validate_param_ref(reference: &At<'_>, errors: &mut Errors) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let name = reference.get("name");
    let selector = reference.get("selector");
    name.follows(errors, names::path_segment_name);
    let both = !name.is_empty() && selector.is_object();
    if both {
        errors.push(name.forbidden(EXCLUSIVE));
    }
    errors.extend(label_selector(selector.value, &selector.path));
    if both {
        errors.push(selector.forbidden(EXCLUSIVE));
    }
    if name.is_empty() && !selector.is_object() {
        errors.push(reference.required("one of name or selector must be specified"));
    }
    reference.get("parameterNotFoundAction").must_be_one_of(errors, &["Deny", "Allow"]);
}

pub(super) fn validate_validating_binding(object: &Value) -> Errors {
    let spec = At::object(object).get("spec");
    let mut errors = Errors::new();
    validate_binding(&spec, &mut errors);
    let actions = spec.get("validationActions");
    actions.each_once(&mut errors, |action, e| action.one_of(e, &["Audit", "Deny", "Warn"]));
    let has = |word: &str| actions.texts().any(|action| action == word);
    if has("Deny") && has("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(actions.invalid(detail));
    }
    actions.must_say(&mut errors, "at least one validation action is required");
    errors
}

pub(super) fn validate_mutating_binding(object: &Value) -> Errors {
    let spec = At::object(object).get("spec");
    let mut errors = Errors::new();
    validate_binding(&spec, &mut errors);
    validate_mutable_operations(&spec.get("matchResources"), &mut errors);
    errors
}
