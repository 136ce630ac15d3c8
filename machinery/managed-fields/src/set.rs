//! Sets of paths into an object, and their encoding in `managedFields` (FieldsV1).
//!
//! A set is a tree whose nodes are members or only lead to members. FieldsV1 is the same tree in JSON: `f:name` is a
//! field, `k:{…}` the item of a list with these keys, `v:…` the item of a set with this value, `i:n` an index, and `.`
//! marks a node with children that is itself a member.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use corten_meta::Value;
use corten_meta::quote::quote;
use serde_json::Map;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    Field(String),
    /// The item of a list with these keys: JSON, its fields sorted, so that equal keys are equal strings.
    Key(String),
    /// The item of a set with this value, as JSON.
    Value(String),
    Index(i64),
}

impl Element {
    /// Returns the item of a list by its keys and their values.
    pub fn key(mut keys: Vec<(&str, &Value)>) -> Element {
        keys.sort_unstable_by_key(|(name, _)| *name);
        let fields: Vec<String> =
            keys.into_iter().map(|(name, value)| format!("{}:{value}", Value::from(name))).collect();
        Element::Key(escaped(format!("{{{}}}", fields.join(","))))
    }

    /// Returns the item of a set.
    pub fn value(value: &Value) -> Element {
        Element::Value(escaped(value.to_string()))
    }

    /// Decodes an element; one of an unknown type is none.
    fn decode(text: &str) -> Result<Option<Element>, String> {
        let (prefix, rest) = text.split_once(':').ok_or_else(|| format!("missing colon: {}", quote(text)))?;
        let json = || serde_json::from_str::<Value>(rest).map_err(|e| format!("parsing {}: {e}", quote(text)));
        match prefix {
            "f" => Ok(Some(Element::Field(rest.to_owned()))),
            "k" => match json()? {
                Value::Object(keys) => Ok(Some(Element::key(keys.iter().map(|(k, v)| (k.as_str(), v)).collect()))),
                _ => Err(format!("not an object: {}", quote(text))),
            },
            "v" => Ok(Some(Element::value(&json()?))),
            "i" => rest.parse().map(|at| Some(Element::Index(at))).map_err(|e| format!("parsing {}: {e}", quote(text))),
            unknown if unknown.len() == 1 => Ok(None),
            _ => Err(format!("missing colon: {}", quote(text))),
        }
    }

    /// Compares elements in the order of messages: numbers by value, which is not the order of their strings.
    fn message_order(&self, other: &Element) -> Ordering {
        let keys = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap_or_default();
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
        match (self, other) {
            (Element::Key(one), Element::Key(other)) => {
                let one = keys(one);
                let other = keys(other);
                let pairs = one.iter().zip(&other).map(|(a, b)| a.0.cmp(b.0).then_with(|| compare(a.1, b.1)));
                pairs.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&other.len()))
            }
            (Element::Value(one), Element::Value(other)) => compare(&value(one), &value(other)),
            _ => self.cmp(other),
        }
    }

    fn encode(&self) -> String {
        match self {
            Element::Field(name) => ["f:", name].concat(),
            Element::Key(keys) => format!("k:{keys}"),
            Element::Value(value) => format!("v:{value}"),
            Element::Index(index) => format!("i:{index}"),
        }
    }
}

/// Compares values: numbers before strings before everything else.
fn compare(one: &Value, other: &Value) -> Ordering {
    let rank = |value: &Value| [value.is_number(), value.is_string()].iter().position(|is| *is).unwrap_or(2);
    rank(one).cmp(&rank(other)).then_with(|| match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (one.as_i64(), other.as_i64()) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => one.as_f64().unwrap_or_default().total_cmp(&other.as_f64().unwrap_or_default()),
        },
        (Value::String(one), Value::String(other)) => one.cmp(other),
        _ => one.to_string().cmp(&other.to_string()),
    })
}

/// Escapes JSON as upstream's writer of names does.
fn escaped(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) && !json.contains("\\b") && !json.contains("\\f") {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    let mut chars = json.chars();
    while let Some(c) = chars.next() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            '\\' => match chars.next() {
                Some('b') => out.push_str("\\u0008"),
                Some('f') => out.push_str("\\u000c"),
                escape => out.extend(['\\'].into_iter().chain(escape)),
            },
            c => out.push(c),
        }
    }
    out
}

/// The form in messages: `.field`, `[key="value"]`, `[="value"]`, `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(keys) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let pairs: Vec<String> =
                    keys.iter().map(|(name, value)| format!("{name}={}", key_text(value))).collect();
                write!(f, "[{}]", pairs.join(","))
            }
            Element::Value(value) => match serde_json::from_str::<Value>(value) {
                Ok(value) => write!(f, "[={}]", key_text(&value)),
                Err(_) => write!(f, "[={value}]"),
            },
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Formats the value of a key as upstream prints it, also one that is no scalar, which no key may be.
fn key_text(value: &Value) -> String {
    match value {
        Value::Object(map) => map.iter().map(|(name, inner)| format!("{name}={}", key_text(inner))).collect(),
        Value::Array(items) => format!("[{}]", items.iter().map(key_text).collect::<Vec<_>>().join(",")),
        Value::String(text) => quote(text),
        other => other.to_string(),
    }
}

/// A set of paths.
///
/// Invariant: every node is a member or leads to one, so that equal sets are equal trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    nodes: BTreeMap<Element, Node>,
}

/// A node of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Whether the path to here is in the set.
    pub member: bool,
    /// The paths in the set that begin with the path to here.
    pub below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a path; the empty path is the object itself, which has no owner.
    pub fn insert(&mut self, path: impl IntoIterator<Item = Element>) {
        let mut path = path.into_iter().peekable();
        let mut here = self;
        while let Some(element) = path.next() {
            let node = here.nodes.entry(element).or_default();
            if path.peek().is_none() {
                node.member = true;
                return;
            }
            here = &mut node.below;
        }
    }

    /// Sets the node of an element, unless it is empty.
    pub fn put(&mut self, element: &dyn Fn() -> Element, node: Node) {
        if !node.is_empty() {
            self.nodes.insert(element(), node);
        }
    }

    /// Adds a path of field names.
    pub fn insert_fields(&mut self, path: &[&str]) {
        self.insert(path.iter().map(|name| Element::Field((*name).to_owned())));
    }

    /// Returns a set of paths of field names.
    pub fn of_fields(paths: &[&[&str]]) -> Set {
        let mut set = Set::default();
        paths.iter().for_each(|path| set.insert_fields(path));
        set
    }

    pub fn get(&self, element: &Element) -> Option<&Node> {
        self.nodes.get(element)
    }

    pub fn contains(&self, path: &[Element]) -> bool {
        let Some((last, before)) = path.split_last() else { return false };
        let mut here = self;
        for element in before {
            match here.nodes.get(element) {
                Some(node) => here = &node.below,
                None => return false,
            }
        }
        here.nodes.get(last).is_some_and(|node| node.member)
    }

    /// Returns the paths that are in one of the two.
    pub fn union(&self, other: &Set) -> Set {
        let mut union = self.clone();
        union.extend(other);
        union
    }

    /// Adds the paths of the other.
    pub fn extend(&mut self, other: &Set) {
        for (element, node) in &other.nodes {
            match self.nodes.get_mut(element) {
                Some(present) => {
                    present.member |= node.member;
                    present.below.extend(&node.below);
                }
                None => {
                    self.nodes.insert(element.clone(), node.clone());
                }
            }
        }
    }

    /// Returns the paths of this that are not in the other.
    pub fn difference(&self, other: &Set) -> Set {
        let mut difference = self.clone();
        difference.subtract(other);
        difference
    }

    /// Removes the paths of the other.
    pub fn subtract(&mut self, other: &Set) {
        for (element, theirs) in &other.nodes {
            let Some(node) = self.nodes.get_mut(element) else { continue };
            node.member &= !theirs.member;
            node.below.subtract(&theirs.below);
            if node.is_empty() {
                self.nodes.remove(element);
            }
        }
    }

    /// Returns whether all paths of the other are in this.
    pub fn contains_all(&self, other: &Set) -> bool {
        other.nodes.iter().all(|(element, theirs)| match self.nodes.get(element) {
            Some(node) => (node.member || !theirs.member) && node.below.contains_all(&theirs.below),
            None => false,
        })
    }

    /// Removes the paths of the other and all paths below them.
    fn cut(&mut self, other: &Set) {
        self.nodes.retain(|element, node| match other.nodes.get(element) {
            None => true,
            Some(theirs) if theirs.member => false,
            Some(theirs) => {
                node.below.cut(&theirs.below);
                !node.is_empty()
            }
        });
    }

    /// Returns the paths that are in both.
    pub fn intersection(&self, other: &Set) -> Set {
        self.filtered(|element, node| match other.nodes.get(element) {
            None => Node::default(),
            Some(theirs) => {
                Node { member: node.member && theirs.member, below: node.below.intersection(&theirs.below) }
            }
        })
    }

    /// Returns the set with its nodes mapped by `keep`.
    pub fn filtered(&self, keep: impl Fn(&Element, &Node) -> Node) -> Set {
        let nodes = self.nodes.iter().map(|(element, node)| (element.clone(), keep(element, node)));
        Set { nodes: nodes.filter(|(_, node)| !node.is_empty()).collect() }
    }

    /// Returns all paths in order: of each level the members first, then the paths below.
    pub fn paths(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, prefix: &mut Vec<Element>, paths: &mut Vec<Vec<Element>>) {
        let mut nodes: Vec<(&Element, &Node)> = self.nodes.iter().collect();
        nodes.sort_by(|(one, _), (other, _)| one.message_order(other));
        for (element, _) in nodes.iter().filter(|(_, node)| node.member) {
            paths.push(prefix.iter().cloned().chain([(*element).clone()]).collect());
        }
        for (element, node) in nodes {
            prefix.push(element.clone());
            node.below.collect(prefix, paths);
            prefix.pop();
        }
    }

    /// Reads FieldsV1.
    pub fn decode(fields: &Value) -> Result<Set, String> {
        let mut set = Set::default();
        if fields.is_null() {
            return Ok(set);
        }
        let fields = fields.as_object().ok_or("fieldsV1 is not an object")?;
        for (name, inner) in fields.iter().filter(|(name, _)| *name != ".") {
            let Some(element) = Element::decode(name)? else { continue };
            let below = Set::decode(inner)?;
            let member = below.is_empty() || inner.get(".").is_some();
            set.nodes.insert(element, Node { member, below });
        }
        Ok(set)
    }

    /// Writes FieldsV1.
    pub fn encode(&self) -> Value {
        let mut fields = Map::new();
        for (element, node) in &self.nodes {
            let mut inner = node.below.encode();
            if node.member
                && !node.below.is_empty()
                && let Some(inner) = inner.as_object_mut()
            {
                inner.insert(".".to_owned(), Value::Object(Map::new()));
            }
            fields.insert(element.encode(), inner);
        }
        Value::Object(fields)
    }
}

/// Stored FieldsV1, with queries that need no decoding.
pub struct Encoded<'a>(pub &'a Value);

impl Encoded<'_> {
    fn is_member(&self) -> bool {
        self.0.as_object().is_some_and(|inner| inner.is_empty() || inner.contains_key("."))
    }

    /// Returns whether a path of the set is in this.
    pub fn intersects(&self, set: &Set) -> bool {
        set.nodes.iter().any(|(element, node)| match self.0.get(element.encode()).map(Encoded) {
            Some(inner) => (node.member && inner.is_member()) || inner.intersects(&node.below),
            None => false,
        })
    }

    /// Returns whether all paths of the set are in this.
    pub fn contains_all(&self, set: &Set) -> bool {
        set.nodes.iter().all(|(element, node)| match self.0.get(element.encode()).map(Encoded) {
            Some(inner) => (!node.member || inner.is_member()) && inner.contains_all(&node.below),
            None => false,
        })
    }
}

/// Formats a path as messages show it.
pub fn show(path: &[Element]) -> String {
    path.iter().map(ToString::to_string).collect()
}

/// The paths that a request can own; it may not write the others.
#[derive(Clone, Debug, Default)]
pub enum Filter {
    #[default]
    All,
    /// All paths but these and those below them.
    Without(Set),
    /// Only the paths at or below one of these; `None` matches any element.
    Only(Vec<Vec<Option<&'static str>>>),
}

impl Filter {
    pub fn apply(&self, mut set: Set) -> Set {
        match self {
            Filter::All => set,
            Filter::Without(excluded) => {
                set.cut(excluded);
                set
            }
            Filter::Only(patterns) => {
                let patterns: Vec<&[Option<&str>]> = patterns.iter().map(Vec::as_slice).collect();
                only(&set, &patterns)
            }
        }
    }
}

fn only(set: &Set, patterns: &[&[Option<&str>]]) -> Set {
    set.filtered(|element, node| {
        let matches = |wanted: &Option<&str>| match (wanted, element) {
            (None, _) => true,
            (Some(wanted), Element::Field(name)) => wanted == name,
            _ => false,
        };
        let rest: Vec<&[Option<&str>]> = patterns
            .iter()
            .filter_map(|pattern| pattern.split_first().filter(|(first, _)| matches(first)).map(|(_, rest)| rest))
            .collect();
        if rest.iter().any(|rest| rest.is_empty()) {
            return node.clone();
        }
        Node { member: false, below: only(&node.below, &rest) }
    })
}
