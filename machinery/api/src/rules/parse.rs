//! The compiler of the validation table. The table is part of the program, so an invalid line is a bug and panics; a
//! test compiles every line.

use std::collections::HashMap;

use corten_meta::names::inclusive_range_message;

use super::check::{Check, Needs, Refusal, When, format, shared};
use super::{Condition, Line, Section, Table, Test};
use crate::schema::{FieldType, Type, schema};

/// Compiles the table; sections are numbered first, so that one may refer to a later one.
pub(super) fn parse(table: &'static str) -> Table {
    let lines = || table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut places = HashMap::new();
    for name in lines().filter_map(|line| line.strip_prefix("T ")) {
        let place = places.len();
        assert!(places.insert(name, place).is_none(), "{name} has two sections");
    }
    let mut sections: Vec<Section> = Vec::new();
    let mut current = "";
    for line in lines() {
        match line.strip_prefix("T ") {
            Some(name) => {
                current = name;
                sections.push(Section { lines: Vec::new() });
            }
            None => {
                let parser = Parser { line, section: current, places: &places, words: words(line).into_iter() };
                sections.last_mut().unwrap_or_else(|| panic!("{line} has no section")).lines.push(parser.line());
            }
        }
    }
    Table { sections, places }
}

/// Splits a line at spaces; a string in quotes is one word.
fn words(line: &'static str) -> Vec<&'static str> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let quoted = rest.starts_with('"').then(|| closing_quote(&rest[1..]));
        let end = quoted.map_or_else(|| rest.find(' ').unwrap_or(rest.len()), |end| end + 2);
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

fn closing_quote(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("{text} has no closing quote")
}

struct Parser<'p> {
    line: &'static str,
    section: &'static str,
    places: &'p HashMap<&'static str, usize>,
    words: std::vec::IntoIter<&'static str>,
}

impl Parser<'_> {
    fn fail(&self, why: &str) -> ! {
        panic!("{}: {}: {why}", self.section, self.line)
    }

    fn line(mut self) -> Line {
        let mut conditions = Vec::new();
        let mut word = self.next();
        while let Some(condition) = word.strip_prefix('?') {
            conditions.push(self.condition(condition));
            word = self.next();
        }
        let (name, shown) = word.split_once('@').map_or((word, None), |(name, shown)| (name, Some(shown)));
        let field: Vec<&str> = if name == "." { Vec::new() } else { name.split('.').collect() };
        let mut of = self.kind_of(&field);
        let mut checks = Vec::new();
        while let Some(word) = self.words.next() {
            if word.starts_with("each") || word.starts_with("set") {
                let Some((FieldType::List(items), _)) = of else { self.fail("each is for lists") };
                of = Some((&**items, true));
            }
            checks.push(self.check(word, of));
        }
        let is_each = |check: &Check| matches!(check, Check::Each { .. } | Check::Set(_));
        let sees_absent = checks.iter().take_while(|check| !is_each(check)).any(Check::sees_absent);
        Line { conditions, field, shown, checks, sees_absent }
    }

    fn next(&mut self) -> &'static str {
        self.words.next().unwrap_or_else(|| self.fail("the line ends early"))
    }

    fn condition(&self, text: &'static str) -> Condition {
        let (from_root, text) = text.strip_prefix('/').map_or((false, text), |text| (true, text));
        let listed = |words: &'static str| words.split(',').collect::<Vec<_>>();
        let (field, test) = match (text.split_once("!="), text.split_once('='), text.split_once(':')) {
            (Some((field, words)), ..) => (field, Test::NoneOf(listed(words))),
            (_, Some((field, words)), _) => (field, Test::OneOf(listed(words))),
            (_, _, Some((field, "set"))) => (field, Test::Set),
            (_, _, Some((field, "unset"))) => (field, Test::Unset),
            (_, _, Some((field, "object"))) => (field, Test::Object),
            (_, _, Some((field, "none"))) => (field, Test::NotObject),
            (_, _, Some((field, "zero"))) => (field, Test::Zero),
            (_, _, Some((field, "nonzero"))) => (field, Test::NotZero),
            (_, _, Some(_)) => self.fail("unknown condition"),
            _ => match text.strip_prefix('!') {
                Some(field) => (field, Test::Empty),
                None => (text, Test::Full),
            },
        };
        let field: Vec<&str> = field.split('.').collect();
        if !from_root {
            self.kind_of(&field);
        }
        Condition { from_root, field, test }
    }

    /// Returns the type of a field, which the schema must have, and whether upstream's struct holds it by value.
    fn kind_of(&self, field: &[&str]) -> Option<(&'static FieldType, bool)> {
        let mut here = self.type_()?;
        let mut kind = None;
        for (at, step) in field.iter().enumerate() {
            let found = here.field(step).unwrap_or_else(|| self.fail("the type has no such field"));
            kind = Some((&found.kind, !found.presence.is_pointer));
            if at + 1 < field.len() {
                here = struct_of(&found.kind).unwrap_or_else(|| self.fail("the field has no fields"));
            }
        }
        kind
    }

    fn type_(&self) -> Option<&'static Type> {
        let name = self.section.split('/').next()?;
        let full = name.strip_prefix('.').map_or_else(|| name.to_owned(), |rest| format!("io.k8s.api.{rest}"));
        schema().type_(&full).or_else(|| self.fail("the schema has no such type"))
    }

    /// Returns the detail of an error, if the next word is one.
    fn detail(&mut self, usual: impl Into<String>) -> String {
        match self.words.as_slice().first().copied().filter(|word| word.starts_with('"')) {
            Some(word) => {
                self.words.next();
                serde_json::from_str(word).unwrap_or_else(|_| self.fail("invalid string"))
            }
            None => usual.into(),
        }
    }

    fn check(&mut self, word: &'static str, of: Option<(&'static FieldType, bool)>) -> Check {
        if let Some(name) = word.strip_prefix(':') {
            return Check::Code(crate::rule_in_code(name).unwrap_or_else(|| self.fail("the rule has no code")));
        }
        if let Some(part) = word.strip_prefix('.') {
            return Check::Struct { place: self.place(of, part), by_value: of.is_none_or(|(_, by_value)| by_value) };
        }
        if let Some((name, value)) = word.split_once('=') {
            return self.valued(name, value);
        }
        let refusal = |kind| move |detail| Check::Error { kind, detail };
        match word {
            "!" => Check::Required { needs: Needs::NotEmpty, detail: self.detail("") },
            "!text" => Check::Required { needs: Needs::NotBlank, detail: self.detail("") },
            "!set" => Check::Required { needs: Needs::Set, detail: self.detail("") },
            "!object" => Check::Required { needs: Needs::Object, detail: self.detail("") },
            ";" => Check::StopAtErrors,
            "one-of" => Check::OneOf { words: self.enum_values(), when: When::Set, is_plain: false },
            "each" => Check::Each { names_list: false },
            "set" => Check::Set(None),
            "each@" => Check::Each { names_list: true },
            "once" => Check::Once { skips_empty: false },
            "once?" => Check::Once { skips_empty: true },
            "unique" => Check::Unique(None),
            "fixed" => Check::Fixed { is_exact: false, detail: self.detail("field is immutable") },
            "fixed!" => Check::Fixed { is_exact: true, detail: self.detail("field is immutable") },
            "frozen" => Check::Frozen(self.detail("")),
            "star-alone" => Check::StarAlone(self.detail("")),
            "port" => self.number(1, 65535, false, inclusive_range_message(1, 65535)),
            "port+" => self.number(1, 65535, true, inclusive_range_message(1, 65535)),
            "required" => refusal(Refusal::Required)(self.detail("")),
            "invalid" => refusal(Refusal::Invalid)(self.detail("")),
            "invalid-json" => refusal(Refusal::InvalidJson)(self.detail("")),
            "invalid-text" => refusal(Refusal::InvalidText)(self.detail("")),
            "invalid-null" => refusal(Refusal::InvalidNull)(self.detail("")),
            "invalid-empty" => refusal(Refusal::InvalidEmpty)(self.detail("")),
            "forbidden" => refusal(Refusal::Forbidden)(self.detail("")),
            _ => {
                let (name, when) = when(word);
                match (format(name), shared(name)) {
                    (Some(rule), _) => Check::Format { rule, when },
                    (None, Some(rule)) => Check::Code(rule),
                    (None, None) => self.fail("unknown rule"),
                }
            }
        }
    }

    /// Returns the values that the schema lists for the field of the line.
    fn enum_values(&self) -> Vec<&'static str> {
        let name = self.line.split(' ').find(|word| !word.starts_with('?')).unwrap_or_default();
        let (around, field) = name.rsplit_once('.').unwrap_or(("", name));
        let steps: Vec<&str> = around.split('.').filter(|step| !step.is_empty()).collect();
        let of =
            if steps.is_empty() { self.type_() } else { self.kind_of(&steps).and_then(|(kind, _)| struct_of(kind)) };
        let values = of.and_then(|of| of.field(field)).map(|field| field.values.iter().map(String::as_str).collect());
        values
            .filter(|values: &Vec<&str>| !values.is_empty())
            .unwrap_or_else(|| self.fail("the schema lists no values"))
    }

    fn valued(&mut self, name: &'static str, value: &'static str) -> Check {
        let number = || value.parse::<i64>().unwrap_or_else(|_| self.fail("no number"));
        match name {
            "min" => self.number(number(), i64::MAX, false, format!("must be greater than or equal to {value}")),
            "min+" => self.number(number(), i64::MAX, true, format!("must be greater than or equal to {value}")),
            "max" => self.number(i64::MIN, number(), false, format!("must be less than or equal to {value}")),
            "above" => self.number(number() + 1, i64::MAX, false, format!("must be greater than {value}")),
            "above+" => self.number(number() + 1, i64::MAX, true, format!("must be greater than {value}")),
            "set" => Check::Set(Some(value)),
            "in" | "in+" => {
                let bounds =
                    value.split_once("..").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
                let (low, high) = bounds.unwrap_or_else(|| self.fail("no bounds"));
                self.number(low, high, name == "in+", inclusive_range_message(low, high))
            }
            "quantity" => {
                let sign = i8::try_from(number()).unwrap_or_default();
                Check::Quantity { sign, detail: self.detail("must be greater than or equal to 0") }
            }
            "max-bytes" => Check::MaxBytes(usize::try_from(number()).unwrap_or_default()),
            "max-items" => Check::MaxItems(usize::try_from(number()).unwrap_or_default()),
            "length" => Check::Length { max: usize::try_from(number()).unwrap_or_default(), detail: self.detail("") },
            "not-above" => Check::NotAbove { field: value, detail: self.detail("") },
            "unique" => Check::Unique(Some(value)),
            "unsupported" => Check::Unsupported(value.split(',').collect()),
            _ => {
                let (name, when) = when(name);
                let when = if when == When::NotEmpty { When::Set } else { when };
                let words = value.split(',').collect();
                match name {
                    "one-of" => Check::OneOf { words, when, is_plain: false },
                    "one-of~" => Check::OneOf { words, when, is_plain: true },
                    "one-of-full" => Check::OneOf { words, when: When::NotEmpty, is_plain: false },
                    _ => self.fail("unknown rule"),
                }
            }
        }
    }

    fn number(&mut self, low: i64, high: i64, absent_is_zero: bool, usual: String) -> Check {
        Check::Number { low, high, absent_is_zero, detail: self.detail(usual) }
    }

    /// Returns the section of a field's type, or of a part of it.
    fn place(&self, of: Option<(&'static FieldType, bool)>, part: &str) -> usize {
        let type_ = match of {
            Some((kind, _)) => struct_of(kind),
            None => self.type_(),
        };
        let name = &type_.unwrap_or_else(|| self.fail("the field is no struct")).name;
        let short = name.strip_prefix("io.k8s.api.").map_or_else(|| name.clone(), |short| format!(".{short}"));
        let section = if part.is_empty() { short } else { format!("{short}/{part}") };
        self.places.get(section.as_str()).copied().unwrap_or_else(|| self.fail(&format!("{section} has no section")))
    }
}

/// Returns the name of a rule and the values that it sees: `+` also absent ones, `?` also empty ones if they are set.
fn when(word: &'static str) -> (&'static str, When) {
    match (word.strip_suffix('+'), word.strip_suffix('?')) {
        (Some(name), _) => (name, When::Always),
        (_, Some(name)) => (name, When::Set),
        _ => (word, When::NotEmpty),
    }
}

fn struct_of(kind: &FieldType) -> Option<&'static Type> {
    match kind {
        FieldType::Ref(id) => Some(schema().get(*id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn refusal(table: &'static str) -> String {
        let refused = std::panic::catch_unwind(|| parse(table)).err().expect(table);
        refused.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn an_invalid_line_is_refused() {
        for (table, why) in [
            ("T .core.v1.Pod\nnone !\n", "the type has no such field"),
            ("T .core.v1.Pod\n?spec.none spec !\n", "the type has no such field"),
            ("T .core.v1.None\nname !\n", "the schema has no such type"),
            ("T .core.v1.Pod\nspec odd\n", "unknown rule"),
            ("T .core.v1.Pod\nspec :odd\n", "the rule has no code"),
            ("T .core.v1.Pod\nspec each !\n", "each is for lists"),
            ("T .core.v1.Pod\nspec .\n", ".core.v1.PodSpec has no section"),
            ("T .core.v1.Pod\nmetadata.name one-of\n", "the schema lists no values"),
        ] {
            assert!(refusal(table).ends_with(why), "{table}: {}", refusal(table));
        }
    }
}
