//! The rules of a CustomResourceDefinition's names and versions; its schemas are judged where they are compiled.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use crate::cells::{list, text, truth};
use crate::validation::{invalid_each, required_word};

pub(super) fn validate_definition(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let mut errors = Vec::new();
    let (group, plural) = (text(object, "/spec/group"), text(object, "/spec/names/plural"));
    let wanted = format!("{plural}.{group}");
    let name = text(object, "/metadata/name");
    if name != wanted {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(&Path::root("metadata").child("name"), name, detail));
    }
    match group {
        "" => errors.push(FieldError::required(&path.child("group"), "")),
        _ if !group.contains('.') => {
            let detail = "should be a domain with at least one dot";
            errors.push(FieldError::invalid(&path.child("group"), group, detail));
        }
        _ => errors.extend(invalid_each(&path.child("group"), group, names::dns1123_subdomain(group))),
    }
    errors.extend(required_word(&object["spec"]["scope"], &path.child("scope"), &["Cluster", "Namespaced"]));
    errors.extend(validate_names(object, &path.child("names")));
    errors.extend(validate_versions(object, &path.child("versions")));
    errors
}

fn validate_names(object: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let names_ = &object["spec"]["names"];
    for field in ["plural", "singular"] {
        match text(names_, &format!("/{field}")) {
            "" if field == "plural" => errors.push(FieldError::required(&path.child(field), "")),
            "" => {}
            name => errors.extend(invalid_each(&path.child(field), name, names::dns1035_label(name))),
        }
    }
    for field in ["kind", "listKind"] {
        match text(names_, &format!("/{field}")) {
            "" => errors.push(FieldError::required(&path.child(field), "")),
            name => {
                let messages = names::dns1035_label(&name.to_lowercase());
                let detail = messages.first().map(|m| format!("may have mixed case, but should otherwise match: {m}"));
                errors.extend(detail.map(|d| FieldError::invalid(&path.child(field), name, d)));
            }
        }
    }
    let (kind, list_kind) = (text(names_, "/kind"), text(names_, "/listKind"));
    if !kind.is_empty() && kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(&path.child("listKind"), list_kind, detail));
    }
    errors
}

fn validate_versions(object: &Value, path: &Path) -> Vec<FieldError> {
    let versions = list(object, "/spec/versions");
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, version) in versions.iter().enumerate() {
        let path = path.index(at);
        let name = text(version, "/name");
        errors.extend(invalid_each(&path.child("name"), name, names::dns1035_label(name)));
        if !seen.insert(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, "must contain unique version names"));
        }
        if !version.pointer("/schema/openAPIV3Schema").is_some_and(Value::is_object) {
            errors.push(FieldError::required(&path.child("schema").child("openAPIV3Schema"), "schemas are required"));
        }
    }
    if versions.iter().filter(|v| truth(v, "/storage")).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(path, Value::from(versions.to_vec()), detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn definitions() {
        let kind = crate::lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions").expect("kind");
        let mut good = json!({"metadata": {"name": "foos.a.b"}, "spec": {"group": "a.b", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        kind.default(&mut good);
        assert_eq!(good["spec"]["names"]["singular"], "foo");
        assert_eq!(good["spec"]["names"]["listKind"], "FooList");
        assert_eq!(kind.validate(&good), []);
        good["metadata"]["name"] = "x".into();
        good["spec"]["versions"][0]["storage"] = false.into();
        assert_eq!(kind.validate(&good).len(), 2);
    }
}
