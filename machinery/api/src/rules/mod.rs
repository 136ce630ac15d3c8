//! The validation table: the rules of fields, in the order in which upstream checks them.
//!
//! `schema/validation.tbl` has a section for every type with rules. It is compiled once, at first use, to checks that
//! know their fields and words; a rule that is more than a fact of a field is a function that a line names (see
//! `rule_code.rs`). An object is validated by a walk over the sections of its types. An absent field whose rules all accept
//! that is skipped before its path is made.

mod check;
mod parse;

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use corten_meta::Value;

use crate::check::{At, Errors};
use crate::schema::{FieldType, schema};
use check::Check;

/// The position that a rule sees: a field, the struct that has it, and the object that has both.
pub(crate) struct Site<'s, 'a> {
    pub at: &'s At<'a>,
    pub of: &'s At<'a>,
    pub root: &'a Value,
    /// The old object, if there is one.
    pub root_old: Option<&'a Value>,
    /// The old value of the field, if the object changes.
    pub old: Option<&'a Value>,
}

/// A rule in code, named by the table.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// A rule of a value, also of an absent one.
    At(fn(&At<'_>, &mut Errors)),
    /// A rule of a value that is set.
    Present(fn(&At<'_>, &mut Errors)),
    /// A rule of a value that depends on others.
    Site(fn(&Site<'_, '_>, &mut Errors)),
}

/// The rules of a type.
struct Section {
    lines: Vec<Line>,
}

/// The rules of a field, and when they apply.
struct Line {
    conditions: Vec<Condition>,
    /// The steps from the struct to the field; none for the struct itself.
    field: Vec<&'static str>,
    /// The step that errors name instead; empty for the struct's own path.
    shown: Option<&'static str>,
    checks: Vec<Check>,
    /// Whether a rule may refuse an absent field.
    sees_absent: bool,
}

/// A condition on another field.
struct Condition {
    /// Whether the steps begin at the object and not at the struct.
    from_root: bool,
    field: Vec<&'static str>,
    test: Test,
}

enum Test {
    Empty,
    Full,
    Set,
    Unset,
    Object,
    NotObject,
    Zero,
    NotZero,
    OneOf(Vec<&'static str>),
    NoneOf(Vec<&'static str>),
}

/// The strings that a list had before, each with the rule that saw it.
type Seen<'a> = BTreeSet<(*const Check, &'a str)>;

/// All sections; they refer to each other by their place.
pub(crate) struct Table {
    sections: Vec<Section>,
    pub(crate) places: HashMap<&'static str, usize>,
}

pub(crate) static TABLE: LazyLock<Table> = LazyLock::new(|| parse::parse(include_str!("../../schema/validation.tbl")));

/// Returns the errors of an object by a section of the table; `old` is what it replaces, if its rules depend on it. A
/// section that the table does not have finds no errors.
pub(crate) fn validate(section: &str, object: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Errors::new();
    if let Some(place) = TABLE.places.get(section).filter(|_| !section.is_empty()) {
        Walk { root: object, root_old: old, old }.section(*place, &At::object(object), &mut Seen::new(), &mut errors);
    }
    errors
}

/// Returns the errors of a change by a part of a section, whose rules compare an object with the old one.
pub(crate) fn validate_change(section: &str, part: &str, new: &Value, old: &Value) -> Errors {
    if section.is_empty() { Errors::new() } else { validate(&format!("{section}/{part}"), new, Some(old)) }
}

/// Adds the errors of a struct by a section of the table.
pub(crate) fn check(section: &str, at: &At<'_>, errors: &mut Errors) {
    // A section that the code names and the table lacks is a bug, which must not pass as "no errors".
    let place = TABLE.places[section];
    Walk { root: at.value, root_old: None, old: None }.section(place, at, &mut Seen::new(), errors);
}

/// Adds the errors of a field's struct by the section of its type, if there is one.
pub(crate) fn check_field(type_name: &str, field: &str, at: &At<'_>, errors: &mut Errors) {
    let kind = schema().type_(type_name).and_then(|of| of.field(field)).map(|field| &field.kind);
    let Some(FieldType::Ref(id)) = kind else { return };
    let name = schema().get(*id).name.replacen("io.k8s.api", "", 1);
    if TABLE.places.contains_key(name.as_str()) {
        check(&name, at, errors);
    }
}

/// A walk over an object.
struct Walk<'a> {
    root: &'a Value,
    root_old: Option<&'a Value>,
    old: Option<&'a Value>,
}

impl<'a> Walk<'a> {
    fn section(&self, place: usize, of: &At<'a>, seen: &mut Seen<'a>, errors: &mut Errors) {
        for line in &TABLE.sections[place].lines {
            if line.conditions.iter().all(|condition| condition.holds(self.root, of.value)) {
                self.line(line, of, seen, errors);
            }
        }
    }

    fn line(&self, line: &'static Line, of: &At<'a>, seen: &mut Seen<'a>, errors: &mut Errors) {
        let value = at_steps(of.value, &line.field);
        if value.is_null() && !line.sees_absent {
            return;
        }
        let mut path = of.path.clone();
        match line.shown {
            Some("") => {}
            Some(shown) => path = path.child(shown),
            None => line.field.iter().for_each(|step| path = path.child(step)),
        }
        let old = self.old.map(|old| at_steps(old, &line.field));
        let at = At { value, path };
        self.checks(&line.checks, &Site { at: &at, of, root: self.root, root_old: self.root_old, old }, seen, errors);
    }

    /// Applies checks in order, until one says that the rest does not apply.
    fn checks(&self, checks: &'static [Check], site: &Site<'_, 'a>, seen: &mut Seen<'a>, errors: &mut Errors) {
        let before = errors.len();
        for (index, check) in checks.iter().enumerate() {
            match check {
                Check::StopAtErrors if errors.len() > before => return,
                Check::StopAtErrors => {}
                Check::Each { names_list } => {
                    return self.each(&checks[index + 1..], *names_list, site, errors);
                }
                Check::Set(key) => {
                    self.each(&checks[index + 1..], false, site, errors);
                    return match key {
                        Some(key) => site.at.unique_by(errors, key),
                        None => site.at.unique(errors),
                    };
                }
                Check::Struct { place, by_value } => {
                    if *by_value || site.at.is_object() {
                        let walk = Walk { old: site.old, ..*self };
                        walk.section(*place, site.at, seen, errors);
                    }
                }
                Check::Once { skips_empty } => {
                    let text = site.at.text();
                    let is_seen = !(*skips_empty && text.is_empty());
                    if is_seen && !seen.insert((check, text)) {
                        errors.push(corten_meta::FieldError::duplicate(&site.at.path, text));
                    }
                }
                Check::Code(Code::Present(_)) if !site.at.is_set() => {}
                Check::Code(Code::At(rule) | Code::Present(rule)) => rule(site.at, errors),
                Check::Code(Code::Site(rule)) => rule(site, errors),
                other => {
                    if !other.apply(site, errors) {
                        return;
                    }
                }
            }
        }
    }
}

impl<'a> Walk<'a> {
    /// Applies checks to every item of a list.
    fn each(&self, checks: &'static [Check], names_list: bool, site: &Site<'_, 'a>, errors: &mut Errors) {
        let mut seen = Seen::new();
        for item in site.at.items() {
            let item = if names_list { item.with(site.at.path.clone()) } else { item };
            self.checks(checks, &Site { at: &item, old: None, ..*site }, &mut seen, errors);
        }
    }
}

/// Returns the value at the end of some steps; null if there is none.
fn at_steps<'a>(value: &'a Value, steps: &[&str]) -> &'a Value {
    static NULL: Value = Value::Null;
    steps.iter().try_fold(value, |value, step| value.get(step)).unwrap_or(&NULL)
}

impl Condition {
    fn holds(&self, root: &Value, of: &Value) -> bool {
        let value = at_steps(if self.from_root { root } else { of }, &self.field);
        let at = At::object(value);
        match &self.test {
            Test::Empty => at.is_empty(),
            Test::Full => !at.is_empty(),
            Test::Set => at.is_set(),
            Test::Unset => !at.is_set(),
            Test::Object => at.is_object(),
            Test::NotObject => !at.is_object(),
            Test::Zero => at.number().unwrap_or_default() == 0,
            Test::NotZero => at.number().unwrap_or_default() != 0,
            Test::OneOf(words) => words.contains(&word(value)),
            Test::NoneOf(words) => !words.contains(&word(value)),
        }
    }
}

/// Returns a string, or a bool as a word.
fn word(value: &Value) -> &str {
    match value {
        Value::Bool(true) => "true",
        Value::Bool(false) => "false",
        other => other.as_str().unwrap_or_default(),
    }
}
