//! The CustomResourceDefinitions of Gateway API, made of the table `schema/gateway.tbl`, and those of our own policies
//! (`schema/policy.tbl`).
//!
//! Those of Gateway API carry the bundle version and the channel, by which tools and upstream's suite recognise them. Upstream's own
//! files hold the descriptions of fields as well; ours hold none.

use std::collections::BTreeMap;

use corten_meta::Value;
use serde_json::{Map, json};

const TABLE: &str = concat!(include_str!("../schema/gateway.tbl"), "\n", include_str!("../schema/policy.tbl"));

/// The API group of Gateway API.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// The API group of our own policies.
pub const POLICY_GROUP: &str = "edge.corten.dev";
/// The version of our own policies.
pub const POLICY_VERSION: &str = "v1beta1";
/// The annotation with the version of the whole bundle.
pub const BUNDLE_ANNOTATION: &str = "gateway.networking.k8s.io/bundle-version";
const CHANNEL_ANNOTATION: &str = "gateway.networking.k8s.io/channel";
/// The version of the bundle that the table describes.
pub const BUNDLE_VERSION: &str = "v1.6.1";
/// The annotation by which a CustomResourceDefinition may use a group below k8s.io.
const APPROVED: &str = "api-approved.kubernetes.io";
const APPROVAL: &str = "https://github.com/kubernetes-sigs/gateway-api/pull/4530";

/// Returns the CustomResourceDefinitions.
///
/// # Panics
/// Never with the table of this crate: a test makes them all.
pub fn definitions() -> Vec<Value> {
    Table::parse(TABLE).definitions()
}

/// Returns the resources of a group.
pub fn resources(group: &str) -> Vec<String> {
    let kinds = Table::parse(TABLE).kinds.into_iter().filter(|kind| kind.group == group);
    kinds.map(|kind| kind.plural).collect()
}

/// Reports whether a CustomResourceDefinition of the cluster is newer than ours, and so stays as it is.
pub fn is_newer(installed: &Value) -> bool {
    let version = |text: &str| -> Vec<u64> {
        let numbers = text.trim_start_matches('v').split(['.', '-']);
        numbers.map_while(|number| number.parse().ok()).collect()
    };
    let annotations = &installed["metadata"]["annotations"];
    let bundle = annotations[BUNDLE_ANNOTATION].as_str().unwrap_or_default();
    version(bundle) > version(BUNDLE_VERSION)
        || (annotations[CHANNEL_ANNOTATION] == "experimental" && version(bundle) == version(BUNDLE_VERSION))
}

/// A named type, or the fields of an object, as the table writes it.
#[derive(Default)]
struct Entry {
    /// A schema without its nested types.
    base: Line,
    fields: Vec<Line>,
    rules: Vec<Value>,
    is_object: bool,
}

/// A type expression with its attributes: a field, or a named type.
#[derive(Clone, Default)]
struct Line {
    name: String,
    required: bool,
    kind: String,
    attributes: Vec<String>,
    rules: Vec<Value>,
}

struct Kind {
    group: String,
    kind: String,
    plural: String,
    scope: String,
    versions: Vec<String>,
    attributes: Vec<String>,
    columns: Vec<Value>,
}

#[derive(Default)]
struct Table {
    /// The group of the kinds below; empty for that of Gateway API.
    group: String,
    patterns: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
    kinds: Vec<Kind>,
}

impl Line {
    /// Parses `NAME[!] TYPE ATTRIBUTES`. The default is last, because it may contain spaces.
    fn parse(text: &str) -> Line {
        let (text, default) = match text.split_once(" =") {
            Some((text, default)) => (text, Some(format!("={default}"))),
            None => (text, None),
        };
        let mut words = text.split(' ').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let kind = words.next().unwrap_or_default();
        Line {
            required: name.ends_with('!'),
            name: name.trim_end_matches('!').to_owned(),
            kind,
            attributes: words.chain(default).collect(),
            rules: Vec::new(),
        }
    }
}

/// Parses `EXPRESSION ;; MESSAGE`.
fn rule(text: &str) -> Value {
    let (expression, message) = text.split_once(" ;; ").unwrap_or((text, ""));
    json!({"rule": expression, "message": message})
}

/// Parses `NAME TYPE PATH [priority=N]` of a printer column.
fn column(text: &str) -> Value {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let mut column = json!({"name": word(0), "type": word(1), "jsonPath": word(2)});
    if let Some(priority) = word(3).strip_prefix("priority=").and_then(|number| number.parse::<i64>().ok()) {
        column["priority"] = json!(priority);
    }
    column
}

impl Table {
    fn parse(text: &str) -> Table {
        let mut table = Table::default();
        let mut current = String::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if !line.starts_with(' ') {
                current = table.declare(line);
                continue;
            }
            let nested = line.starts_with("    ");
            let line = line.trim_start();
            if let Some(text) = line.strip_prefix("column ") {
                if let Some(kind) = table.kinds.last_mut() {
                    kind.columns.push(column(text));
                }
                continue;
            }
            let Some(entry) = table.entries.get_mut(&current) else { continue };
            match (line.strip_prefix("rule "), entry.fields.last_mut().filter(|_| nested)) {
                (Some(text), Some(field)) => field.rules.push(rule(text)),
                (Some(text), None) => entry.rules.push(rule(text)),
                (None, _) => entry.fields.push(Line::parse(line)),
            }
        }
        table
    }

    /// Takes a line that is not indented, and returns the name that the indented lines below belong to.
    fn declare(&mut self, line: &str) -> String {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "pattern" => {
                let (name, pattern) = rest.split_once(' ').unwrap_or((rest, ""));
                self.patterns.insert(name.to_owned(), pattern.to_owned());
                String::new()
            }
            "group" => {
                self.group = rest.to_owned();
                String::new()
            }
            "kind" => {
                let words: Vec<String> = rest.split(' ').map(str::to_owned).collect();
                let word = |index: usize| words.get(index).cloned().unwrap_or_default();
                let group = if self.group.is_empty() { GROUP.to_owned() } else { self.group.clone() };
                self.kinds.push(Kind {
                    group,
                    kind: word(0),
                    plural: word(1),
                    scope: word(2),
                    versions: word(3).split(',').map(str::to_owned).collect(),
                    attributes: words.iter().skip(4).cloned().collect(),
                    columns: Vec::new(),
                });
                String::new()
            }
            _ => {
                let is_object = word == "object";
                let text = match (is_object, rest.split_once(' ')) {
                    (false, _) => rest.to_owned(),
                    (true, Some((name, attributes))) => format!("{name} object {attributes}"),
                    (true, None) => format!("{rest} object"),
                };
                let base = Line::parse(&text);
                let name = base.name.clone();
                self.entries.insert(name.clone(), Entry { base, is_object, ..Entry::default() });
                name
            }
        }
    }

    fn definitions(&self) -> Vec<Value> {
        self.kinds.iter().map(|kind| self.definition(kind)).collect()
    }

    fn definition(&self, kind: &Kind) -> Value {
        let attribute = |name: &str| kind.attributes.iter().find_map(|one| one.strip_prefix(name));
        let singular = kind.kind.to_lowercase();
        let mut names = json!({
            "kind": kind.kind, "listKind": format!("{}List", kind.kind), "plural": kind.plural,
            "singular": singular, "categories": ["gateway-api"],
        });
        let annotations = match kind.group == GROUP {
            true => json!({
                APPROVED: APPROVAL,
                BUNDLE_ANNOTATION: BUNDLE_VERSION,
                CHANNEL_ANNOTATION: "standard",
            }),
            false => json!({}),
        };
        if let Some(short) = attribute("short=") {
            names["shortNames"] = json!([short]);
        }
        let mut definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{}.{}", kind.plural, kind.group),
                "annotations": annotations,
            },
            "spec": {
                "group": kind.group,
                "names": names,
                "scope": kind.scope,
                "versions": kind.versions.iter().map(|version| self.version(kind, version)).collect::<Vec<_>>(),
            },
        });
        if let Some((name, value)) = attribute("label=").and_then(|label| label.rsplit_once('=')) {
            definition["metadata"]["labels"] = json!({name: value});
        }
        definition
    }

    fn version(&self, kind: &Kind, version: &str) -> Value {
        let name = version.trim_end_matches(['+', '-']);
        let status = format!("{}Status", kind.kind);
        let mut properties = json!({
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": self.named(&format!("{}Spec", kind.kind)),
        });
        let has_status = self.entries.contains_key(&status);
        if has_status {
            properties["status"] = self.named(&status);
        }
        let mut version = json!({
            "name": name,
            "served": !version.ends_with('-'),
            "storage": version.ends_with('+'),
            "additionalPrinterColumns": kind.columns,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties, "required": ["spec"]}},
        });
        if has_status {
            version["subresources"] = json!({"status": {}});
        }
        version
    }

    /// Returns the schema of a named type.
    fn named(&self, name: &str) -> Value {
        let Some(entry) = self.entries.get(name) else { return json!({"type": name}) };
        let mut schema = self.schema(&entry.base);
        if entry.is_object {
            let mut properties = Map::new();
            let mut required = Vec::new();
            for field in &entry.fields {
                properties.insert(field.name.clone(), self.schema(field));
                if field.required {
                    required.push(json!(field.name));
                }
            }
            schema["properties"] = Value::Object(properties);
            if !required.is_empty() {
                schema["required"] = Value::Array(required);
            }
        }
        add_rules(&mut schema, &entry.rules);
        schema
    }

    /// Returns the schema of a type expression with its attributes.
    fn schema(&self, line: &Line) -> Value {
        let item = |open: char, close: char| line.kind.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        let mut schema = if let Some(item) = item('[', ']') {
            json!({"type": "array", "items": self.named(item), "x-kubernetes-list-type": "atomic"})
        } else if let Some(item) = item('{', '}') {
            json!({"type": "object", "additionalProperties": self.named(item)})
        } else if line.kind == "object" {
            json!({"type": "object"})
        } else {
            self.named(&line.kind)
        };
        for attribute in &line.attributes {
            self.apply(&mut schema, attribute);
        }
        add_rules(&mut schema, &line.rules);
        schema
    }

    fn apply(&self, schema: &mut Value, attribute: &str) {
        if let Some(default) = attribute.strip_prefix('=') {
            schema["default"] = serde_json::from_str(default).unwrap_or(Value::Null);
            return;
        }
        let kind = schema["type"].as_str().unwrap_or_default().to_owned();
        let limit = |of: &str, suffix: &str| match suffix {
            "" => format!("{of}imum"),
            suffix => format!("{of}{suffix}"),
        };
        let suffix = match kind.as_str() {
            "integer" => "",
            "string" => "Length",
            "array" => "Items",
            _ => "Properties",
        };
        let number = |text: &str| json!(text.parse::<i64>().unwrap_or_default());
        match attribute.split_once('=') {
            Some(("min", value)) => schema[limit("min", suffix)] = number(value),
            Some(("max", value)) => schema[limit("max", suffix)] = number(value),
            Some(("format", value)) => schema["format"] = json!(value),
            Some(("pattern", name)) => schema["pattern"] = json!(self.patterns.get(name)),
            Some(("enum", values)) => {
                let value = |text: &str| if kind == "integer" { number(text) } else { json!(text) };
                schema["enum"] = values.split('|').map(value).collect();
            }
            Some(("map", keys)) => {
                schema["x-kubernetes-list-type"] = json!("map");
                schema["x-kubernetes-list-map-keys"] = keys.split(',').map(|key| json!(key)).collect();
            }
            None if attribute == "set" => schema["x-kubernetes-list-type"] = json!("set"),
            None if attribute == "atomic" => schema["x-kubernetes-map-type"] = json!("atomic"),
            _ => {}
        }
    }
}

fn add_rules(schema: &mut Value, rules: &[Value]) {
    if rules.is_empty() {
        return;
    }
    match schema["x-kubernetes-validations"].as_array_mut() {
        Some(existing) => existing.extend(rules.iter().cloned()),
        None => schema["x-kubernetes-validations"] = json!(rules),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_pattern_of_the_table_exists() {
        let table = Table::parse(TABLE);
        let lines = table.entries.values().flat_map(|entry| entry.fields.iter().chain([&entry.base]));
        for line in lines {
            let name = line.kind.trim_matches(['[', ']', '{', '}']);
            let known = ["string", "integer", "boolean", "object"].contains(&name) || table.entries.contains_key(name);
            assert!(known, "{}: {name}", line.name);
            for pattern in line.attributes.iter().filter_map(|one| one.strip_prefix("pattern=")) {
                assert!(table.patterns.contains_key(pattern), "{pattern}");
            }
            for default in line.attributes.iter().filter_map(|one| one.strip_prefix('=')) {
                assert!(serde_json::from_str::<Value>(default).is_ok(), "{default}");
            }
        }
    }

    #[test]
    fn a_field_has_the_limits_of_its_line_and_of_its_type() {
        let definitions = definitions();
        let gateways = definitions.iter().find(|one| one["metadata"]["name"] == format!("gateways.{GROUP}"));
        let schema = &gateways.expect("gateways")["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let listeners = &schema["properties"]["spec"]["properties"]["listeners"];
        assert_eq!(listeners["maxItems"], 64);
        assert_eq!(listeners["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(listeners["items"]["properties"]["port"]["maximum"], 65535);
        assert_eq!(listeners["items"]["required"], json!(["name", "port", "protocol"]));
        assert_eq!(definitions.len(), 11);
        assert_eq!(resources(GROUP).len(), 10);
        assert_eq!(resources(POLICY_GROUP), ["routepolicies"]);
    }

    #[test]
    fn a_newer_bundle_and_the_experimental_channel_stay() {
        let of = |version: &str, channel: &str| json!({"metadata": {"annotations": {BUNDLE_ANNOTATION: version, CHANNEL_ANNOTATION: channel}}});
        assert!(is_newer(&of("v1.7.0", "standard")));
        assert!(is_newer(&of("v1.6.1", "experimental")));
        assert!(!is_newer(&of("v1.6.1", "standard")));
        assert!(!is_newer(&of("v1.5.0", "experimental")));
        assert!(!is_newer(&json!({})));
    }
}
