//! The reader of tables of kinds. A table is a part of the program, and a test of its package makes all its
//! CustomResourceDefinitions: a line that is wrong fails there.
//!
//! ```text
//! pattern NAME REGEX                  a regular expression that fields name
//! type NAME BASE ATTRIBUTES           a string, integer, boolean, list or map with limits
//! object NAME                         its fields are indented: NAME[!] TYPE ATTRIBUTES, ! if required
//! group GROUP ANNOTATION=VALUE…       the group of the kinds that follow, and annotations of their definitions
//! kind KIND PLURAL SCOPE VERSIONS     + is stored, - is not served, ~ is deprecated
//! ```
//!
//! The fields of a kind are the objects `KINDSpec` and `KINDStatus`; `KINDStatus@VERSION` is another status in that
//! version. A kind without a spec has its fields in the object `KIND`. `[T]` is a list of T, atomic unless `map=KEY` or
//! `set`; `{T}` is a map. min and max limit a number, or the length of a string, list or map, by its type. `=JSON` is the
//! default. `rule EXPRESSION ;; MESSAGE` is a rule in CEL. Attributes of a kind: `short=NAMES`, `category=NAME`,
//! `label=KEY=VALUE` and `approved=URL`.

use std::collections::BTreeMap;

use corten_meta::Value;
use serde_json::{Map, json};

/// The annotation by which a CustomResourceDefinition may use a group below k8s.io.
const APPROVED: &str = "api-approved.kubernetes.io";

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
    annotations: BTreeMap<String, String>,
    kind: String,
    plural: String,
    scope: String,
    versions: Vec<String>,
    attributes: Vec<String>,
    columns: Vec<Value>,
}

/// The kinds of a table, with the types of their fields.
#[derive(Default)]
pub struct Table {
    patterns: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
    /// The group of the kinds that follow, and the annotations of their definitions.
    group: String,
    annotations: BTreeMap<String, String>,
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
    /// Reads a table.
    pub fn parse(text: &str) -> Table {
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
                let (group, annotations) = rest.split_once(' ').unwrap_or((rest, ""));
                group.clone_into(&mut self.group);
                let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
                self.annotations = annotations.split(' ').filter_map(pair).collect();
                String::new()
            }
            "kind" => {
                let words: Vec<String> = rest.split(' ').map(str::to_owned).collect();
                let word = |index: usize| words.get(index).cloned().unwrap_or_default();
                self.kinds.push(Kind {
                    group: self.group.clone(),
                    annotations: self.annotations.clone(),
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

    /// Returns the CustomResourceDefinitions of the kinds.
    pub fn definitions(&self) -> Vec<Value> {
        self.kinds.iter().map(|kind| self.definition(kind)).collect()
    }

    /// Returns the plural names of the kinds.
    pub fn resources(&self) -> Vec<String> {
        self.kinds.iter().map(|kind| kind.plural.clone()).collect()
    }

    /// Returns the errors of the table: types and patterns that do not exist, and defaults that are not JSON. For the
    /// test of the package that has the table.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let entries = self.entries.values();
        for line in entries.flat_map(|entry| entry.fields.iter().chain([&entry.base])) {
            let name = line.kind.trim_matches(['[', ']', '{', '}']);
            if !["string", "integer", "boolean", "object"].contains(&name) && !self.entries.contains_key(name) {
                errors.push(format!("{}: no type {name}", line.name));
            }
            for attribute in &line.attributes {
                let pattern = attribute.strip_prefix("pattern=");
                let default = attribute.strip_prefix('=');
                if pattern.is_some_and(|pattern| !self.patterns.contains_key(pattern))
                    || default.is_some_and(|default| serde_json::from_str::<Value>(default).is_err())
                {
                    errors.push(format!("{}: {attribute}", line.name));
                }
            }
        }
        errors
    }

    fn definition(&self, kind: &Kind) -> Value {
        let attribute = |name: &str| kind.attributes.iter().find_map(|one| one.strip_prefix(name));
        let mut names = json!({
            "kind": kind.kind, "listKind": format!("{}List", kind.kind), "plural": kind.plural,
            "singular": kind.kind.to_lowercase(),
        });
        if let Some(short) = attribute("short=") {
            names["shortNames"] = short.split(',').map(|name| json!(name)).collect();
        }
        if let Some(category) = attribute("category=") {
            names["categories"] = json!([category]);
        }
        let mut definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{}", kind.plural, kind.group), "annotations": kind.annotations},
            "spec": {
                "group": kind.group,
                "names": names,
                "scope": kind.scope,
                "versions": kind.versions.iter().map(|version| self.version(kind, version)).collect::<Vec<_>>(),
            },
        });
        if let Some(approval) = attribute("approved=") {
            definition["metadata"]["annotations"][APPROVED] = json!(approval);
        }
        if let Some((name, value)) = attribute("label=").and_then(|label| label.rsplit_once('=')) {
            definition["metadata"]["labels"] = json!({name: value});
        }
        definition
    }

    fn version(&self, kind: &Kind, version: &str) -> Value {
        let name = version.trim_end_matches(['+', '-', '~']);
        let mut schema = match self.entries.contains_key(&kind.kind) {
            true => self.named(&kind.kind),
            false => json!({
                "type": "object",
                "properties": {"spec": self.named(&format!("{}Spec", kind.kind))},
                "required": ["spec"],
            }),
        };
        schema["properties"]["apiVersion"] = json!({"type": "string"});
        schema["properties"]["kind"] = json!({"type": "string"});
        schema["properties"]["metadata"] = json!({"type": "object"});
        let status = format!("{}Status", kind.kind);
        let statuses = [format!("{status}@{name}"), status];
        let status = statuses.iter().find(|status| self.entries.contains_key(*status));
        if let Some(status) = status {
            schema["properties"]["status"] = self.named(status);
        }
        let mut definition = json!({
            "name": name,
            "served": !version.ends_with('-'),
            "storage": version.ends_with('+'),
            "additionalPrinterColumns": kind.columns,
            "schema": {"openAPIV3Schema": schema},
        });
        if version.ends_with('~') {
            definition["deprecated"] = json!(true);
        }
        if status.is_some() {
            definition["subresources"] = json!({"status": {}});
        }
        definition
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
            None if attribute == "int-or-string" => schema["x-kubernetes-int-or-string"] = json!(true),
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
