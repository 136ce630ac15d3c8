//! Writes the schema table of `machinery/api` from a directory of upstream's OpenAPI v3 documents, and from the tags of
//! its type declarations (`presence.rs`).
//!
//! Run by hand when the target version changes. The table has facts only (names, types, marks, defaults); descriptions
//! are never read, so none can leak into the project. The table's own head documents the form of a line, and
//! `machinery/api/src/schema/table.rs` parses it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::presence::{Declared, Presence};

const HEAD: &str = "\
# The schema of the Kubernetes API, facts only. Written by `cargo xtask schema`; do not edit.
# T <type> <marks>           a type; a leading dot stands for `io.k8s.api.`
# <field> <shape> <marks>    a field of the type above
# shape: string int32 int64 integer double number bool bytes date-time object any int-or-string quantity @type [items] {values},
#        each with `=default` when its place in the schema has one
# marks: ! required, =default, list=, keys=, strategy=, merge=, map=, gvk=, unions=,
#        ~ and how its zero value is written: * absent is not zero, 0 always written, z zero not written,
#        and after a colon the name of its type where that is more than its shape; ^ the struct it is inlined from,
#        enum= the values its type lists, with _ for a space
# Fields stand in the order of their declaration.
";

/// Reads every stable group version under `<openapi>/v3` and writes the table to `out`.
pub fn generate(openapi: &Path, staging: &Path, out: &Path) -> Result<()> {
    let presence = Presence::read(staging)?;
    let types = stable_types(&openapi.join("v3"))?;
    if types.is_empty() {
        bail!("no stable group versions under {}", openapi.display());
    }
    let mut table = HEAD.to_string();
    for (name, schema) in &types {
        write_type(&mut table, name, schema, &presence).with_context(|| format!("type {name}"))?;
    }
    std::fs::write(out, table).with_context(|| format!("write {}", out.display()))
}

/// Returns the union of the schemas of all documents whose version is neither alpha nor beta.
fn stable_types(directory: &Path) -> Result<BTreeMap<String, Value>> {
    let mut types = BTreeMap::new();
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains("alpha") || name.contains("beta") || !name.ends_with(".json") {
            continue;
        }
        let document: Value =
            serde_json::from_slice(&std::fs::read(&path)?).with_context(|| format!("parse {}", path.display()))?;
        if let Some(schemas) = document.pointer("/components/schemas").and_then(Value::as_object) {
            for (name, schema) in schemas {
                // The core group comes first and has the plain form of types that every group serves.
                types.entry(name.clone()).or_insert_with(|| schema.clone());
            }
        }
    }
    Ok(types)
}

fn write_type(table: &mut String, name: &str, schema: &Value, presence: &Presence) -> Result<()> {
    write!(table, "T {}", short(name))?;
    if schema.get("properties").is_none() {
        write!(table, " {}", shape(schema)?)?;
    }
    if let Some(map) = schema["x-kubernetes-map-type"].as_str() {
        write!(table, " map={map}")?;
    }
    // A type of all groups (DeleteOptions) has several; here only its first, the rest is known at run time.
    if let Some([gvk, ..]) = schema["x-kubernetes-group-version-kind"].as_array().map(Vec::as_slice) {
        let part = |key: &str| gvk[key].as_str().unwrap_or_default().to_string();
        write!(table, " gvk={}/{}/{}", part("group"), part("version"), part("kind"))?;
    }
    if let Some(unions) = schema.get("x-kubernetes-unions") {
        write!(table, " unions={unions}")?;
    }
    table.push('\n');
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    for field in in_order(&properties, &presence.order(name)) {
        let property = &properties[field];
        write_field(table, field, property, required.contains(&field)).with_context(|| format!("field {field}"))?;
        if let Some((declared, inlined)) = presence.of(name, field) {
            write_declared(table, &shape(property)?, declared, inlined.as_deref());
            write_enum(table, presence.enum_of(declared)).with_context(|| format!("field {field}"))?;
        }
        table.push('\n');
    }
    Ok(())
}

/// Returns the names of all properties: declared ones in the order of their declaration, others after them.
fn in_order<'a>(properties: &'a serde_json::Map<String, Value>, declared: &[&'a str]) -> Vec<&'a str> {
    let mut names: Vec<&str> = declared.iter().copied().filter(|name| properties.contains_key(*name)).collect();
    names.extend(properties.keys().map(String::as_str).filter(|name| !declared.contains(name)));
    names
}

/// Writes the facts of a field's declaration beyond its property.
fn write_declared(table: &mut String, shape: &str, declared: &Declared, inlined: Option<&str>) {
    let go_type = &declared.type_name;
    let is_named = go_type.contains(char::is_uppercase);
    // References have the names of structs; those of maps and lists are needed only if a part has its own name.
    let is_odd = shape.starts_with('{') && !go_type.starts_with("map[string]")
        || shape.starts_with('[') && !go_type.starts_with("[]");
    if is_named && (!shape.contains('@') || is_odd) {
        table.push_str(&format!(" ~{}:{go_type}", declared.marks));
    } else if !declared.marks.is_empty() {
        table.push_str(&format!(" ~{}", declared.marks));
    }
    if inlined == Some("TypeMeta") {
        return;
    }
    if let Some(inlined) = inlined {
        table.push_str(&format!(" ^{inlined}"));
    }
}

fn write_enum(table: &mut String, values: Option<&BTreeSet<String>>) -> Result<()> {
    let Some(values) = values else { return Ok(()) };
    let mut words = Vec::new();
    for value in values {
        if value.contains(['_', ',']) {
            bail!("the value {value:?} needs another form in the table");
        }
        words.push(value.replace(' ', "_"));
    }
    table.push_str(&format!(" enum={}", words.join(",")));
    Ok(())
}

fn write_field(table: &mut String, name: &str, property: &Value, required: bool) -> Result<()> {
    write!(table, "{name} {}", shape(property)?)?;
    if required {
        table.push_str(" !");
    }
    if let Some(default) = property.get("default") {
        write!(table, " ={default}")?;
    }
    for (mark, key) in [
        ("list", "x-kubernetes-list-type"),
        ("strategy", "x-kubernetes-patch-strategy"),
        ("merge", "x-kubernetes-patch-merge-key"),
        ("map", "x-kubernetes-map-type"),
    ] {
        if let Some(value) = property[key].as_str() {
            write!(table, " {mark}={value}")?;
        }
    }
    if let Some(keys) = property["x-kubernetes-list-map-keys"].as_array() {
        let keys: Vec<_> = keys.iter().filter_map(Value::as_str).collect();
        write!(table, " keys={}", keys.join(","))?;
    }
    Ok(())
}

/// Returns the shape of a value, and of the values in it.
fn shape(schema: &Value) -> Result<String> {
    if let Some(reference) = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str()) {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        return Ok(format!("@{}", short(name)));
    }
    let inner = |key: &str| -> Result<String> {
        let inner = &schema[key];
        let default = inner.get("default").map(|d| format!("={d}")).unwrap_or_default();
        Ok(format!("{}{default}", shape(inner)?))
    };
    Ok(match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("array"), _) => format!("[{}]", inner("items")?),
        (Some("object"), _) if schema.get("additionalProperties").is_some() => {
            format!("{{{}}}", inner("additionalProperties")?)
        }
        (Some("object"), _) => "object".to_string(),
        (Some("string"), Some("byte")) => "bytes".to_string(),
        (Some("string" | "integer" | "number"), Some(format)) => format.to_string(),
        (Some("boolean"), _) => "bool".to_string(),
        (Some(plain @ ("string" | "integer" | "number")), None) => plain.to_string(),
        (None, Some("int-or-string")) => "int-or-string".to_string(),
        (None, None) if schema.get("oneOf").is_some() => "quantity".to_string(),
        (None, None) => "any".to_string(),
        other => bail!("unknown shape {other:?}"),
    })
}

fn short(name: &str) -> String {
    name.strip_prefix("io.k8s.api.").map_or_else(|| name.to_string(), |rest| format!(".{rest}"))
}
