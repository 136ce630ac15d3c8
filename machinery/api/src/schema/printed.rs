//! Values as upstream's validation prints them: its errors show a struct as Go writes it to JSON.
//!
//! Validation runs on types without tags, so every field is shown, under its name in the struct, in the order of the
//! declaration, with null for absent ones. Types that all groups share (label selectors, metadata) keep their tags.
//! Runs only after something has failed.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::{Field, FieldType, Type, schema};

/// The fields that the validated types declare elsewhere than the published ones: (type, field, the field before).
const MOVED: [(&str, &str, &str); 8] = [
    ("JSONSchemaProps", "nullable", "type"),
    ("PodSpec", "setHostnameAsFQDN", "subdomain"),
    ("PodSpec", "preemptionPolicy", "priority"),
    ("PodSpec", "overhead", "runtimeClassName"),
    ("PodSecurityContext", "fsGroupChangePolicy", "fsGroup"),
    ("Volume", "quobyte", "rbd"),
    ("PersistentVolumeSpec", "quobyte", "rbd"),
    ("PersistentVolumeSpec", "flexVolume", "iscsi"),
];
/// The fields that are pointers in the published types and values in the validated ones.
const HELD: [(&str, &[&str]); 3] = [
    ("RollingUpdateDaemonSet", &["maxSurge", "maxUnavailable"]),
    ("RollingUpdateDeployment", &["maxSurge", "maxUnavailable"]),
    ("RollingUpdateStatefulSetStrategy", &["partition"]),
];
/// The fields of a pod that the validated type has in its security context.
const HOST: [&str; 5] = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];

/// Sets the printed value of every error that shows a struct.
pub fn print_values(type_name: &str, errors: &mut [FieldError]) {
    let Some(root) = schema().type_(type_name) else { return };
    for error in errors.iter_mut().filter(|error| error.shows_value() && error.printed.is_none()) {
        if error.value.is_null()
            && let Some(zero) = zero_at(root, &error.field)
        {
            error.printed = Some(zero.to_string());
        }
        // A time is shown as it is written, without the fraction of a second.
        if error.value.as_str().is_some_and(|text| text.ends_with('Z') && text.contains('.'))
            && kind_at(root, &error.field, &error.value) == Some(FieldType::Time)
        {
            super::defaults::write_time(&mut error.value);
        }
        if !holds_struct(&error.value) {
            continue;
        }
        // Some of upstream's paths do not begin at the object but in its metadata, or nowhere.
        let elsewhere = error.field.strip_prefix("metadata.").unwrap_or(&error.field);
        // A schema that all versions of a CustomResourceDefinition share has its former path.
        let shared = error.field.replacen("spec.validation.", "spec.versions[0].schema.", 1);
        let paths = [shared, format!("spec.{elsewhere}")];
        if let Some(kind) = paths.iter().find_map(|path| kind_at(root, path, &error.value)) {
            let mut text = String::new();
            print(&kind, &error.value, &mut text);
            error.printed = Some(text);
        }
    }
}

/// Formats a value of the named type as upstream's validated type writes it to JSON.
pub fn print_value(type_name: &str, value: &Value) -> String {
    let mut text = String::new();
    if let Some(id) = schema().by_name.get(type_name) {
        print(&FieldType::Ref(*id), value, &mut text);
    }
    text
}

fn holds_struct(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(items) => items.first().is_some_and(Value::is_object),
        _ => false,
    }
}

/// Returns the steps of a path; keys of maps may have dots.
fn steps(path: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    path.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == '.' && depth == 0
    })
    .collect()
}

/// Returns the type of an error's value: that of its field, or of the struct around it, which some errors show instead.
fn kind_at(root: &Type, path: &str, value: &Value) -> Option<FieldType> {
    let mut current = FieldType::Ref(schema().by_name.get(&root.name).copied()?);
    let mut around = current.clone();
    let mut is_of_map = false;
    for part in steps(path) {
        let (name, indexes) =
            part.split_once('[').map_or((part, 0), |(name, rest)| (name, rest.matches('[').count() + 1));
        let FieldType::Ref(id) = current else { return None };
        is_of_map = false;
        around = current;
        current = schema().get(id).field(name)?.kind.clone();
        for _ in 0..indexes {
            is_of_map = matches!(current, FieldType::Map(_));
            current = match current {
                FieldType::List(inner) => *inner,
                FieldType::Map(inner) => {
                    around = FieldType::Map(inner.clone());
                    *inner
                }
                _ => return None,
            };
        }
    }
    match (&current, value) {
        (FieldType::Ref(_), Value::Object(_))
        | (FieldType::List(_), Value::Array(_))
        | (FieldType::Time, Value::String(_)) => Some(current),
        (FieldType::Map(_), _) => None,
        // An error of one item may have the list's path.
        (FieldType::List(items), Value::Object(item)) if is_item(items, item) => Some((**items).clone()),
        // An error of one entry may show the entire map.
        (_, Value::Object(_)) if is_of_map => None,
        (_, Value::Object(_)) => Some(around),
        _ => None,
    }
}

fn is_item(kind: &FieldType, item: &serde_json::Map<String, Value>) -> bool {
    matches!(kind, FieldType::Ref(id) if item.keys().all(|name| schema().get(*id).field(name).is_some()))
}

/// Returns the value of an absent field, if it is a string or a number held by value.
fn zero_at(root: &Type, path: &str) -> Option<&'static str> {
    let (around, name) = path.rsplit_once('.').unwrap_or(("", path));
    let around = if around.is_empty() { root.gvk.as_ref().map(|_| root) } else { struct_at(root, around) };
    let field = around?.field(name).filter(|field| !field.presence.is_pointer)?;
    match field.kind {
        FieldType::String => Some("\"\""),
        FieldType::Integer(_) => Some("0"),
        _ => None,
    }
}

fn struct_at<'a>(root: &'a Type, path: &str) -> Option<&'a Type> {
    match kind_at(root, path, &Value::Object(serde_json::Map::new()))? {
        FieldType::Ref(id) => Some(schema().get(id)),
        _ => None,
    }
}

fn print(kind: &FieldType, value: &Value, out: &mut String) {
    if let FieldType::Ref(id) = kind
        && let Some(print) = either(schema().get(*id).short_name())
    {
        return print(value, out);
    }
    match (kind, value) {
        (FieldType::Ref(id), Value::Object(_)) if schema().get(*id).scalar.is_none() => {
            out.push('{');
            print_fields(schema().get(*id), value, &mut true, out);
            out.push('}');
        }
        (FieldType::List(items), Value::Array(list)) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                print(items, item, out);
            }
            out.push(']');
        }
        (FieldType::Map(values), Value::Object(map)) => {
            out.push('{');
            for (at, (key, item)) in map.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                print_plain(&Value::from(key.as_str()), out);
                out.push(':');
                print(values, item, out);
            }
            out.push('}');
        }
        (FieldType::Time, Value::String(_)) => {
            let mut time = value.clone();
            super::defaults::write_time(&mut time);
            print_plain(&time, out);
        }
        _ => print_plain(value, out),
    }
}

/// Formats a type that is a schema or something else, which the table does not have.
fn either(name: &str) -> Option<fn(&Value, &mut String)> {
    const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    fn print_schema(value: &Value, out: &mut String) {
        out.push_str(&if value.is_object() { print_value(SCHEMA, value) } else { "null".to_owned() });
    }
    match name {
        "JSONSchemaPropsOrBool" => Some(|value, out| {
            out.push_str(&format!("{{\"Allows\":{},\"Schema\":", *value != Value::Bool(false)));
            print_schema(value, out);
            out.push('}');
        }),
        "JSONSchemaPropsOrArray" => Some(|value, out| {
            out.push_str("{\"Schema\":");
            print_schema(value, out);
            out.push_str(",\"JSONSchemas\":");
            match value.as_array() {
                Some(schemas) => {
                    let shown: Vec<String> = schemas.iter().map(|schema| print_value(SCHEMA, schema)).collect();
                    out.push_str(&format!("[{}]", shown.join(",")));
                }
                None => out.push_str("null"),
            }
            out.push('}');
        }),
        "JSONSchemaPropsOrStringArray" => Some(|value, out| {
            out.push_str("{\"Schema\":");
            print_schema(value, out);
            let names = if value.is_array() { corten_meta::field::shown(value) } else { "null".to_owned() };
            out.push_str(&format!(",\"Property\":{names}}}"));
        }),
        _ => None,
    }
}

/// Reports whether a type with tags omits a field with this value.
fn is_left_out(field: &Field, value: &Value) -> bool {
    match (&field.kind, value) {
        _ if field.presence.is_pointer => false,
        (FieldType::List(_), Value::Array(list)) => list.is_empty(),
        (FieldType::Map(_), Value::Object(map)) => map.is_empty(),
        (_, Value::String(text)) => text.is_empty(),
        _ => false,
    }
}

fn print_fields(t: &Type, value: &Value, first: &mut bool, out: &mut String) {
    let has_tags = t.name.starts_with("io.k8s.apimachinery.");
    for field in validated_order(t) {
        let found = value.get(&field.name).filter(|v| !v.is_null());
        if is_embedded(t, field) {
            if let (FieldType::Ref(id), Some(found)) = (&field.kind, found) {
                print_fields(schema().get(*id), found, first, out);
            }
            continue;
        }
        if has_tags && !field.presence.is_always_written && found.is_none_or(|found| is_left_out(field, found)) {
            continue;
        }
        let is_kept = field.name == "securityContext" && t.short_name() == "PodSpec";
        if !(has_tags || is_kept) {
            print_field(t, field, value, first, out);
            continue;
        }
        out.push_str(if std::mem::take(first) { "" } else { "," });
        let name = if has_tags { field.name.clone() } else { go_name(field) };
        print_plain(&Value::from(name), out);
        out.push(':');
        match found {
            _ if !has_tags => print_pod_security(t, value, out),
            Some(found) => print(&field.kind, found, out),
            None => print_absent(field, t, out),
        }
    }
}

/// Returns the fields of a type in the order of the validated type.
fn validated_order(t: &Type) -> Vec<&Field> {
    let mut fields: Vec<&Field> = t.declared().collect();
    if t.short_name() == "PodSpec" {
        fields.retain(|field| field.name != "serviceAccount" && !HOST.contains(&field.name.as_str()));
    }
    for (_, moved, before) in MOVED.iter().filter(|(of, ..)| *of == t.short_name()) {
        let place = |fields: &[&Field], name: &str| fields.iter().position(|field| field.name == name);
        if let Some(from) = place(&fields, moved) {
            let field = fields.remove(from);
            let to = place(&fields, before).map_or(from, |before| before + 1);
            fields.insert(to, field);
        }
    }
    fields
}

/// Formats a field under its name in the struct.
fn print_field(t: &Type, field: &Field, of: &Value, first: &mut bool, out: &mut String) {
    out.push_str(if std::mem::take(first) { "" } else { "," });
    print_plain(&Value::from(go_name(field)), out);
    out.push(':');
    match of.get(&field.name).filter(|value| !value.is_null()) {
        Some(found) => print(&field.kind, found, out),
        None => print_absent(field, t, out),
    }
}

fn print_pod_security(pod: &Type, spec: &Value, out: &mut String) {
    out.push('{');
    let mut first = true;
    for field in HOST.iter().filter_map(|name| pod.field(name)) {
        print_field(pod, field, spec, &mut first, out);
    }
    if let Some(FieldType::Ref(id)) = pod.field("securityContext").map(|field| &field.kind) {
        print_fields(schema().get(*id), spec.get("securityContext").unwrap_or(&Value::Null), &mut false, out);
    }
    out.push('}');
}

/// Returns the change between two values of a type, as upstream reports it: a unified diff of their indented JSON. With
/// `part`, only of the fields that are inlined from the struct of this name.
pub(crate) fn difference(type_name: &str, old: &Value, new: &Value, part: Option<&str>) -> String {
    let Some(t) = schema().type_(type_name) else { return String::new() };
    let lines = |value: &Value| {
        let mut text = String::from("{");
        if part.is_none() {
            print_fields(t, value, &mut true, &mut text);
        }
        let mut first = true;
        for field in validated_order(t).into_iter().filter(|f| part.is_some() && f.inlined_from.as_deref() == part) {
            print_field(t, field, value, &mut first, &mut text);
        }
        text.push('}');
        corten_meta::difference::indented(&text)
    };
    corten_meta::difference::unified(&lines(old), &lines(new))
}

/// Reports whether the struct embeds the fields of another; kind and version are not validated.
fn is_embedded(t: &Type, field: &Field) -> bool {
    match field.name.as_str() {
        "metadata" => true,
        "kind" | "apiVersion" => t.gvk.is_some(),
        _ => false,
    }
}

fn go_name(field: &Field) -> String {
    if let Some(name) = &field.go_name {
        return name.clone();
    }
    let mut characters = field.name.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

/// Formats the zero value of an absent field.
fn print_absent(field: &Field, of: &Type, out: &mut String) {
    let is_held = HELD.iter().any(|(held, fields)| *held == of.short_name() && fields.contains(&field.name.as_str()));
    if field.presence.is_pointer && !is_held {
        return out.push_str("null");
    }
    match &field.kind {
        FieldType::Ref(id) if schema().get(*id).scalar.is_none() => {
            out.push('{');
            print_fields(schema().get(*id), &Value::Null, &mut true, out);
            out.push('}');
        }
        FieldType::String => out.push_str("\"\""),
        FieldType::Integer(_) | FieldType::Number(_) | FieldType::IntOrString => out.push('0'),
        FieldType::Boolean => out.push_str("false"),
        FieldType::Quantity => out.push_str("\"0\""),
        _ => out.push_str("null"),
    }
}

fn print_plain(value: &Value, out: &mut String) {
    out.push_str(&corten_meta::field::shown(value));
}

#[cfg(test)]
mod tests {
    use corten_meta::field::Path;
    use serde_json::json;

    use super::*;

    fn check(type_name: &str, path: &str, value: Value, wanted: &str) {
        let mut errors = [FieldError::invalid(&Path::root(path), value, "bad")];
        print_values(type_name, &mut errors);
        assert_eq!(errors[0].to_string(), format!("{path}: Invalid value: {wanted}: bad"));
    }

    #[test]
    fn a_map_is_shown_for_one_of_its_entries() {
        let labels = json!({"b": "2", "a": "1"});
        check("io.k8s.api.batch.v1.Job", "spec.template.metadata.labels[a]", labels, r#"{"a":"1","b":"2"}"#);
    }

    #[test]
    fn an_item_is_shown_for_its_list() {
        let owner = json!({"uid": "u", "name": "n", "kind": "Event", "apiVersion": "v1"});
        let wanted = r#"{"apiVersion":"v1","kind":"Event","name":"n","uid":"u"}"#;
        check("io.k8s.api.core.v1.ConfigMap", "metadata.ownerReferences", owner, wanted);
    }

    #[test]
    fn times_are_shown_to_the_second() {
        let shown = print_value(
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
            &json!({"deletionTimestamp": "2020-01-01T00:00:00.123456Z"}),
        );
        assert_eq!(shown, r#"{"deletionTimestamp":"2020-01-01T00:00:00Z"}"#);
    }

    #[test]
    fn a_schema_in_an_alternative_is_shown_as_one() {
        let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        for (schema, wanted) in [
            (json!({"additionalProperties": false}), r#""AdditionalProperties":{"Allows":false,"Schema":null}"#),
            (json!({"additionalProperties": {}}), r#""AdditionalProperties":{"Allows":true,"Schema":{"ID":"","#),
            (json!({"items": {}}), r#""Items":{"Schema":{"ID":"","#),
            (json!({"items": [{}]}), r#""Items":{"Schema":null,"JSONSchemas":[{"ID":"","#),
        ] {
            let shown = print_value(name, &schema);
            assert!(shown.contains(wanted), "{shown}");
        }
    }

    #[test]
    fn values_in_the_validated_types_are_never_null() {
        const SET: &str = "io.k8s.api.apps.v1.StatefulSet";
        let wanted = r#"{"Type":"OnDelete","RollingUpdate":{"Partition":0,"MaxUnavailable":null}}"#;
        check(SET, "spec.updateStrategy", json!({"type": "OnDelete", "rollingUpdate": {}}), wanted);
        const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
        let wanted = r#"{"Type":"x","RollingUpdate":{"MaxUnavailable":"25%","MaxSurge":0}}"#;
        let strategy = json!({"type": "x", "rollingUpdate": {"maxUnavailable": "25%"}});
        check(DEPLOYMENT, "spec.strategy", strategy, wanted);
    }

    #[test]
    fn structs_are_shown_completely_and_in_order() {
        const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
        check(
            DEPLOYMENT,
            "spec.strategy",
            json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}, "type": "x"}),
            r#"{"Type":"x","RollingUpdate":{"MaxUnavailable":"25%","MaxSurge":1}}"#,
        );
        check(
            DEPLOYMENT,
            "spec.template.spec.tolerations[0]",
            json!({"key": "k"}),
            r#"{"Key":"k","Operator":"","Value":"","Effect":"","TolerationSeconds":null}"#,
        );
        check(
            DEPLOYMENT,
            "spec.selector",
            json!({"matchExpressions": [{"values": ["b"], "operator": "In", "key": "a"}], "matchLabels": {"a": "b"}}),
            r#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}"#,
        );
    }

    #[test]
    fn a_schema_is_shown_beside_its_alternative() {
        const DEFINITION: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        let shown = |schema: Value| {
            let mut errors =
                [FieldError::invalid(&Path::root("spec.versions[0].schema.openAPIV3Schema"), schema, "bad")];
            print_values(DEFINITION, &mut errors);
            errors[0].to_string()
        };
        let parts = [
            (json!({"items": {"type": "a"}}), r#","Items":{"Schema":{"ID":"#),
            (json!({"items": {"type": "a"}}), r#"},"JSONSchemas":null},"AllOf""#),
            (json!({"items": [{}]}), r#""Items":{"Schema":null,"JSONSchemas":[{"ID":"#),
            (json!({"additionalProperties": false}), r#""AdditionalProperties":{"Allows":false,"Schema":null}"#),
            (json!({"additionalProperties": {}}), r#""AdditionalProperties":{"Allows":true,"Schema":{"ID":"#),
            (json!({"dependencies": {"a": ["b"]}}), r#""Dependencies":{"a":{"Schema":null,"Property":["b"]}}"#),
        ];
        for (schema, part) in parts {
            let shown = shown(schema);
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }

    #[test]
    fn a_change_is_reported_as_a_diff_of_two_structs() {
        let spec = |image: &str| json!({"name": "e", "image": image});
        let messages = difference("io.k8s.api.core.v1.EphemeralContainer", &spec("i"), &spec("j"), None);
        let wanted =
            "@@ -1,6 +1,6 @@\n {\n  \"Name\": \"e\",\n- \"Image\": \"i\",\n+ \"Image\": \"j\",\n  \"Command\": null,\n";
        assert!(messages.starts_with(wanted), "{messages}");
        let volume = |field: &str| json!({"capacity": {"storage": "1"}, field: {"path": "/x"}});
        let source = Some("PersistentVolumeSource");
        let messages = difference("io.k8s.api.core.v1.PersistentVolumeSpec", &volume("hostPath"), &json!({}), source);
        let wanted = "@@ -1,10 +1,7 @@\n {\n  \"GCEPersistentDisk\": null,\n  \"AWSElasticBlockStore\": null,\n- \"HostPath\": {\n";
        assert!(messages.starts_with(wanted), "{messages}");
    }

    #[test]
    fn the_struct_around_a_field_may_be_shown() {
        check(
            "io.k8s.api.core.v1.Pod",
            "spec.containers[0].securityContext.seccompProfile.localhostProfile",
            json!({"type": "", "localhostProfile": "p"}),
            r#"{"Type":"","LocalhostProfile":"p"}"#,
        );
        check(
            "io.k8s.api.resource.v1.ResourceSlice",
            "spec.devices[0].attributes[example.com/x]",
            json!({"bool": false, "int": 1}),
            concat!(
                r#"{"IntValue":1,"BoolValue":false,"StringValue":null,"VersionValue":null,"#,
                r#""IntValues":null,"BoolValues":null,"StringValues":null,"VersionValues":null}"#,
            ),
        );
        check(
            "io.k8s.api.batch.v1.Job",
            "spec.template.metadata.labels[job-name]",
            json!({"job-name": "x", "a": "b"}),
            r#"{"a":"b","job-name":"x"}"#,
        );
        check("io.k8s.api.core.v1.Service", "metadata.labels", json!({"b": "1", "a": "2"}), r#"{"a":"2","b":"1"}"#);
    }
}
