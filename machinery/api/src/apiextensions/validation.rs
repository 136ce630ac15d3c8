//! The rules of a CustomResourceDefinition's names, versions and conversion; the API server validates its schemas when
//! it compiles them.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use super::approval::{self, Approval};
use crate::admissionregistration::webhook::{known_versions, validate_client};
use crate::check::{At, Errors};
use crate::rules;

/// Adds the errors of a struct by the section of a type of this group.
fn check(section: &str, at: &At<'_>, errors: &mut Errors) {
    rules::check(&format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.{section}"), at, errors);
}

pub(super) fn validate_definition(object: &Value) -> Errors {
    let object = At::object(object);
    let spec = object.get("spec");
    let mut errors = Errors::new();
    let group = spec.get("group");
    let plural = spec.get("names").get("plural").text();
    let named = ["generateName", "name"].map(|field| object.get("metadata").get(field));
    // An existing CustomResourceDefinition has a name, and cannot change the fields that the name consists of.
    let is_new = object.get("metadata").get("resourceVersion").is_empty();
    for name in named.iter().filter(|name| is_new && !name.is_empty()) {
        if name.text() != format!("{plural}.{}", group.text()) {
            errors.push(name.invalid("must be spec.names.plural+\".\"+spec.group"));
        }
    }
    let messages = names::dns1123_subdomain(group.text());
    if !group.must(&mut errors) {
    } else if !messages.is_empty() {
        errors.push(group.invalid(messages.join(",")));
    } else if !group.text().contains('.') {
        errors.push(group.invalid("should be a domain with at least one dot"));
    }
    let scope = spec.get("scope");
    if scope.must(&mut errors) {
        scope.one_of_texts(&mut errors, &["Cluster", "Namespaced"]);
    }
    validate_versions(&spec, &mut errors);
    check("CustomResourceDefinitionNames/new", &spec.get("names"), &mut errors);
    for (field, rule) in PARTS {
        if let Some(at) = shared(&spec, field) {
            rule(&at, &mut errors);
        }
    }
    if shared(&spec, "selectableFields").is_some_and(|fields| !fields.is_empty()) && all_lack_schema(&spec) {
        let path = spec.path.child("selectableFields");
        errors.push(FieldError::invalid(&path, "", "may only be set when validations.schema is included"));
    }
    let conversion = spec.get("conversion");
    let strategy = conversion.get("strategy");
    if spec.get("preserveUnknownFields").is_true() && conversion.is_object() && strategy.text() != "None" {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(FieldError::invalid(&strategy.path, strategy.text(), detail));
    }
    validate_conversion(&conversion, &mut errors);
    errors
}

/// Validates the rest of a CustomResourceDefinition, after its spec and its immutable fields.
pub(super) fn validate_rest(object: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Errors::new();
    validate_stored_versions(&At::object(object), &mut errors);
    errors.extend(validate_approval(object, old));
    let preserves = At::object(object).get("spec").get("preserveUnknownFields");
    let did = old.is_some_and(|old| At::object(old).get("spec").get("preserveUnknownFields").is_true());
    if preserves.is_true() && !did {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(preserves.invalid(detail));
    }
    errors
}

pub(crate) fn definition_label(at: &At<'_>, errors: &mut Errors) {
    let messages = names::dns1035_label(at.text());
    if !messages.is_empty() {
        errors.push(at.invalid(messages.join(",")));
    }
}

pub(crate) fn distinct_kinds(names_: &At<'_>, errors: &mut Errors) {
    let kind = names_.get("kind");
    let list_kind = names_.get("listKind");
    if !kind.is_empty() && kind.text() == list_kind.text() {
        errors.push(list_kind.invalid("kind and listKind may not be the same"));
    }
}

type Rule = fn(&At<'_>, &mut Errors);

/// The parts of versions that are validated here, with their rules.
const PARTS: [(&str, Rule); 2] =
    [("subresources", validate_subresources), ("additionalPrinterColumns", validate_columns)];

/// Returns a part that is the same in all versions. Upstream keeps it once, for all of them, and names it so in errors.
fn shared<'a>(spec: &At<'a>, field: &str) -> Option<At<'a>> {
    let mut parts = spec.get("versions").items().map(|version| version.get(field));
    let first = parts.next().filter(At::is_set)?;
    parts.all(|part| part.value == first.value).then(|| first.with(spec.path.child(field)))
}

fn all_lack_schema(spec: &At<'_>) -> bool {
    spec.get("versions").items().all(|version| !version.get("schema").is_set())
}

/// Returns the versions as errors show them: without the shared parts.
fn shown(spec: &At<'_>) -> Value {
    let versions = spec.get("versions");
    let mut shown = versions.value.clone();
    for field in ["schema", "subresources", "additionalPrinterColumns", "selectableFields"] {
        let mut parts = versions.items().map(|version| version.get(field).value.clone());
        let first = parts.next();
        if parts.all(|part| Some(part) == first) {
            for version in shown.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                version.remove(field);
            }
        }
    }
    shown
}

fn validate_versions(spec: &At<'_>, errors: &mut Errors) {
    let versions = &spec.get("versions");
    for version in versions.items() {
        let schema = version.get("schema").get("openAPIV3Schema");
        if !schema.is_object() {
            errors.push(schema.required(""));
        }
    }
    let preserves = spec.get("preserveUnknownFields");
    let schemas = || versions.items().map(|version| version.get("schema").get("openAPIV3Schema"));
    if preserves.is_true() && schemas().any(|schema| super::schemas::has_default(schema.value)) {
        errors.push(preserves.invalid("must be false in order to use defaults in the schema"));
    }
    for version in versions.items() {
        check("CustomResourceDefinitionVersion", &version, errors);
        for (field, rule) in PARTS.iter().filter(|(field, _)| shared(spec, field).is_none()) {
            rule(&version.get(field), errors);
        }
        let fields = version.get("selectableFields");
        let lacks_schema = !version.get("schema").get("openAPIV3Schema").is_object();
        if !fields.is_empty() && lacks_schema && shared(spec, "selectableFields").is_none() {
            let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.push(FieldError::invalid(&fields.path, "", detail));
        }
    }
    let names: BTreeSet<&str> = versions.items().map(|version| version.get("name").text()).collect();
    if names.len() != versions.len() {
        errors.push(FieldError::invalid(&versions.path, shown(spec), "must contain unique version names"));
    }
    if versions.items().filter(|version| version.get("storage").is_true()).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&versions.path, shown(spec), detail));
    }
    // Upstream keeps the name of the first version separately.
    if let Some(first) = versions.items().next().map(|version| version.get("name")).filter(|name| !name.is_empty()) {
        definition_label(&first.with(spec.path.child("version")), errors);
    }
}

/// Validates the warning of a deprecated version: a line of text.
pub(crate) fn printable(warning: &At<'_>, errors: &mut Errors) {
    if let Some((at, _)) = warning.text().char_indices().find(|(_, c)| c.is_control()) {
        let detail =
            format!("must only contain printable UTF-8 characters; non-printable character found at index {at}");
        errors.push(warning.invalid(detail));
    }
}

/// Validates a path in dot notation: `.spec.replicas`.
pub(crate) fn simple_path(at: &At<'_>, errors: &mut Errors) {
    if !at.text().starts_with('.') {
        errors.push(at.invalid("must be a simple json path starting with ."));
    }
}

/// Validates a path in dot notation below one of these.
fn path_below(at: &At<'_>, roots: &[&str], detail: &str, errors: &mut Errors) {
    simple_path(at, errors);
    if at.text().starts_with('.') && !roots.iter().any(|root| at.text().starts_with(root)) {
        errors.push(at.invalid(detail));
    }
}

pub(crate) fn path_below_spec(at: &At<'_>, errors: &mut Errors) {
    path_below(at, &[".spec."], "should be a json path under .spec", errors);
}

pub(crate) fn path_below_status(at: &At<'_>, errors: &mut Errors) {
    path_below(at, &[".status."], "should be a json path under .status", errors);
}

pub(crate) fn path_below_either(at: &At<'_>, errors: &mut Errors) {
    path_below(at, &[".spec.", ".status."], "should be a json path under either .spec or .status", errors);
}

fn validate_subresources(subresources: &At<'_>, errors: &mut Errors) {
    check("CustomResourceSubresources", subresources, errors);
}

fn validate_columns(columns: &At<'_>, errors: &mut Errors) {
    columns.each(errors, |column, e| check("CustomResourceColumnDefinition", column, e));
}

/// Validates the conversion. The errors name the fields of the stored form, which is flatter.
fn validate_conversion(conversion: &At<'_>, errors: &mut Errors) {
    let webhook = conversion.get("webhook");
    let client = webhook.get("clientConfig").with(conversion.path.child("webhookClientConfig"));
    let versions = webhook.get("conversionReviewVersions").with(conversion.path.child("conversionReviewVersions"));
    let strategy = conversion.get("strategy");
    strategy.must_be_one_of(errors, &["None", "Webhook"]);
    if strategy.text() != "Webhook" {
        const DETAIL: &str = "should not be set when strategy is not set to Webhook";
        for (at, _) in [(&client, client.is_object()), (&versions, !versions.is_empty())]
            .iter()
            .filter(|(_, annotated)| *annotated)
        {
            errors.push(at.forbidden(DETAIL));
        }
        return;
    }
    if client.is_object() {
        validate_client(&client, errors);
    } else {
        errors.push(client.required("required when strategy is set to Webhook"));
    }
    if versions.must(errors) {
        known_versions(&versions, errors);
    }
}

/// Validates that every stored version is still declared.
fn validate_stored_versions(object: &At<'_>, errors: &mut Errors) {
    let stored = object.get("status").get("storedVersions");
    let declared = object.get("spec").get("versions");
    if stored.is_empty() {
        // A new CustomResourceDefinition has no status yet; the server writes the storage version into it.
        if !declared.items().any(|version| version.get("storage").is_true()) {
            let detail = "must have at least one stored version";
            errors.push(FieldError::invalid(&stored.path, Value::Null, detail));
        }
        return;
    }
    // A name counts once, so that a second version of the same name is missing.
    let mut left: BTreeSet<&str> = stored.texts().collect();
    for version in declared.items() {
        let name = version.get("name").text();
        if !left.remove(name) && version.get("storage").is_true() {
            errors.push(stored.invalid(format!("must have the storage version {name}")));
        }
    }
    for version in stored.items().filter(|version| left.contains(version.text())) {
        let name = version.text();
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.push(version.invalid(detail));
    }
}

/// Validates the approval annotation, which names in community groups need.
fn validate_approval(object: &Value, old: Option<&Value>) -> Errors {
    let now = Approval::of(object);
    let before = old.and_then(Approval::of);
    let is_as_before = |now: &Approval| before.is_some_and(|before| before.reason() == now.reason());
    let Some(now) = now.filter(|now| !now.is_stated() && !is_as_before(now)) else {
        return Errors::new();
    };
    let path = Path::root("metadata").child("annotations").key(approval::ANNOTATION);
    match now {
        Approval::Missing => vec![FieldError::required(&path, now.message())],
        _ => vec![FieldError::invalid(&path, approval::annotation(object), now.message())],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn names_are_filled_in() {
        let kind = crate::lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions").expect("kind");
        let mut good = json!({"metadata": {"name": "foos.a.b"}, "spec": {"group": "a.b", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        kind.default(&mut good);
        assert_eq!(good["spec"]["names"]["singular"], "foo");
        assert_eq!(good["spec"]["names"]["listKind"], "FooList");
        assert_eq!(kind.validate(&good), []);
        good["spec"]["preserveUnknownFields"] = true.into();
        let reported =
            "spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema";
        let says_so = |definition: &corten_meta::Value| {
            kind.validate(definition).iter().any(|error| error.to_string() == reported)
        };
        assert!(!says_so(&good));
        good["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["default"]["default"] = 1.into();
        assert!(says_so(&good));
    }
}
