//! The OpenAPI documents, derived from the kinds and the schema table.
//!
//! Version 3 has one document per group version; clients read it to explain, to patch and to find the query parameters
//! of an operation. Version 2 has the same in one document and an older form, made from version 3. Descriptions come in
//! as a function, because the table has facts only.

mod custom;
mod parameters;
mod paths;
mod protobuf;
mod protobuf_v3;
mod roots;
mod schemas;
mod v2;

use std::collections::BTreeSet;

use corten_meta::Value;
use serde_json::{Map, json};

use crate::emulation::MinorVersion;
use crate::kind::Kind;
use crate::registry::kinds_at;
use crate::schema::schema;

pub use custom::{custom_v2, custom_v3, definition_name};
pub use protobuf::encode_v2;
pub use protobuf_v3::encode_v3;
pub use roots::root_paths;

/// A function that returns the description of a field of a type, or with an empty field that of the type.
pub type Describe<'a> = dyn Fn(&str, &str) -> Option<&'a str> + 'a;

/// Returns no descriptions.
pub fn undescribed(_type_name: &str, _field: &str) -> Option<&'static str> {
    None
}

/// Returns the group versions of a version's built-in kinds, `v1` or `apps/v1`, in the order of discovery.
pub fn group_versions(version: MinorVersion) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for kind in kinds_at(version) {
        let group_version = kind.api_version();
        if !all.contains(&group_version) {
            all.push(group_version);
        }
    }
    all
}

/// Returns the version 3 document of one group version; `None` if no built-in kind of the version has it.
pub fn openapi_v3(at: MinorVersion, group_version: &str, describe: &Describe) -> Option<Value> {
    let kinds = kinds_at(at);
    let of_group: Vec<&Kind> = kinds.iter().map(AsRef::as_ref).filter(|k| k.api_version() == group_version).collect();
    let group = &of_group.first()?.group;
    let version = &of_group.first()?.version;
    Some(document(at, paths::document_paths(group, version, &of_group), (group, version), describe))
}

/// Returns the version 3 document of a path that belongs to no group version: one of [`root_paths`].
pub fn root_v3(at: MinorVersion, root: &str, describe: &Describe) -> Value {
    document(at, roots::root_document_paths(root), ("", ""), describe)
}

/// Returns a document of these paths and of all types that they refer to.
fn document(at: MinorVersion, paths: Map<String, Value>, own: (&str, &str), describe: &Describe) -> Value {
    let mut roots = BTreeSet::new();
    collect_references(&Value::Object(paths.clone()), &mut roots);
    let schemas: Map<String, Value> = schemas::reachable(schema(), &roots)
        .into_iter()
        .map(|t| (t.name.clone(), schemas::type_schema(t, own, describe)))
        .collect();
    let mut components = json!({ "securitySchemes": security() });
    if !schemas.is_empty() {
        components["schemas"] = schemas.into();
    }
    json!({"openapi": "3.0.0", "info": info(at), "paths": paths, "components": components})
}

/// Returns the version 2 document of everything.
pub fn openapi_v2(at: MinorVersion, describe: &Describe) -> Value {
    let documents = group_versions(at).into_iter().filter_map(|gv| openapi_v3(at, &gv, describe));
    let roots = root_paths(at).into_iter().map(|root| root_v3(at, &root, describe));
    v2::convert(documents.chain(roots), info(at), security())
}

fn info(at: MinorVersion) -> Value {
    json!({"title": "Kubernetes", "version": at.to_string()})
}

fn security() -> Value {
    json!({"BearerToken": {
        "description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey",
    }})
}

/// Collects the names of all types that a part of a document refers to.
fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                match inner.as_str() {
                    Some(reference) if key == "$ref" => {
                        found.extend(reference.rsplit('/').next().map(str::to_string));
                    }
                    _ => collect_references(inner, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| collect_references(inner, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_version_has_a_document_that_is_closed() {
        assert_eq!(group_versions(MinorVersion::NEWEST).len(), 22);
        for group_version in group_versions(MinorVersion::NEWEST) {
            let document = openapi_v3(MinorVersion::NEWEST, &group_version, &undescribed).expect("a document");
            let mut wanted = BTreeSet::new();
            collect_references(&document, &mut wanted);
            for name in wanted {
                assert!(document["components"]["schemas"].get(&name).is_some(), "{group_version}: {name}");
            }
        }
        assert!(openapi_v3(MinorVersion::NEWEST, "apps/v2", &undescribed).is_none());
    }

    #[test]
    fn operations_and_values_are_published() {
        let describe = |_: &str, field: &str| (field == "restartPolicy").then_some("a policy");
        let document = openapi_v3(MinorVersion::NEWEST, "v1", &describe).expect("a document");
        let policy = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["restartPolicy"];
        let values = " - `\"Always\"`\n - `\"Never\"`\n - `\"OnFailure\"`";
        assert_eq!(policy["description"], format!("a policy\n\nPossible enum values:\n{values}"));
        let pods = "/api/v1/namespaces/{namespace}/pods";
        for (path, method, says) in [
            (pods.to_owned(), "get", "list or watch objects of kind Pod"),
            (pods.to_owned(), "delete", "delete collection of Pod"),
            (pods.replace("pods", "events"), "post", "create an Event"),
            (pods.replace("pods", "endpoints"), "post", "create Endpoints"),
            (format!("{pods}/{{name}}"), "patch", "partially update the specified Pod"),
            (format!("{pods}/{{name}}/status"), "put", "replace status of the specified Pod"),
            (format!("{pods}/{{name}}/binding"), "post", "create binding of a Pod"),
            (format!("{pods}/{{name}}/proxy/{{path}}"), "head", "connect HEAD requests to proxy of Pod"),
        ] {
            assert_eq!(document["paths"][&path][method]["description"], says, "{path}");
        }
    }

    #[test]
    fn descriptions_are_added_to_types_and_fields() {
        let describe = |type_name: &str, field: &str| match (type_name, field) {
            ("io.k8s.api.apps.v1.Deployment", "") => Some("a type"),
            ("io.k8s.api.apps.v1.Deployment", "spec") => Some("a field"),
            _ => None,
        };
        let document = openapi_v3(MinorVersion::NEWEST, "apps/v1", &describe).expect("a document");
        let deployment = &document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(deployment["description"], "a type");
        assert_eq!(
            deployment["properties"]["spec"],
            json!({"description": "a field", "default": {},
                   "allOf": [{"$ref": "#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"}]})
        );
    }

    #[test]
    fn version_two_has_the_older_form() {
        let document = openapi_v2(MinorVersion::NEWEST, &undescribed);
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Deployment");
        assert_eq!(patch["parameters"][0]["in"], "body");
        assert!(
            document["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]["x-kubernetes-patch-merge-key"]
                == "name"
        );
        let text = document.to_string();
        assert!(!text.contains("#/components/") && !text.contains("\"allOf\":["));
    }
}
