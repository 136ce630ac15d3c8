//! Tests of this package against data of upstream's v1.36: golden objects, discovery and OpenAPI documents.
//!
//! The data is not part of the project: `KUBERNETES_FACTS` names its folder, which `cargo xtask test` sets where it lies beside the
//! checkout. Without the variable each test says that it was skipped; with it, none is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use corten_api::MinorVersion;
use corten_api::openapi::{group_versions, openapi_v2, openapi_v3, root_paths, root_v3, undescribed};
use serde_json::Value;

const NEWEST: MinorVersion = MinorVersion::NEWEST;

fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("KUBERNETES_FACTS").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: KUBERNETES_FACTS does not name a directory with data of upstream");
    }
    folder
}

fn read(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the golden object of every kind that has one, and the kind's schema.
fn golden_objects(folder: &Path) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for kind in corten_api::kinds() {
        let group = if kind.group.is_empty() { "core" } else { &kind.group };
        let path = folder.join("wire").join(format!("{group}.{}.{}.json", kind.version, kind.kind));
        if path.exists() {
            all.push((kind.schema.clone(), read(&path)));
        }
    }
    assert!(all.len() >= 65, "only {} golden objects", all.len());
    all
}

/// Removes null fields, in which the two forms differ without meaning.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[test]
fn golden_objects_survive_their_typed_form() {
    let Some(folder) = data() else { return };
    let mut checked = 0;
    for (schema, mut golden) in golden_objects(&folder) {
        without_nulls(&mut golden);
        let api_version = golden["apiVersion"].as_str().unwrap();
        let kind = golden["kind"].as_str().unwrap();
        let converted = corten_api::typed::round_trip(api_version, kind, golden.to_string().as_bytes());
        let Some(converted) = converted else { continue };
        checked += 1;
        let bytes = converted.unwrap_or_else(|e| panic!("{schema}: {e}"));
        let back: Value = serde_json::from_slice(&bytes).unwrap();
        let mut places = Vec::new();
        differences("", &golden, &back, &mut places);
        // A nested object may gain its kind; nothing may be lost.
        places.retain(|place| !place.contains(": wanted null"));
        assert!(places.is_empty(), "{schema} lost something: {places:#?}");
    }
    assert!(checked > 40, "{checked} kinds have a typed form");
}

#[test]
fn golden_objects_have_no_unknown_fields() {
    let Some(folder) = data() else { return };
    for (schema, golden) in golden_objects(&folder) {
        let report = corten_api::check_fields(&schema, &golden);
        assert_eq!((report.unknown, report.type_errors), (Vec::<String>::new(), Vec::<String>::new()), "{schema}");
        let mut pruned = golden.clone();
        corten_api::prune(&schema, &mut pruned);
        let mut wanted = golden;
        without_nulls(&mut wanted);
        without_nulls(&mut pruned);
        assert_eq!(pruned, wanted, "{schema}");
    }
}

#[test]
fn defaulting_and_rows_never_fail_and_defaulting_settles() {
    let Some(folder) = data() else { return };
    for (schema, golden) in golden_objects(&folder) {
        let kind = corten_api::kinds().iter().find(|k| k.schema == schema).unwrap();
        let mut once = golden;
        kind.default(&mut once);
        let mut twice = once.clone();
        kind.default(&mut twice);
        assert_eq!(once, twice, "{schema}");
        let cells = kind.cells(&once, jiff::Timestamp::UNIX_EPOCH);
        // The age of an address has no column.
        assert_eq!(cells.len(), kind.columns.len() + usize::from(kind.kind == "IPAddress"), "{schema}");
        kind.validate(&once);
    }
}

#[test]
fn discovery_is_equal() {
    let Some(folder) = data() else { return };
    let discovery = read(&folder.join("discovery/aggregated_v2.json"));
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    let strings = |v: &Value| v.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let mut seen = 0;
    for group in discovery["items"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            if version["version"].as_str().unwrap().contains(['a', 'b']) {
                continue;
            }
            for wanted in version["resources"].as_array().unwrap() {
                let group = text(&group["metadata"]["name"]);
                let plural = text(&wanted["resource"]);
                let kind = corten_api::lookup(&group, &text(&version["version"]), &plural)
                    .unwrap_or_else(|| panic!("{group} {plural} is not declared"));
                assert_eq!(kind.kind, text(&wanted["responseKind"]["kind"]));
                assert_eq!(kind.namespaced, wanted["scope"] == "Namespaced", "{kind:?}");
                assert_eq!(kind.singular, text(&wanted["singularResource"]), "{kind:?}");
                assert_eq!(kind.short_names, strings(&wanted["shortNames"]), "{kind:?}");
                assert_eq!(kind.categories, strings(&wanted["categories"]), "{kind:?}");
                assert_eq!(kind.verbs, strings(&wanted["verbs"]), "{kind:?}");
                let subresources: Vec<_> = wanted["subresources"].as_array().into_iter().flatten().collect();
                assert_eq!(kind.subresources.len(), subresources.len(), "{kind:?}");
                for (sub, wanted) in kind.subresources.iter().zip(subresources) {
                    assert_eq!(sub.name, text(&wanted["subresource"]), "{kind:?}");
                    assert_eq!(sub.verbs, strings(&wanted["verbs"]), "{kind:?} {}", sub.name);
                    assert_eq!(sub.kind, text(&wanted["responseKind"]["kind"]), "{kind:?} {}", sub.name);
                    assert_eq!(sub.group, text(&wanted["responseKind"]["group"]), "{kind:?} {}", sub.name);
                }
                seen += 1;
            }
        }
    }
    assert!(seen >= 51, "{seen}");
}

fn upstream_document(folder: &Path, group_version: &str) -> Value {
    let name = match group_version.split_once('/') {
        None => format!("api__{group_version}_openapi.json"),
        Some((group, version)) => format!("apis__{group}__{version}_openapi.json"),
    };
    published(folder, &name)
}

/// Returns a published document. Its version is blank there; upstream's server sets that of the API.
fn published(folder: &Path, name: &str) -> Value {
    let mut document = read(&folder.join("openapi/v3").join(name));
    assert_eq!(document["info"]["version"], "unversioned");
    document["info"]["version"] = "1.36".into();
    document
}

/// Returns a part of a document without descriptions, which are not facts, and without the enums and the media type
/// CBOR, in which the published documents and upstream's server differ. A reference in `allOf`, which only allows
/// siblings, equals the bare one.
fn facts(part: &Value) -> Value {
    match part {
        Value::Object(map) => {
            if let Some(Value::Array(all)) = map.get("allOf") {
                let mut flat = map.clone();
                flat.remove("allOf");
                flat.extend(all[0].as_object().cloned().unwrap_or_default());
                return facts(&Value::Object(flat));
            }
            let is_fact = |(key, value): &(&String, &Value)| match key.as_str() {
                "description" => !value.is_string(),
                "enum" => !value.is_array(),
                key => !key.starts_with("application/cbor") && key != "application/apply-patch+cbor",
            };
            Value::Object(map.iter().filter(is_fact).map(|(key, value)| (key.clone(), facts(value))).collect())
        }
        Value::Array(list) => list.iter().map(facts).filter(|item| !item.to_string().contains("cbor")).collect(),
        other => other.clone(),
    }
}

fn assert_equal(place: &str, wanted: &Value, found: &Value) {
    let mut places = Vec::new();
    differences("", &facts(wanted), &facts(found), &mut places);
    assert!(places.is_empty(), "{place}: {} differences: {:#?}", places.len(), &places[..places.len().min(40)]);
}

#[test]
fn openapi_documents_are_equal() {
    let Some(folder) = data() else { return };
    for group_version in group_versions(NEWEST) {
        let ours = openapi_v3(NEWEST, &group_version, &undescribed).unwrap();
        assert_equal(&group_version, &upstream_document(&folder, &group_version), &ours);
    }
    for root in root_paths(NEWEST) {
        let name = format!("{}_openapi.json", root.replace('/', "__"));
        assert_equal(&root, &published(&folder, &name), &root_v3(NEWEST, &root, &undescribed));
    }
}

/// Inlines the shared parameters of a document.
fn resolve_parameters(part: &mut Value, shared: &Value) {
    match part {
        Value::Object(map) => {
            let name = map.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/parameters/"));
            if let Some(parameter) = name.map(|name| shared[name].clone()) {
                *part = parameter;
            } else {
                map.values_mut().for_each(|inner| resolve_parameters(inner, shared));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| resolve_parameters(inner, shared)),
        _ => {}
    }
}

/// The old document is one for all groups, so upstream's also has unstable ones.
#[test]
fn the_old_openapi_document_is_equal() {
    let Some(folder) = data() else { return };
    let wanted = read(&folder.join("openapi/swagger.json"));
    let found = openapi_v2(NEWEST, &undescribed);
    let shared = wanted["parameters"].clone();
    for part in ["paths", "definitions"] {
        for (name, found) in found[part].as_object().unwrap() {
            let mut wanted = wanted[part][name].clone();
            resolve_parameters(&mut wanted, &shared);
            assert_equal(name, &wanted, found);
        }
    }
    // Groups without a stable version are not served, and neither are the server's logs.
    let is_ours = |path: &String| {
        let mut parts = path.split('/').skip(1);
        let root = parts.next().unwrap_or_default();
        let group = parts.next().unwrap_or_default();
        let is_stable = !path.split('/').any(|part| part.starts_with('v') && part.contains(['a', 'b']));
        let is_served =
            root != "apis" || group.is_empty() || corten_api::kinds().iter().any(|kind| kind.group == group);
        is_stable && is_served && root != "logs"
    };
    let paths = wanted["paths"].as_object().unwrap().keys().filter(|path| is_ours(path));
    let missing: Vec<&String> = paths.filter(|path| found["paths"].get(*path).is_none()).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Returns the paths at which two values differ.
fn differences(at: &str, wanted: &Value, found: &Value, places: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let get = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differences(&format!("{at}/{key}"), &get(a), &get(b), places);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{at}/{index}"), a, b, places);
            }
        }
        (a, b) if a == b => {}
        (a, b) => places.push(format!("{at}: wanted {a}, found {b}")),
    }
}

/// Returns every object of a folder of YAML, with lists flattened.
fn yaml_objects(folder: &Path) -> Vec<(PathBuf, Value)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            all.extend(yaml_objects(&path));
            continue;
        }
        let decoded = corten_meta::decode_yaml(&std::fs::read(&path).expect("a file")).expect("YAML");
        match decoded["items"].as_array() {
            Some(items) => all.extend(items.iter().map(|item| (path.clone(), item.clone()))),
            None => all.push((path, decoded)),
        }
    }
    all
}

/// Objects that upstream itself creates or accepts must be valid: this finds a rule that is too strict.
#[test]
fn upstreams_own_objects_are_valid() {
    let Some(folder) = data() else { return };
    let mut objects = yaml_objects(&folder.join("rbac"));
    objects.extend(yaml_objects(&folder.join("pod-security")));
    assert!(objects.len() > 200, "{}", objects.len());
    for (path, mut object) in objects {
        let (group, version) = match object["apiVersion"].as_str().unwrap().split_once('/') {
            Some((group, version)) => (group.to_string(), version.to_string()),
            None => (String::new(), object["apiVersion"].as_str().unwrap().to_string()),
        };
        let kind = corten_api::by_gvk(&group, &version, object["kind"].as_str().unwrap())
            .unwrap_or_else(|| panic!("{}: {object}", path.display()));
        if kind.namespaced && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        if kind.kind == "Pod" {
            // The fixtures of Pod Security are named after their files, with underscores.
            object["metadata"]["name"] = object["metadata"]["name"].as_str().unwrap().replace('_', "-").into();
        }
        let report = corten_api::check_fields(&kind.schema, &object);
        assert_eq!((report.unknown, report.type_errors), (vec![], vec![]), "{}", path.display());
        kind.default(&mut object);
        let mut errors: Vec<String> = kind.validate(&object).iter().map(ToString::to_string).collect();
        // Some fixtures exist to fail Pod Security; upstream's validation refuses these already.
        errors.retain(|error| !error.contains("`hostUsers` must be false to use `Unmasked`"));
        assert_eq!(errors, Vec::<String>::new(), "{}", path.display());
    }
}
