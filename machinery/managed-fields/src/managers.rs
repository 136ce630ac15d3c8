//! `metadata.managedFields`: one entry for each manager, operation, version and subresource.

use std::borrow::Cow;

use corten_meta::Value;
use corten_meta::quote::quote;
use serde_json::{Map, json};

use super::set::{Encoded, Set};

/// The operation by which a manager owns its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The manager of an entry. An applier is the same in every version; an updater is another in each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
}

impl Entry {
    /// Returns the string by which upstream distinguishes managers, and sorts them where it lists several.
    pub fn key(&self) -> String {
        let Identity { manager, operation, api_version, subresource } = &self.identity;
        let mut fields = vec![("manager", manager.as_str())];
        match operation {
            Operation::Apply => fields.push(("operation", "Apply")),
            Operation::Update => fields.extend([("operation", "Update"), ("apiVersion", api_version.as_str())]),
        }
        if !subresource.is_empty() {
            fields.push(("subresource", subresource));
        }
        let text = |(name, value): &(&str, &str)| format!("{name}:{}", Value::from(*value), name = quote(name));
        format!("{{{}}}", fields.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

impl Identity {
    pub fn is(&self, other: &Identity) -> bool {
        let version = self.operation == Operation::Apply || self.api_version == other.api_version;
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && version
    }
}

/// The fields that a manager owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub identity: Identity,
    /// The time when its set last grew, as it is encoded; unknown for some.
    pub time: Option<String>,
    pub fields: Fields,
}

/// The paths of an entry, decoded only when they change: most writes leave most entries unchanged.
#[derive(Clone, Debug)]
pub enum Fields {
    Stored(Value),
    Decoded(Set),
}

impl PartialEq for Fields {
    fn eq(&self, other: &Fields) -> bool {
        self.encode() == other.encode()
    }
}

impl Fields {
    /// Returns the paths; unreadable ones have no owner.
    pub fn set(&self) -> Cow<'_, Set> {
        match self {
            Fields::Stored(fields) => Cow::Owned(Set::decode(fields).unwrap_or_default()),
            Fields::Decoded(set) => Cow::Borrowed(set),
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Fields::Stored(fields) => fields.as_object().is_none_or(Map::is_empty),
            Fields::Decoded(set) => set.is_empty(),
        }
    }

    /// Removes the paths of the set.
    pub fn subtract(&mut self, lost: &Set) {
        let touched = match self {
            Fields::Stored(fields) => Encoded(fields).intersects(lost),
            Fields::Decoded(_) => true,
        };
        if touched {
            self.decoded().subtract(lost);
        }
    }

    /// Adds the paths of the set.
    pub fn extend(&mut self, gained: &Set) {
        if !self.contains_all(gained) {
            self.decoded().extend(gained);
        }
    }

    /// Returns the paths, to change them.
    fn decoded(&mut self) -> &mut Set {
        if let Fields::Stored(fields) = self {
            *self = Fields::Decoded(Set::decode(fields).unwrap_or_default());
        }
        match self {
            Fields::Decoded(set) => set,
            Fields::Stored(_) => unreachable!("it was decoded above"),
        }
    }

    pub fn contains_all(&self, paths: &Set) -> bool {
        match self {
            Fields::Stored(fields) => Encoded(fields).contains_all(paths),
            Fields::Decoded(set) => set.contains_all(paths),
        }
    }

    pub fn encode(&self) -> Value {
        match self {
            Fields::Stored(fields) => fields.clone(),
            Fields::Decoded(set) => set.encode(),
        }
    }

    fn into_encoded(self) -> Value {
        match self {
            Fields::Stored(fields) => fields,
            Fields::Decoded(set) => set.encode(),
        }
    }
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Managers {
    pub entries: Vec<Entry>,
}

impl Managers {
    /// Reads `metadata.managedFields` that this server wrote; its paths stay as they are until they are needed.
    pub fn stored(managed_fields: Option<Value>) -> Managers {
        let Some(Value::Array(list)) = managed_fields else { return Managers::default() };
        let entries = list.into_iter().enumerate().filter_map(|(index, mut entry)| {
            let (identity, time) = decode_identity(&entry, index).ok()?;
            let fields = entry.get_mut("fieldsV1").filter(|fields| fields.is_object())?.take();
            Some(Entry { identity, time, fields: Fields::Stored(fields) })
        });
        Managers { entries: entries.collect() }.unique()
    }

    /// Drops all but the last entry of each manager.
    pub fn unique(mut self) -> Managers {
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &self.entries[at].identity;
            let later = &self.entries[at + 1..];
            match later.iter().any(|other| other.identity.is(entry)) {
                true => drop(self.entries.remove(at)),
                false => at += 1,
            }
        }
        self
    }

    /// Reads `metadata.managedFields` of a client; absent is empty.
    pub fn decode(managed_fields: Option<&Value>) -> Result<Managers, String> {
        let list = managed_fields.and_then(Value::as_array);
        let mut managers = Managers::default();
        for (index, entry) in list.into_iter().flatten().enumerate() {
            let entry = decode_entry(entry, index)?;
            match managers.position(&entry.identity) {
                Some(at) => managers.entries[at] = entry,
                None => managers.entries.push(entry),
            }
        }
        Ok(managers)
    }

    /// Encodes `metadata.managedFields`; `None` when there are no entries.
    pub fn encode(mut self) -> Option<Value> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.sort_by(|a, b| order(a).cmp(&order(b)));
        Some(Value::Array(self.entries.into_iter().map(encode_entry).collect()))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn position(&self, identity: &Identity) -> Option<usize> {
        self.entries.iter().position(|entry| entry.identity.is(identity))
    }

    pub fn take(&mut self, identity: &Identity) -> Option<Entry> {
        self.position(identity).map(|at| self.entries.remove(at))
    }
}

fn decode_identity(entry: &Value, index: usize) -> Result<(Identity, Option<String>), String> {
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_owned()),
    };
    let api_version = text("apiVersion");
    if api_version.is_empty() {
        return Err("apiVersion must not be empty".to_owned());
    }
    match text("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
        other => {
            return Err(format!("invalid fieldsType {} in managed fields entry {index}", quote(other)));
        }
    }
    let manager = text("manager").to_owned();
    let subresource = text("subresource").to_owned();
    let identity = Identity { manager, operation, api_version: api_version.to_owned(), subresource };
    Ok((identity, entry["time"].as_str().map(str::to_owned)))
}

fn decode_entry(entry: &Value, index: usize) -> Result<Entry, String> {
    let (identity, time) = decode_identity(entry, index)?;
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => Set::default(),
        Some(fields) => Set::decode(fields)?,
    };
    Ok(Entry { identity, time, fields: Fields::Decoded(fields) })
}

/// Returns the sort key of an entry.
fn order(entry: &Entry) -> (Operation, &str, &str, &str, &str) {
    let identity = &entry.identity;
    let time = entry.time.as_deref().unwrap_or_default();
    (identity.operation, time, &identity.manager, &identity.api_version, &identity.subresource)
}

fn encode_entry(entry: Entry) -> Value {
    let mut out = Map::new();
    let Entry { identity, time, fields } = entry;
    out.insert("apiVersion".to_owned(), identity.api_version.into());
    out.insert("fieldsType".to_owned(), "FieldsV1".into());
    out.insert("fieldsV1".to_owned(), fields.into_encoded());
    out.insert("operation".to_owned(), identity.operation.word().into());
    for (name, text) in [("manager", identity.manager), ("subresource", identity.subresource)] {
        if !text.is_empty() {
            out.insert(name.to_owned(), text.into());
        }
    }
    if let Some(time) = time {
        out.insert("time".to_owned(), time.into());
    }
    Value::Object(out)
}

/// Returns whether a client resets all ownership: by an empty list, or one empty entry.
pub fn is_reset(managed_fields: Option<&Value>) -> bool {
    match managed_fields.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => *entry == json!({}),
        _ => false,
    }
}
