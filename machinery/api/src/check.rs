//! A place in an object: a value together with its path, so that a kind's rules read as a table.
//!
//! A rule takes a place and the list of errors and adds what is wrong there. A place that is absent holds null;
//! "absent" is upstream's notion of it: no field, null, or an empty text. Rules never panic and never change anything.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Quantity, Value, names};

/// What a rule adds to.
pub(crate) type Errors = Vec<FieldError>;
/// A rule of `corten_meta::names`: the messages against a text.
pub(crate) type TextRule = fn(&str) -> Vec<String>;

static NULL: Value = Value::Null;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct At<'a> {
    pub value: &'a Value,
    pub path: Path,
}

/// How one gets around.
impl<'a> At<'a> {
    pub fn new(value: &'a Value, path: &Path) -> At<'a> {
        At { value, path: path.clone() }
    }

    /// A whole object; its fields have bare paths.
    pub fn object(value: &'a Value) -> At<'a> {
        At { value, path: Path::default() }
    }

    /// The field of this name.
    pub fn get(&self, field: &str) -> At<'a> {
        At { value: self.value.get(field).unwrap_or(&NULL), path: self.path.child(field) }
    }

    /// The value of another field under this place's path: some of upstream's errors name the parent.
    pub fn with(&self, path: Path) -> At<'a> {
        At { value: self.value, path }
    }

    /// The items of a list.
    pub fn items(&self) -> impl Iterator<Item = At<'a>> + use<'a> {
        let path = self.path.clone();
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(move |(at, value)| At { value, path: path.index(at) })
    }

    /// The entries of a map.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, At<'a>)> + use<'a> {
        let path = self.path.clone();
        let entries = self.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), At { value, path: path.key(key) }))
    }

    /// Applies a rule to every item of a list.
    pub fn each(&self, errors: &mut Errors, rule: impl Fn(&At<'a>, &mut Errors)) {
        self.items().for_each(|item| rule(&item, errors));
    }

    /// Applies a rule when there is an object here.
    pub fn when_object(&self, errors: &mut Errors, rule: impl FnOnce(&At<'a>, &mut Errors)) {
        if self.is_object() {
            rule(self, errors);
        }
    }
}

/// What is there.
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

    /// Whether a pointer would not be nil; an empty text counts.
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    pub fn is_object(&self) -> bool {
        self.value.is_object()
    }

    /// Whether there is nothing here: no field, null, an empty text, list or map.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        }
    }

    /// The length of a list or map.
    pub fn len(&self) -> usize {
        match self.value {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        }
    }

    pub fn quantity(&self) -> Option<Quantity> {
        crate::validation::quantity(self.value)
    }

    pub fn texts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.value.as_array().into_iter().flatten().filter_map(Value::as_str)
    }
}

/// The errors one can make of a place.
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

/// The rules that most fields have.
impl At<'_> {
    /// Something must be here; says whether it is.
    pub fn must(&self, errors: &mut Errors) -> bool {
        self.must_say(errors, "")
    }

    /// The same, with a reason.
    pub fn must_say(&self, errors: &mut Errors, detail: &str) -> bool {
        if self.is_empty() {
            errors.push(self.required(detail));
        }
        !self.is_empty()
    }

    /// A text follows a rule; an empty one is left to others.
    pub fn follows(&self, errors: &mut Errors, rule: TextRule) {
        if !self.text().is_empty() {
            self.follows_also_empty(errors, rule);
        }
    }

    /// A text follows a rule, also when it is empty.
    pub fn follows_also_empty(&self, errors: &mut Errors, rule: TextRule) {
        let text = self.text();
        errors.extend(rule(text).into_iter().map(|message| FieldError::invalid(&self.path, text, message)));
    }

    /// A text behind a pointer follows a rule when it is set, also when it is empty.
    pub fn follows_when_set(&self, errors: &mut Errors, rule: TextRule) {
        if self.is_set() {
            self.follows_also_empty(errors, rule);
        }
    }

    /// A text that must be here and follows a rule.
    pub fn must_follow(&self, errors: &mut Errors, rule: TextRule) {
        if self.must(errors) {
            self.follows(errors, rule);
        }
    }

    /// When it is set, it is one of a few words.
    pub fn one_of(&self, errors: &mut Errors, words: &[&str]) {
        if self.is_set() && !words.contains(&self.text()) {
            errors.push(self.not_supported(words));
        }
    }

    /// The same where upstream holds a plain text, which messages quote in another way.
    pub fn one_of_texts(&self, errors: &mut Errors, words: &[&str]) {
        if self.is_set() && !words.contains(&self.text()) {
            errors.push(self.not_supported(words).as_text());
        }
    }

    /// It is one of a few words; nothing is an error of its own.
    pub fn must_be_one_of(&self, errors: &mut Errors, words: &[&str]) {
        if self.must(errors) {
            self.one_of(errors, words);
        }
    }

    /// The same for a pointer: nothing is an error of its own, and an empty text is one of the wrong words.
    pub fn must_be_set_to_one_of(&self, errors: &mut Errors, words: &[&str]) {
        if self.is_set() {
            self.one_of(errors, words);
        } else {
            errors.push(self.required(""));
        }
    }

    /// A number, when it is set, that is not negative.
    pub fn nonnegative(&self, errors: &mut Errors) {
        if self.number().is_some_and(|n| n < 0) {
            errors.push(self.invalid("must be greater than or equal to 0"));
        }
    }

    /// A number that is more than zero; absent is zero.
    pub fn positive(&self, errors: &mut Errors) {
        let number = self.number().unwrap_or_default();
        if number <= 0 {
            errors.push(FieldError::invalid(&self.path, number, "must be greater than 0"));
        }
    }

    /// A number, when it is set, within bounds.
    pub fn within(&self, errors: &mut Errors, low: i64, high: i64) {
        if let Some(number) = self.number().filter(|n| !(low..=high).contains(n)) {
            errors.push(FieldError::invalid(&self.path, number, names::inclusive_range_message(low, high)));
        }
    }

    /// A port number, when it is set.
    pub fn port(&self, errors: &mut Errors) {
        if let Some(number) = self.number() {
            let messages = names::port_number(number);
            errors.extend(messages.into_iter().map(|m| FieldError::invalid(&self.path, number, m)));
        }
    }

    /// At most so many items.
    pub fn at_most(&self, errors: &mut Errors, max: usize) {
        if self.len() > max {
            errors.push(FieldError::too_many(&self.path, self.len(), max));
        }
    }

    /// Applies a rule to every item of a list, unless there are too many to look at.
    pub fn each_of_at_most(&self, errors: &mut Errors, max: usize, rule: impl Fn(&At<'_>, &mut Errors)) {
        self.at_most(errors, max);
        if self.len() <= max {
            self.items().for_each(|item| rule(&item, errors));
        }
    }

    /// A text of at most so many bytes.
    pub fn at_most_bytes(&self, errors: &mut Errors, max: usize) {
        if self.text().len() > max {
            errors.push(FieldError::too_long(&self.path, max));
        }
    }

    /// No text of a list stands there twice; the error is at the second.
    pub fn unique(&self, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        errors.extend(self.items().filter(|item| !seen.insert(item.value.to_string())).map(|item| item.duplicate()));
    }

    /// Applies a rule to every text of a list, and then says of it whether it stood there before.
    pub fn each_once(&self, errors: &mut Errors, rule: impl Fn(&At<'_>, &mut Errors)) {
        let mut seen = BTreeSet::new();
        for item in self.items() {
            rule(&item, errors);
            if !seen.insert(item.text()) {
                errors.push(item.duplicate());
            }
        }
    }

    /// None of these fields is set.
    pub fn forbids(&self, errors: &mut Errors, fields: &[&str], detail: &str) {
        let set = fields.iter().map(|field| self.get(field)).filter(|at| at.is_set() && !at.is_empty());
        errors.extend(set.map(|at| at.forbidden(detail)));
    }

    /// It does not change.
    pub fn unchanged(&self, errors: &mut Errors, old: &At<'_>) {
        let same = self.value == old.value || (self.is_empty() && old.is_empty());
        if !same {
            errors.push(self.invalid("field is immutable"));
        }
    }
}

/// A relative path that stays below where it starts.
pub(crate) fn local_descending(at: &At<'_>, errors: &mut Errors) {
    if at.text().starts_with('/') {
        errors.push(at.invalid("must be a relative path"));
    }
    no_backsteps(at, errors);
}

/// A path that never goes up.
pub(crate) fn no_backsteps(at: &At<'_>, errors: &mut Errors) {
    if at.text().split('/').any(|part| part == "..") {
        errors.push(at.invalid("must not contain '..'"));
    }
}

/// The messages of a list of errors, for tests.
#[cfg(test)]
pub(crate) fn messages(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
