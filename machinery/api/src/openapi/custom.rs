//! The documents of custom resources: the paths of any kind, and schemas from their CustomResourceDefinitions.

use std::collections::BTreeSet;

use corten_meta::Value;
use serde_json::{Map, json};

use super::{Describe, collect_references, info, paths, schemas, security, v2};
use crate::emulation::MinorVersion;
use crate::kind::Kind;
use crate::schema::schema as table;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// A type whose descriptions of the common fields apply to any object.
const EXAMPLE: &str = "io.k8s.api.core.v1.ConfigMap";
const GVK: &str = "x-kubernetes-group-version-kind";
const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// Returns the name of a custom kind's schema in the documents: `com.example.v1.Widget`.
pub fn definition_name(kind: &Kind) -> String {
    let mut package: Vec<&str> = kind.group.split('.').rev().collect();
    package.extend([kind.version.as_str(), kind.kind.as_str()]);
    package.join(".")
}

/// Returns the version 3 document of one group version; `None` if no kind has it.
pub fn custom_v3(group_version: &str, kinds: &[&Kind], describe: &Describe) -> Option<Value> {
    let of_group: Vec<Kind> = kinds.iter().filter(|k| k.api_version() == group_version).map(|k| named(k)).collect();
    let first = of_group.first()?;
    let group = first.group.as_str();
    let version = first.version.as_str();
    let mut paths = paths::document_paths(group, version, &of_group.iter().collect::<Vec<_>>());
    paths.values_mut().for_each(drop_media);
    simplify_paths(&mut paths, &format!("/apis/{group}/{version}/"));
    let mut own = Map::new();
    for kind in &of_group {
        own.insert(kind.schema.clone(), object_schema(kind, describe));
        own.insert(list_name(kind), list_schema(kind, describe));
    }
    let mut roots = BTreeSet::new();
    collect_references(&Value::Object(paths.clone()), &mut roots);
    collect_references(&Value::Object(own.clone()), &mut roots);
    let mut all: Map<String, Value> = schemas::reachable(table(), &roots)
        .into_iter()
        .map(|t| (t.name.clone(), schemas::type_schema(t, (group, version), describe)))
        .collect();
    schemas::list_every_group(&mut all, true);
    all.extend(own);
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
        "paths": paths,
        "components": {"schemas": all},
    }))
}

/// Returns the paths and definitions of custom kinds for the version 2 document.
pub fn custom_v2(kinds: &[&Kind], describe: &Describe) -> Value {
    let versions: BTreeSet<String> = kinds.iter().map(|k| k.api_version()).collect();
    let documents = versions.iter().filter_map(|version| custom_v3(version, kinds, describe));
    let mut document = v2::convert(documents, info(MinorVersion::NEWEST), security());
    for path in document["paths"].as_object_mut().into_iter().flatten().filter_map(|(_, path)| path.as_object_mut()) {
        for (_, operation) in path.iter_mut().filter(|(_, it)| it["consumes"] == json!(["*/*"])) {
            operation["consumes"] = json!(["application/json", "application/yaml"]);
        }
    }
    let mut definitions = Map::new();
    for kind in kinds.iter().map(|k| named(k)) {
        let list = list_name(&kind);
        definitions.insert(list.clone(), document["definitions"][&list].take());
        definitions.insert(kind.schema.clone(), object_definition(&kind, describe));
    }
    json!({"paths": document["paths"].take(), "definitions": definitions})
}

/// Drops protobuf and strategic merge patch, which custom resources do not support: a client that reads otherwise would
/// send refused requests.
fn drop_media(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            if let Some(Value::Object(content)) = fields.get_mut("content") {
                content.retain(|media, _| !media.contains("protobuf") && !media.contains("strategic"));
            }
            fields.values_mut().for_each(drop_media);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_media),
        _ => {}
    }
}

/// Simplifies paths: custom resources have no list of the resources and no watches, and a collection is deleted with
/// the parameters of a list.
fn simplify_paths(paths: &mut Map<String, Value>, root: &str) {
    let watches = format!("{root}watch/");
    paths.retain(|path, _| path != root && !path.starts_with(&watches));
    let listing = paths.values().find_map(|path| path.pointer("/get/parameters").and_then(Value::as_array)).cloned();
    let listing = listing.unwrap_or_default();
    let at_version: Vec<Value> = listing.iter().filter(|p| p["name"] == "resourceVersion").cloned().collect();
    let owners: Vec<(String, Value)> =
        paths.iter().map(|(path, item)| (format!("{path}/scale"), item["get"][GVK].clone())).collect();
    for (path, item) in paths.iter_mut() {
        let is_item = path.contains("{name}");
        let owner = owners.iter().find(|(scale, _)| scale == path).map(|(_, gvk)| gvk);
        for (method, operation) in item.as_object_mut().into_iter().flatten().filter(|(_, it)| it.is_object()) {
            match (method.as_str(), is_item) {
                ("get", true) if !at_version.is_empty() => operation["parameters"] = at_version.clone().into(),
                ("get", false) => {
                    let says = operation["description"].as_str().unwrap_or_default();
                    operation["description"] = says.replacen("list or watch ", "list ", 1).into();
                }
                ("delete", false) => {
                    operation["parameters"] = listing.clone().into();
                    operation.as_object_mut().map(|fields| fields.remove("requestBody"));
                }
                ("patch", _) => {
                    operation["responses"].as_object_mut().map(|codes| codes.remove("201"));
                }
                _ => {}
            }
            if let Some(owner) = owner {
                operation[GVK] = owner.clone();
            }
            simplify_media(operation);
        }
    }
}

/// Simplifies media types: bodies are JSON or YAML, and a list does not stream.
fn simplify_media(operation: &mut Value) {
    if let Some(content) = operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut)
        && let Some(any) = content.remove("*/*")
    {
        content.insert("application/json".to_owned(), any.clone());
        content.insert("application/yaml".to_owned(), any);
    }
    if let Some(content) = operation.pointer_mut("/responses/200/content").and_then(Value::as_object_mut) {
        content.retain(|media, _| !media.contains("stream"));
    }
}

/// Returns the kind under the name of its schema.
fn named(kind: &Kind) -> Kind {
    Kind { schema: definition_name(kind), ..kind.clone() }
}

fn list_name(kind: &Kind) -> String {
    let package = kind.schema.rsplit_once('.').map_or("", |(package, _)| package);
    format!("{package}.{}", kind.list_kind)
}

fn gvk(kind: &Kind, name: &str) -> Value {
    json!([{"group": kind.group, "version": kind.version, "kind": name}])
}

/// Returns the schema of a string field that every object has.
fn word(field: &str, describe: &Describe) -> Value {
    json!({"type": "string", "description": describe(EXAMPLE, field).unwrap_or_default()})
}

fn metadata(describe: &Describe, is_v2: bool) -> Value {
    let description = describe(EXAMPLE, "metadata").unwrap_or_default();
    if is_v2 {
        return json!({"description": description, "$ref": format!("#/definitions/{META}.ObjectMeta")});
    }
    json!({"description": description, "allOf": [{"$ref": format!("#/components/schemas/{META}.ObjectMeta")}]})
}

fn object_schema(kind: &Kind, describe: &Describe) -> Value {
    let declared = kind.behaviour.structural_schema().filter(|schema| schema.is_object());
    let mut schema = declared.cloned().unwrap_or_else(|| json!({"type": "object"}));
    if declared.is_some() {
        add_common_fields(&mut schema, describe, false);
    }
    schema[GVK] = gvk(kind, &kind.kind);
    name_selectable(&mut schema, kind);
    schema
}

/// Lists the selectable fields.
fn name_selectable(schema: &mut Value, kind: &Kind) {
    let fields: Vec<Value> = kind.selectable_fields.iter().map(|field| json!({"fieldPath": field})).collect();
    if !fields.is_empty() {
        schema["x-kubernetes-selectable-fields"] = fields.into();
    }
}

/// Returns the schema for version 2, which is simpler. Where unknown fields are preserved, known ones must not be
/// published: clients would refuse the others.
fn object_definition(kind: &Kind, describe: &Describe) -> Value {
    let declared = kind.behaviour.structural_schema().filter(|schema| schema.is_object());
    let mut schema = match declared {
        Some(schema) if !keeps_unknown(schema) => {
            let mut schema = simplified(schema);
            add_common_fields(&mut schema, describe, true);
            schema
        }
        _ => json!({"type": "object"}),
    };
    schema[GVK] = gvk(kind, &kind.kind);
    name_selectable(&mut schema, kind);
    schema
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Adds type and metadata to the root and to every embedded resource.
fn add_common_fields(schema: &mut Value, describe: &Describe, is_v2: bool) {
    add_embedded(schema, describe, is_v2);
    set_common_fields(schema, describe, is_v2);
}

fn set_common_fields(schema: &mut Value, describe: &Describe, is_v2: bool) {
    let fields = [
        ("apiVersion", word("apiVersion", describe)),
        ("kind", word("kind", describe)),
        ("metadata", metadata(describe, is_v2)),
    ];
    for (name, field) in fields {
        schema["properties"][name] = field;
    }
}

fn add_embedded(schema: &mut Value, describe: &Describe, is_v2: bool) {
    for inner in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        add_embedded(inner.1, describe, is_v2);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key).filter(|inner| inner.is_object()) {
            add_embedded(inner, describe, is_v2);
        }
    }
    if schema["x-kubernetes-embedded-resource"] == true && !(is_v2 && keeps_unknown(schema)) {
        set_common_fields(schema, describe, is_v2);
        for (name, says) in [
            ("apiVersion", "defines the versioned schema of this representation of an object. More info: "),
            ("kind", "is a string value representing the type of this object. In CamelCase. More info: "),
        ] {
            let anchor = if name == "kind" { "types-kinds" } else { "resources" };
            schema["properties"][name]["description"] = format!("{name} {says}{CONVENTIONS}#{anchor}").into();
        }
        let mut required = schema["required"].as_array().cloned().unwrap_or_default();
        let missing = ["kind", "apiVersion"].map(Value::from).into_iter().filter(|name| !required.contains(name));
        let missing: Vec<Value> = missing.collect();
        required.extend(missing);
        schema["required"] = required.into();
    }
    if schema["x-kubernetes-int-or-string"] == true && !is_v2 && schema.get("anyOf").is_none() {
        schema["anyOf"] = json!([{"type": "integer"}, {"type": "string"}]);
    }
}

/// Returns a schema without the keywords that version 2 does not have.
fn simplified(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else { return schema.clone() };
    let mut out = Map::new();
    let nullable = schema["nullable"] == true;
    let untyped = nullable || keeps_unknown(schema);
    for (key, value) in object {
        let converted = match key.as_str() {
            "allOf" | "oneOf" | "anyOf" | "not" | "nullable" | "default" => continue,
            "items" | "properties" if untyped => continue,
            "type" if nullable || (keeps_unknown(schema) && value == "object") => continue,
            "type" if value == "array" && (untyped || schema.get("items").is_none()) => continue,
            "properties" => value
                .as_object()
                .map(|fields| fields.iter().map(|(name, field)| (name.clone(), simplified(field))).collect())
                .map_or_else(|| value.clone(), Value::Object),
            "items" | "additionalProperties" => simplified(value),
            "required" => {
                let is_null =
                    |name: &Value| schema["properties"][name.as_str().unwrap_or_default()]["nullable"] == true;
                let left: Vec<Value> =
                    value.as_array().into_iter().flatten().filter(|name| !is_null(name)).cloned().collect();
                if left.is_empty() {
                    continue;
                }
                left.into()
            }
            _ => value.clone(),
        };
        out.insert(key.clone(), converted);
    }
    Value::Object(out)
}

fn list_schema(kind: &Kind, describe: &Describe) -> Value {
    let mut schema = json!({
        "description": format!("{} is a list of {}", kind.list_kind, kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": word("apiVersion", describe),
            "kind": word("kind", describe),
            "metadata": {
                "description": format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds"),
                "allOf": [{"$ref": format!("#/components/schemas/{META}.ListMeta")}],
            },
            "items": {
                "description": format!("List of {}. More info: {CONVENTIONS}", kind.plural),
                "type": "array",
                "items": {"$ref": format!("#/components/schemas/{}", kind.schema)},
            },
        },
        GVK: gvk(kind, &kind.list_kind),
    });
    name_selectable(&mut schema, kind);
    schema
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kind::Behaviour;
    use crate::openapi::undescribed;

    struct Custom(Value);
    impl Behaviour for Custom {
        fn structural_schema(&self) -> Option<&Value> {
            Some(&self.0)
        }
    }

    fn kind(schema: Value) -> Kind {
        Kind { behaviour: Arc::new(Custom(schema)), ..Kind::new("a.example.com", "v1", "Foo", "foos") }
    }

    #[test]
    fn a_crd_is_published_in_both_versions() {
        let foo = kind(json!({"type": "object", "description": "a foo", "required": ["spec", "none"], "properties": {
            "spec": {"type": "object", "properties": {"free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"x": {"type": "string"}}}}},
            "none": {"type": "string", "nullable": true}}, "oneOf": [{"required": ["spec"]}]}));
        let name = "com.example.a.v1.Foo";
        let document = custom_v3("a.example.com/v1", &[&foo], &undescribed).expect("a document");
        let published = &document["components"]["schemas"][name];
        assert_eq!(published["oneOf"], json!([{"required": ["spec"]}]));
        assert_eq!(published[GVK][0]["kind"], "Foo");
        let patch = &document["paths"]["/apis/a.example.com/v1/namespaces/{namespace}/foos/{name}"]["patch"];
        let media: Vec<&String> =
            patch["requestBody"]["content"].as_object().into_iter().flatten().map(|(media, _)| media).collect();
        assert_eq!(
            media,
            ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"]
        );
        let mut wanted = BTreeSet::new();
        collect_references(&document, &mut wanted);
        for name in wanted {
            assert!(document["components"]["schemas"].get(&name).is_some(), "{name}");
        }
        let old = custom_v2(&[&foo], &undescribed);
        let definition = &old["definitions"][name];
        assert_eq!(definition["required"], json!(["spec"]));
        assert_eq!(definition["properties"]["none"], json!({}));
        assert_eq!(
            definition["properties"]["spec"]["properties"]["free"],
            json!({"x-kubernetes-preserve-unknown-fields": true})
        );
        assert_eq!(old["definitions"].as_object().map(Map::len), Some(2));
        assert!(custom_v3("b.example.com/v1", &[&foo], &undescribed).is_none());
    }

    #[test]
    fn selectable_fields_are_published_for_the_kind_and_its_list() {
        let foo = kind(json!({"type": "object"})).selectable(&["spec.color"]);
        let document = custom_v3("a.example.com/v1", &[&foo], &undescribed).expect("a document");
        let old = custom_v2(&[&foo], &undescribed);
        for name in ["com.example.a.v1.Foo", "com.example.a.v1.FooList"] {
            for schema in [&document["components"]["schemas"][name], &old["definitions"][name]] {
                assert_eq!(schema["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]), "{name}");
            }
        }
    }

    #[test]
    fn paths_are_fewer_and_plainer_than_those_of_built_in_kinds() {
        let foo = Kind { schema: String::new(), ..kind(json!({"type": "object"})).scale() };
        let document = custom_v3("a.example.com/v1", &[&foo], &undescribed).expect("a document");
        let paths = document["paths"].as_object().expect("paths");
        let base = "/apis/a.example.com/v1/namespaces/{namespace}/foos";
        let item = format!("{base}/{{name}}");
        let scale = format!("{base}/{{name}}/scale");
        let known: Vec<&String> = paths.keys().collect();
        assert_eq!(known, ["/apis/a.example.com/v1/foos", base, &item, &scale]);
        let collection = &paths[base];
        let item = &paths[&item];
        assert_eq!(collection["delete"]["parameters"], collection["get"]["parameters"]);
        assert_eq!(collection["delete"].get("requestBody"), None);
        let media: Vec<&String> =
            collection["post"]["requestBody"]["content"].as_object().expect("media").keys().collect();
        assert_eq!(media, ["application/json", "application/yaml"]);
        assert_eq!(item["get"]["parameters"][0]["name"], "resourceVersion");
        assert_eq!(item["patch"]["responses"].get("201"), None);
        assert_eq!(paths[&scale]["put"][GVK]["kind"], "Foo");
    }

    #[test]
    fn an_operation_without_parameters_has_no_list_of_them() {
        let foo = Kind { verbs: vec!["get", "list"], ..kind(json!({"type": "object"})) };
        let document = custom_v3("a.example.com/v1", &[&foo], &undescribed).expect("a document");
        let mut paths = document["paths"].clone();
        let read = paths["/apis/a.example.com/v1/namespaces/{namespace}/foos/{name}"]["get"].take();
        assert_ne!(read.get("parameters"), Some(&json!([])));
    }

    #[test]
    fn custom_kinds_have_their_own_descriptions() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true});
        let foo = kind(json!({"type": "object", "properties": {"r": embedded}}));
        let foo = Kind { kind: "foo".to_owned(), list_kind: "fooList".to_owned(), ..foo };
        let document = custom_v3("a.example.com/v1", &[&foo], &undescribed).expect("a document");
        let list = &document["paths"]["/apis/a.example.com/v1/foos"]["get"];
        assert_eq!(list["description"], "list objects of kind foo");
        assert_eq!(list["operationId"], "listAExampleComV1FooForAllNamespaces");
        let item = &document["paths"]["/apis/a.example.com/v1/namespaces/{namespace}/foos/{name}"]["get"];
        assert_eq!(item["operationId"], "readAExampleComV1Namespacedfoo");
        let schemas = &document["components"]["schemas"];
        let says = |schema: &Value, field: &str| {
            schema["properties"][field]["description"]
                .as_str()
                .map(|text| text.split(" More").next().map(str::to_owned))
        };
        let r = &schemas["com.example.a.v1.foo"]["properties"]["r"];
        let expected = "kind is a string value representing the type of this object. In CamelCase.";
        assert_eq!(says(r, "kind").flatten().as_deref(), Some(expected));
        let expected = "apiVersion defines the versioned schema of this representation of an object.";
        assert_eq!(says(r, "apiVersion").flatten().as_deref(), Some(expected));
        let list = &schemas["com.example.a.v1.fooList"];
        assert_eq!(says(list, "metadata").flatten().as_deref(), Some("Standard list metadata."));
        let groups = schemas[format!("{META}.DeleteOptions")][GVK].as_array().expect("groups");
        assert!(groups.iter().all(|gvk| gvk["group"] != "a.example.com" && gvk["group"] != "apiextensions.k8s.io"));
        assert_eq!(groups.len(), 53);
    }

    #[test]
    fn each_version_has_its_own_descriptions_of_fields() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "required": ["kind"]});
        let fields =
            json!({"r": embedded, "x": {"x-kubernetes-int-or-string": true}, "d": {"type": "string", "default": "a"}});
        let foo = kind(json!({"type": "object", "properties": fields}));
        let document = custom_v3("a.example.com/v1", &[&foo], &undescribed).expect("a document");
        let published = &document["components"]["schemas"]["com.example.a.v1.Foo"]["properties"];
        assert_eq!(published["r"]["required"], json!(["kind", "apiVersion"]));
        assert_eq!(published["x"]["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
        assert_eq!(published["d"]["default"], "a");
        let old = custom_v2(&[&foo], &undescribed);
        let older = &old["definitions"]["com.example.a.v1.Foo"]["properties"];
        assert_eq!((older["d"].get("default"), older["x"].get("anyOf")), (None, None));
        let consumed = &old["paths"]["/apis/a.example.com/v1/foos"]["get"]["consumes"];
        assert_eq!(consumed, &json!(["application/json", "application/yaml"]));
        let open = kind(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
        let definition = &custom_v2(&[&open], &undescribed)["definitions"]["com.example.a.v1.Foo"];
        assert_eq!((&definition["type"], definition.get("properties")), (&json!("object"), None));
    }
}
