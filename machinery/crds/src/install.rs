//! The installation of CustomResourceDefinitions: creates those that a cluster lacks, and upgrades older ones.
//!
//! Invariant: a definition that is newer than ours stays as it is; the caller decides what is newer.

use corten_client::{Client, Error, Patch, Resource};
use corten_meta::Value;

/// Creates or upgrades CustomResourceDefinitions. One for which `keeps(installed, ours)` holds is not changed.
pub async fn install(
    client: &Client,
    definitions: &[Value],
    keeps: impl Fn(&Value, &Value) -> bool,
) -> Result<(), Error> {
    let resource = Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions", false);
    let installed = client.dynamic(&resource);
    for definition in definitions {
        let name = corten_meta::name(definition);
        match installed.get("", name).await {
            Err(error) if error.is_not_found() => match installed.post("", definition).await {
                // Another server of the cluster was faster.
                Err(error) if error.is_already_exists() => {}
                created => created?,
            },
            Err(error) => return Err(error),
            Ok(current) if keeps(&current, definition) || covers(&current, definition) => {}
            Ok(_) => installed.send_patch("", name, &Patch::Merge(definition.clone())).await?,
        }
    }
    Ok(())
}

/// Reports whether an object has all fields of another, with the same values. A null stands for an absent field.
pub fn covers(current: &Value, wanted: &Value) -> bool {
    match (current, wanted) {
        (Value::Object(current), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, value)| current.get(name).map_or(is_empty(value), |current| covers(current, value))),
        (Value::Array(current), Value::Array(wanted)) => {
            current.len() == wanted.len() && current.iter().zip(wanted).all(|(current, wanted)| covers(current, wanted))
        }
        (current, wanted) => current == wanted,
    }
}

/// Reports whether the API server may leave a value out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Reports whether a definition serves every version of another, with every field and as many rules. It is then as new,
/// or newer: for APIs whose definitions carry no version of their bundle.
pub fn provides(installed: &Value, ours: &Value) -> bool {
    let versions = |definition: &Value| definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let installed = versions(installed);
    versions(ours).iter().filter(|version| version["served"] == true).all(|version| {
        let same = installed.iter().find(|one| one["name"] == version["name"] && one["served"] == true);
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        same.is_some_and(|same| has_fields(&schema(same), &schema(version)))
    })
}

fn has_fields(installed: &Value, ours: &Value) -> bool {
    let rules = |schema: &Value| schema["x-kubernetes-validations"].as_array().map_or(0, Vec::len);
    let mut properties = ours["properties"].as_object().into_iter().flatten();
    let items = &ours["items"];
    rules(installed) >= rules(ours)
        && properties.all(|(name, schema)| {
            installed["properties"].get(name).is_some_and(|installed| has_fields(installed, schema))
        })
        && (items.is_null() || has_fields(&installed["items"], items))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_others_do_not_matter() {
        let current = json!({"a": 1, "b": {"c": [{"d": 1, "e": 2}]}});
        assert!(covers(&current, &json!({"a": 1, "b": {"c": [{"d": 1}]}, "f": null, "g": {}})));
        assert!(!covers(&current, &json!({"b": {"c": [{"d": 1}, {"d": 2}]}})));
        assert!(!covers(&current, &json!({"a": 2})));
        assert!(!covers(&current, &json!({"f": 1})));
    }

    #[test]
    fn a_definition_with_a_field_or_version_more_is_newer() {
        let of = |versions: &[&str], fields: &[&str]| {
            let properties: Value = fields.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
            let schema = json!({"openAPIV3Schema": {"properties": {"spec": {"properties": properties}}}});
            let version = |name: &&str| json!({"name": name, "served": true, "schema": schema});
            json!({"spec": {"versions": versions.iter().map(version).collect::<Vec<_>>()}})
        };
        let ours = of(&["v1"], &["a", "b"]);
        assert!(provides(&ours, &ours));
        assert!(provides(&of(&["v1", "v2"], &["a", "b", "c"]), &ours));
        assert!(!provides(&of(&["v1"], &["a"]), &ours));
        assert!(!provides(&of(&["v2"], &["a", "b"]), &ours));
    }
}
