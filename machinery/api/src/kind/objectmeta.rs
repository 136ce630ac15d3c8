//! The rules of `metadata` that every kind shares: names, labels, annotations, owners, finalizers.

use corten_meta::field::{FieldError, Path};
use corten_meta::quote::{is_printable, quote};
use corten_meta::{Value, names};

use super::{Kind, NameRule};
use crate::cells::{boolean, list, number, text};
use crate::validation::{immutable, invalid_each, labels};

/// The limit of all annotations of an object together, keys and values.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// The longest name of a field manager, and of its subresource.
pub const MAX_MANAGER: usize = 128;
const MAX_SUBRESOURCE: usize = 256;

/// Validates a new object's metadata.
pub fn validate(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let metadata = Path::root("metadata");
    let mut errors = validate_names(kind, object, &metadata);
    errors.extend(validate_namespace(kind, object, &metadata));
    errors.extend(validate_content(object, &metadata));
    errors.extend(validate_own_finalizers(kind, object));
    errors
}

/// Validates the name by the rule of all names.
pub(crate) fn validate_name(object: &Value) -> Vec<FieldError> {
    let name = text(object, "/metadata/name");
    invalid_each(&Path::root("metadata").child("name"), name, names::path_segment_name(name))
}

/// Validates the metadata of an embedded resource, which need not have a name.
pub fn validate_embedded(resource: &Value, metadata: &Path) -> Vec<FieldError> {
    let [name, prefix, namespace] =
        ["name", "generateName", "namespace"].map(|field| text(resource, &format!("/metadata/{field}")).to_string());
    let mut errors = Vec::new();
    for (field, value, messages) in [
        ("generateName", &prefix, names::path_segment_name(&masked(&prefix))),
        ("name", &name, names::path_segment_name(&name)),
        ("namespace", &namespace, names::dns1123_label(&namespace)),
    ] {
        if !value.is_empty() {
            errors.extend(invalid_each(&metadata.child(field), value, messages));
        }
    }
    errors.extend(validate_content(resource, metadata));
    errors
}

/// Validates the metadata of an existing object, except its name.
pub fn validate_present(rule: NameRule, object: &Value) -> Vec<FieldError> {
    let metadata = Path::root("metadata");
    let mut errors = validate_prefix(rule, object, &metadata);
    errors.extend(validate_content(object, &metadata));
    errors
}

/// Validates the complete metadata of an existing object, by the rule of its kind: an old release may have accepted its
/// name. `common` are the errors that every kind has.
pub fn validate_complete(kind: &Kind, object: &Value, common: &[FieldError]) -> Vec<FieldError> {
    let metadata = Path::root("metadata");
    let names = validate_names(kind, object, &metadata);
    match names.is_empty() && object["metadata"].get("generateName").is_none() {
        true => common.to_vec(),
        false => [names, validate_content(object, &metadata)].concat(),
    }
}

/// Validates a change of metadata, and the new metadata except its finalizers.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let metadata = Path::root("metadata");
    let mut errors = Vec::new();
    if !text(old, "/metadata/deletionTimestamp").is_empty() {
        errors.extend(no_new_finalizers(new, old, &metadata.child("finalizers")));
    }
    let generation = number(new, "/metadata/generation");
    let before = number(old, "/metadata/generation");
    if generation < before {
        errors.push(FieldError::invalid(&metadata.child("generation"), generation, "must not be decremented"));
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if new["metadata"].get(field) == old["metadata"].get(field) {
            continue;
        }
        errors.extend(immutable(new, old, &format!("/metadata/{field}"), &metadata.child(field)));
    }
    errors.extend(validate_shared(new, &metadata));
    errors.extend(validate_managers(&new["metadata"], &metadata));
    errors
}

/// The groups whose objects may have finalizers without a domain; custom resources may too.
const ANY_FINALIZER: [&str; 6] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "policy",
];

/// Validates that finalizers without a domain are the server's own.
pub fn validate_own_finalizers(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let is_core_event = kind.group.is_empty() && kind.kind == "Event";
    if kind.schema.is_empty() || is_core_event || ANY_FINALIZER.contains(&kind.group.as_str()) {
        return Vec::new();
    }
    if object["metadata"].get("finalizers").is_none() {
        return Vec::new();
    }
    let path = Path::root("metadata").child("finalizers");
    let finalizers = list(object, "/metadata/finalizers").iter().filter_map(Value::as_str).enumerate();
    finalizers.filter_map(|(at, finalizer)| unknown_finalizer(finalizer, &path.index(at))).collect()
}

/// Returns the errors of a name, by the kind's rule. With `prefix`, the name is only a prefix.
pub fn name_errors(rule: NameRule, name: &str, prefix: bool) -> Vec<String> {
    let name = if prefix { masked(name) } else { name.to_string() };
    match rule {
        NameRule::Subdomain => names::dns1123_subdomain(&name),
        NameRule::SubdomainInBytes => {
            let messages = names::dns1123_subdomain(&name).into_iter();
            messages.map(|message| message.replace("253 characters", "253 bytes")).collect()
        }
        NameRule::Label => names::dns1123_label(&name),
        NameRule::Label1035 => names::dns1035_label(&name),
        NameRule::PathSegment | NameRule::Own => names::path_segment_name(&name),
        NameRule::Ip => names::ip(&name),
        NameRule::None => Vec::new(),
    }
}

/// Returns a prefix without its trailing dash, which is allowed.
fn masked(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(start) if !start.is_empty() => format!("{}a", start.trim_end_matches('-')),
        _ => prefix.to_string(),
    }
}

fn validate_names(kind: &Kind, object: &Value, metadata: &Path) -> Vec<FieldError> {
    let name = text(object, "/metadata/name");
    let rule = kind.rules.name_rule;
    let mut errors = validate_prefix(rule, object, metadata);
    if name.is_empty() {
        errors.push(FieldError::required(&metadata.child("name"), "name or generateName is required"));
    } else {
        errors.extend(invalid_each(&metadata.child("name"), name, name_errors(rule, name, false)));
    }
    errors
}

fn validate_prefix(rule: NameRule, object: &Value, metadata: &Path) -> Vec<FieldError> {
    let prefix = text(object, "/metadata/generateName");
    // The newer rules check only the generated name.
    if prefix.is_empty() || rule == NameRule::SubdomainInBytes {
        return Vec::new();
    }
    invalid_each(&metadata.child("generateName"), prefix, name_errors(rule, prefix, true))
}

fn validate_namespace(kind: &Kind, object: &Value, metadata: &Path) -> Vec<FieldError> {
    let namespace = text(object, "/metadata/namespace");
    let path = metadata.child("namespace");
    match (kind.namespaced, namespace.is_empty()) {
        (true, true) => vec![FieldError::required(&path, "")],
        (true, false) => invalid_each(&path, namespace, names::dns1123_label(namespace)),
        (false, false) => vec![FieldError::forbidden(&path, "not allowed on this type")],
        (false, true) => Vec::new(),
    }
}

fn validate_content(object: &Value, metadata: &Path) -> Vec<FieldError> {
    let content = &object["metadata"];
    let mut errors = Vec::new();
    if content["generation"].as_i64().is_some_and(|generation| generation < 0) {
        errors.extend(crate::validation::nonnegative(&content["generation"], &metadata.child("generation")));
    }
    errors.extend(validate_shared(object, metadata));
    if content.get("finalizers").is_some() {
        errors.extend(validate_finalizers(object, &metadata.child("finalizers")));
    }
    errors.extend(validate_managers(content, metadata));
    errors
}

/// Validates the name of a field manager.
pub fn validate_manager(manager: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if manager.len() > MAX_MANAGER {
        errors.push(FieldError::too_long(path, MAX_MANAGER));
    }
    for (at, character) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(character));
        errors.push(FieldError::invalid(path, manager, detail));
    }
    errors
}

/// Validates field managers, which a client may have written; unreadable entries were dropped before.
fn validate_managers(content: &Value, metadata: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let entries = content["managedFields"].as_array().into_iter().flatten().enumerate();
    for (at, entry) in entries {
        let [manager, subresource] = ["manager", "subresource"].map(|field| entry[field].as_str().unwrap_or_default());
        // Nearly all names are plain ASCII.
        let is_plain = manager.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if manager.len() <= MAX_MANAGER && subresource.len() <= MAX_SUBRESOURCE && is_plain {
            continue;
        }
        let path = metadata.child("managedFields").index(at);
        errors.extend(validate_manager(manager, &path.child("manager")));
        if subresource.len() > MAX_SUBRESOURCE {
            errors.push(FieldError::too_long(&path.child("subresource"), MAX_SUBRESOURCE));
        }
    }
    errors
}

/// Validates the rules of both new and changed metadata.
fn validate_shared(object: &Value, metadata: &Path) -> Vec<FieldError> {
    let content = &object["metadata"];
    let mut errors = Vec::new();
    // No path is made for an absent field: this runs twice for every write of every object.
    if content.get("labels").is_some() {
        errors.extend(labels(&content["labels"], &metadata.child("labels")));
    }
    if content.get("annotations").is_some() {
        errors.extend(validate_annotations(&content["annotations"], &metadata.child("annotations")));
    }
    if content.get("ownerReferences").is_some() {
        errors.extend(validate_owners(object, &metadata.child("ownerReferences")));
    }
    errors
}

/// Validates annotations, also those of a pod template.
pub(crate) fn validate_annotations(annotations: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut total = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        errors.extend(invalid_each(path, key, names::qualified_name(&key.to_lowercase())));
        total += key.len() + value.as_str().unwrap_or_default().len();
    }
    if total > MAX_ANNOTATION_BYTES {
        errors.push(FieldError::too_long(path, MAX_ANNOTATION_BYTES));
    }
    errors
}

fn validate_owners(object: &Value, path: &Path) -> Vec<FieldError> {
    let owners = list(object, "/metadata/ownerReferences");
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    for owner in owners {
        let version = text(owner, "/apiVersion");
        if version.is_empty() || version.ends_with('/') || version.matches('/').count() > 1 {
            errors.push(FieldError::invalid(&path.child("apiVersion"), version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, &format!("/{field}")).is_empty() {
                errors.push(FieldError::invalid(&path.child(field), "", "must not be empty"));
            }
        }
        if version == "v1" && text(owner, "/kind") == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner.clone(), detail));
        }
        if boolean(owner, "/controller") {
            let name = format!("{}/{}", text(owner, "/kind"), text(owner, "/name"));
            if let Some(first) = &controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errors.push(FieldError::invalid(path, Value::from(owners.to_vec()), detail));
            } else {
                controller = Some(name);
            }
        }
    }
    errors
}

fn validate_finalizers(object: &Value, path: &Path) -> Vec<FieldError> {
    let finalizers = list(object, "/metadata/finalizers");
    let mut errors: Vec<FieldError> = finalizers
        .iter()
        .filter_map(Value::as_str)
        .flat_map(|f| invalid_each(path, f, names::qualified_name(f)))
        .collect();
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, Value::from(finalizers.to_vec()), detail));
    }
    errors
}

/// Reports whether a finalizer has no domain and is not one of the server's own.
fn unknown_finalizer(finalizer: &str, path: &Path) -> Option<FieldError> {
    let own = ["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer);
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    (!finalizer.contains('/') && !own).then(|| FieldError::invalid(path, finalizer, detail))
}

/// Returns the errors of a finalizer of a namespace's spec.
pub(crate) fn finalizer_errors(finalizer: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = invalid_each(path, finalizer, names::qualified_name(finalizer));
    errors.extend(unknown_finalizer(finalizer, path));
    errors
}

fn no_new_finalizers(new: &Value, old: &Value, path: &Path) -> Option<FieldError> {
    let before = list(old, "/metadata/finalizers");
    let mut extra: Vec<&str> =
        list(new, "/metadata/finalizers").iter().filter(|f| !before.contains(f)).filter_map(Value::as_str).collect();
    extra.sort_unstable();
    let quoted = extra.iter().map(quote).collect::<Vec<_>>().join(", ");
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{quoted}}}"
    );
    (!extra.is_empty()).then(|| FieldError::forbidden(path, detail))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(plural: &str, metadata: Value) -> Vec<String> {
        let kind = crate::lookup("", "v1", plural).expect("kind");
        let errors = validate(kind, &json!({ "metadata": metadata }));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_of_managers_are_printable() {
        for (characters, printable) in [
            ("aé€\u{1f600} \"\\\u{300}", true),
            ("\u{7f}\u{a0}\u{ad}\u{378}\u{200b}\u{2028}\u{3000}\u{e000}\u{feff}", false),
        ] {
            characters.chars().for_each(|character| assert_eq!(is_printable(character), printable, "{character:?}"));
        }
    }

    #[test]
    fn managers_of_fields() {
        let long = |field: &str, length: usize| json!([{"manager": "m"}, {field: "x".repeat(length)}]);
        for (entries, wanted) in [
            (long("manager", 128), None),
            (long("manager", 129), Some("metadata.managedFields[1].manager: Too long: may not be more than 128 bytes")),
            (long("subresource", 256), None),
            (
                long("subresource", 257),
                Some("metadata.managedFields[1].subresource: Too long: may not be more than 256 bytes"),
            ),
        ] {
            let found = check("nodes", json!({"name": "a", "managedFields": entries}));
            assert_eq!(found, wanted.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn names_and_namespaces() {
        assert!(check("pods", json!({"name": "a.b", "namespace": "default"})).is_empty());
        assert_eq!(
            check("pods", json!({"namespace": "default"})),
            ["metadata.name: Required value: name or generateName is required"]
        );
        assert_eq!(check("pods", json!({"name": "a"})), ["metadata.namespace: Required value"]);
        assert_eq!(
            check("nodes", json!({"name": "a", "namespace": "x"})),
            ["metadata.namespace: Forbidden: not allowed on this type"]
        );
        let errors = check("services", json!({"name": "a.b", "namespace": "x"}));
        assert_eq!(errors, ["metadata.name: Invalid value: \"a.b\": must not contain dots"]);
        assert!(check("pods", json!({"name": "a", "generateName": "a-", "namespace": "x"})).is_empty());
    }

    #[test]
    fn owners_finalizers_annotations() {
        let owner =
            |name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": "u", "controller": true});
        let errors = check("nodes", json!({"name": "a", "ownerReferences": [owner("x"), owner("y")]}));
        assert!(errors[0].contains("references for Node/x and Node/y"), "{errors:?}");
        for (version, wanted) in [("v1", 0), ("apps/v1", 0), ("/v1", 0), ("", 1), ("apps/", 1), ("http://a/b", 1)] {
            let owner = json!({"apiVersion": version, "kind": "Node", "name": "a", "uid": "u"});
            let errors = check("nodes", json!({"name": "a", "ownerReferences": [owner]}));
            assert_eq!(errors.len(), wanted, "{version}: {errors:?}");
        }
        let big = "x".repeat(MAX_ANNOTATION_BYTES);
        assert_eq!(
            check("nodes", json!({"name": "a", "annotations": {"a": big}})),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
        assert_eq!(check("nodes", json!({"name": "a", "finalizers": ["orphan", "foregroundDeletion"]})).len(), 1);
    }

    #[test]
    fn immutable_metadata() {
        let old = json!({"metadata": {"name": "a", "uid": "1", "generation": 2, "deletionTimestamp": "t"}});
        let new = json!({"metadata": {"name": "b", "uid": "2", "generation": 1, "deletionTimestamp": "t",
            "finalizers": ["x/y"]}});
        let errors: Vec<String> = validate_update(&new, &old).iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, \
                 found new finalizers []string{\"x/y\"}",
                "metadata.generation: Invalid value: 1: must not be decremented",
                "metadata.name: Invalid value: \"b\": field is immutable",
                "metadata.uid: Invalid value: \"2\": field is immutable",
            ]
        );
    }
}
