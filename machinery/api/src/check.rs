//! A position in an object: a value together with its path, so that a kind's rules read as a table.
//!
//! A rule takes a position and the list of errors and adds its errors. An absent field is null; "absent" is upstream's
//! notion of it: no field, null, or an empty string. Rules never panic and never change anything.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Quantity, Value, names};

/// The list that a rule adds errors to.
pub(crate) type Errors = Vec<FieldError>;
/// A rule of `corten_meta::names`: returns the errors of a string.
pub(crate) type TextRule = fn(&str) -> Vec<String>;

static NULL: Value = Value::Null;

/// A value and its path.
#[derive(Debug, Clone)]
pub(crate) struct At<'a> {
    pub value: &'a Value,
    pub path: Path,
}

/// Navigation.
impl<'a> At<'a> {
    pub fn new(value: &'a Value, path: &Path) -> At<'a> {
        At { value, path: path.clone() }
    }

    /// Makes the position of an object; its fields have bare paths.
    pub fn object(value: &'a Value) -> At<'a> {
        At { value, path: Path::default() }
    }

    /// Returns the field of this name.
    pub fn get(&self, field: &str) -> At<'a> {
        At { value: self.value.get(field).unwrap_or(&NULL), path: self.path.child(field) }
    }

    /// Returns another field's value under this path: some of upstream's errors name the parent.
    pub fn with(&self, path: Path) -> At<'a> {
        At { value: self.value, path }
    }

    /// Returns the items of a list.
    pub fn items(&self) -> impl Iterator<Item = At<'a>> + use<'a> {
        let path = self.path.clone();
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(move |(at, value)| At { value, path: path.index(at) })
    }

    /// Returns the entries of a map.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, At<'a>)> + use<'a> {
        let path = self.path.clone();
        let entries = self.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), At { value, path: path.key(key) }))
    }

    /// Applies a rule to every item of a list.
    pub fn each(&self, errors: &mut Errors, rule: impl Fn(&At<'a>, &mut Errors)) {
        self.items().for_each(|item| rule(&item, errors));
    }

    /// Applies a rule if there is an object here.
    pub fn when_object(&self, errors: &mut Errors, rule: impl FnOnce(&At<'a>, &mut Errors)) {
        if self.is_object() {
            rule(self, errors);
        }
    }
}

/// Access to the value.
impl<'a> At<'a> {
    pub fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    pub fn number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub fn is_true(&self) -> bool {
        self.value == &Value::Bool(true)
    }

    /// Reports whether a pointer would not be nil; an empty string counts.
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    pub fn is_object(&self) -> bool {
        self.value.is_object()
    }

    /// Reports whether there is nothing here: no field, null, an empty string, list or map.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        }
    }

    /// Returns the length of a list or map.
    pub fn len(&self) -> usize {
        match self.value {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        }
    }

    pub fn quantity(&self) -> Option<Quantity> {
        quantity(self.value)
    }

    pub fn texts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.value.as_array().into_iter().flatten().filter_map(Value::as_str)
    }
}

/// The errors of a position.
impl At<'_> {
    pub fn required(&self, detail: &str) -> FieldError {
        FieldError::required(&self.path, detail)
    }

    pub fn invalid(&self, detail: impl Into<String>) -> FieldError {
        FieldError::invalid(&self.path, self.value.clone(), detail)
    }

    pub fn forbidden(&self, detail: impl Into<String>) -> FieldError {
        FieldError::forbidden(&self.path, detail)
    }

    pub fn duplicate(&self) -> FieldError {
        FieldError::duplicate(&self.path, self.value.clone())
    }

    pub fn not_supported(&self, words: &[&str]) -> FieldError {
        let value = if self.value.is_null() { Value::from("") } else { self.value.clone() };
        FieldError::not_supported(&self.path, value, words)
    }
}

/// The rules of most fields.
impl At<'_> {
    /// Requires a value; reports whether there is one.
    pub fn must(&self, errors: &mut Errors) -> bool {
        self.must_say(errors, "")
    }

    /// Requires a value, with a reason in the error.
    pub fn must_say(&self, errors: &mut Errors, detail: &str) -> bool {
        if self.is_empty() {
            errors.push(self.required(detail));
        }
        !self.is_empty()
    }

    /// Requires a string to follow a rule; skips an empty one.
    pub fn follows(&self, errors: &mut Errors, rule: TextRule) {
        if !self.text().is_empty() {
            self.follows_also_empty(errors, rule);
        }
    }

    /// Requires a string to follow a rule, also if it is empty.
    pub fn follows_also_empty(&self, errors: &mut Errors, rule: TextRule) {
        let text = self.text();
        errors.extend(rule(text).into_iter().map(|message| FieldError::invalid(&self.path, text, message)));
    }

    /// Requires a string behind a pointer to follow a rule if it is set, also if it is empty.
    pub fn follows_when_set(&self, errors: &mut Errors, rule: TextRule) {
        if self.is_set() {
            self.follows_also_empty(errors, rule);
        }
    }

    /// Requires a string that follows a rule.
    pub fn must_follow(&self, errors: &mut Errors, rule: TextRule) {
        if self.must(errors) {
            self.follows(errors, rule);
        }
    }

    /// Requires one of a few words if it is set.
    pub fn one_of(&self, errors: &mut Errors, words: &[&str]) {
        if self.is_set() && !words.contains(&self.text()) {
            errors.push(self.not_supported(words));
        }
    }

    /// Requires one of a few words where upstream has a plain string, which messages quote differently.
    pub fn one_of_texts(&self, errors: &mut Errors, words: &[&str]) {
        if self.is_set() && !words.contains(&self.text()) {
            errors.push(self.not_supported(words).as_text());
        }
    }

    /// Requires one of a few words; an absent value has its own error.
    pub fn must_be_one_of(&self, errors: &mut Errors, words: &[&str]) {
        if self.must(errors) {
            self.one_of(errors, words);
        }
    }

    /// Requires a number that is not negative, if it is set.
    pub fn nonnegative(&self, errors: &mut Errors) {
        if self.number().is_some_and(|n| n < 0) {
            errors.push(self.invalid("must be greater than or equal to 0"));
        }
    }

    /// Requires a number within bounds, if it is set.
    pub fn within(&self, errors: &mut Errors, low: i64, high: i64) {
        if let Some(number) = self.number().filter(|n| !(low..=high).contains(n)) {
            errors.push(FieldError::invalid(&self.path, number, names::inclusive_range_message(low, high)));
        }
    }

    /// Requires a port number, if it is set.
    pub fn port(&self, errors: &mut Errors) {
        if let Some(number) = self.number() {
            let messages = names::port_number(number);
            errors.extend(messages.into_iter().map(|m| FieldError::invalid(&self.path, number, m)));
        }
    }

    /// Requires at most so many items.
    pub fn at_most(&self, errors: &mut Errors, max: usize) {
        if self.len() > max {
            errors.push(FieldError::too_many(&self.path, self.len(), max));
        }
    }

    /// Applies a rule to every item of a list, unless there are too many.
    pub fn each_of_at_most(&self, errors: &mut Errors, max: usize, rule: impl Fn(&At<'_>, &mut Errors)) {
        self.at_most(errors, max);
        if self.len() <= max {
            self.items().for_each(|item| rule(&item, errors));
        }
    }

    /// Requires a string of at most so many bytes.
    pub fn at_most_bytes(&self, errors: &mut Errors, max: usize) {
        if self.text().len() > max {
            errors.push(FieldError::too_long(&self.path, max));
        }
    }

    /// Requires distinct strings; the error is at the second occurrence.
    pub fn unique(&self, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        errors.extend(self.items().filter(|item| !seen.insert(item.value.to_string())).map(|item| item.duplicate()));
    }

    /// Requires items that differ in a field; the error is at the second item.
    pub fn unique_by(&self, errors: &mut Errors, field: &str) {
        let mut seen = BTreeSet::new();
        for item in self.items() {
            let own = item.get(field).value;
            if !seen.insert(own.to_string()) {
                errors.push(FieldError::duplicate(&item.path, own.clone()));
            }
        }
    }

    /// Applies a rule to every string of a list, and then requires that it is distinct.
    pub fn each_once(&self, errors: &mut Errors, rule: impl Fn(&At<'_>, &mut Errors)) {
        let mut seen = BTreeSet::new();
        for item in self.items() {
            rule(&item, errors);
            if !seen.insert(item.text()) {
                errors.push(item.duplicate());
            }
        }
    }

    /// Requires that none of these fields is set.
    pub fn forbids(&self, errors: &mut Errors, fields: &[&str], detail: &str) {
        let set = fields.iter().map(|field| self.get(field)).filter(|at| at.is_set() && !at.is_empty());
        errors.extend(set.map(|at| at.forbidden(detail)));
    }

    /// Requires that the value does not change.
    pub fn unchanged(&self, errors: &mut Errors, old: &At<'_>) {
        let same = self.value == old.value || (self.is_empty() && old.is_empty());
        if !same {
            errors.push(self.invalid("field is immutable"));
        }
    }
}

/// Returns a quantity in an object; numbers are quantities too.
pub(crate) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(_) | Value::Number(_) => Quantity::from_json(value).ok(),
        _ => None,
    }
}

/// Requires a relative path that stays below its start.
pub(crate) fn local_descending(at: &At<'_>, errors: &mut Errors) {
    if at.text().starts_with('/') {
        errors.push(at.invalid("must be a relative path"));
    }
    no_backsteps(at, errors);
}

/// Requires a path without `..`.
pub(crate) fn no_backsteps(at: &At<'_>, errors: &mut Errors) {
    if at.text().split('/').any(|part| part == "..") {
        errors.push(at.invalid("must not contain '..'"));
    }
}

/// Returns the messages of a list of errors, for tests.
#[cfg(test)]
pub(crate) fn messages(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
