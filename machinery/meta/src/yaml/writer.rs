//! Writes YAML as upstream's server does, byte by byte: its quoting, its folding of long lines and its order of keys.

use super::text::is_break;
use super::values::is_text;
use crate::{Map, Value, go};

/// The width behind which lines are folded at the next blank.
const WIDTH: usize = 80;
/// The length in bytes beyond which a key is on a line of its own.
const LONGEST_KEY: usize = 128;
const STEP: usize = 2;

/// Writes a document of one value.
pub fn write(value: &Value) -> String {
    let mut writer = Writer { out: String::new(), column: 0, is_fresh: true };
    let depth = if value.is_object() { 0 } else { STEP };
    writer.value(value, 0, depth);
    writer.line(0);
    writer.out
}

struct Writer {
    out: String,
    column: usize,
    /// Whether the line has only indicators so far, so that a block may begin behind them.
    is_fresh: bool,
}

impl Writer {
    fn put(&mut self, character: char) {
        self.out.push(character);
        self.column = if is_break(character) { 0 } else { self.column + 1 };
    }

    fn text(&mut self, text: &str) {
        text.chars().for_each(|character| self.put(character));
        self.is_fresh = false;
    }

    /// Begins a line at this depth, unless it has just begun.
    fn line(&mut self, depth: usize) {
        if self.column > 0 && !self.is_fresh {
            self.put('\n');
        }
        self.pad(depth);
        self.is_fresh = true;
    }

    fn pad(&mut self, depth: usize) {
        (self.column..depth).for_each(|_| self.put(' '));
    }

    fn mapping(&mut self, map: &Map<String, Value>, depth: usize) {
        for key in sorted_naturally(map.keys().map(String::as_str).collect()) {
            self.line(depth);
            if key.len() <= LONGEST_KEY && !key.contains(is_break) {
                self.scalar(key, None);
                self.put(':');
                // A list is no deeper than its key.
                self.value(&map[key], depth, depth + STEP);
            } else {
                self.put('?');
                self.value(&Value::from(key), depth, depth + STEP);
                self.line(depth);
                self.put(':');
                self.value(&map[key], depth + STEP, depth + STEP);
            }
        }
    }

    /// Writes a value behind an indicator.
    fn value(&mut self, value: &Value, depth_of_list: usize, depth: usize) {
        match value {
            Value::Object(map) if !map.is_empty() => self.mapping(map, depth),
            Value::Array(items) if !items.is_empty() => {
                for item in items {
                    self.line(depth_of_list);
                    self.put('-');
                    self.value(item, depth_of_list + STEP, depth_of_list + STEP);
                }
            }
            leaf => {
                // A document that is a scalar has no indicator before it.
                if self.column > 0 {
                    self.put(' ');
                }
                self.leaf(leaf, depth);
            }
        }
    }

    fn leaf(&mut self, value: &Value, depth: usize) {
        match value {
            Value::String(text) => self.scalar(text, Some(depth)),
            Value::Number(number) => self.text(&number_text(number)),
            // Empty lists and maps are written as in JSON.
            other => self.text(&other.to_string()),
        }
    }

    /// Writes a string; its further lines, if it may have any, have this depth.
    fn scalar(&mut self, text: &str, depth: Option<usize>) {
        match (style(text), depth) {
            // Unquoted it would be a merge key.
            (Style::Plain, None) if text == "<<" => self.escaped(text, depth),
            (Style::Literal, Some(depth)) => self.literal(text, depth),
            (Style::Plain, _) => self.folded(text, depth),
            (Style::Single, _) => {
                self.put('\'');
                self.folded(&text.replace('\'', "''"), depth);
                self.put('\'');
            }
            (Style::Double | Style::Literal, _) => self.escaped(text, depth),
        }
        self.is_fresh = false;
    }

    fn folds_before(&self, last: char, depth: Option<usize>) -> Option<usize> {
        depth.filter(|_| last != ' ' && self.column > WIDTH)
    }

    fn folded(&mut self, text: &str, depth: Option<usize>) {
        let mut last = ' ';
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            let is_lone = characters.peek().is_some_and(|next| *next != ' ');
            match self.folds_before(last, depth) {
                Some(depth) if character == ' ' && is_lone => {
                    self.put('\n');
                    self.pad(depth);
                }
                _ => {
                    if is_break(last) && !is_break(character) {
                        self.pad(depth.unwrap_or(0));
                    }
                    self.put(character);
                }
            }
            last = character;
        }
    }

    fn escaped(&mut self, text: &str, depth: Option<usize>) {
        // Upstream checks for the byte order mark at the beginning in every iteration.
        let escapes_all = text.starts_with('\u{feff}');
        let mut last = ' ';
        let mut characters = text.chars().peekable();
        self.put('"');
        while let Some(character) = characters.next() {
            match (character, characters.peek(), self.folds_before(last, depth)) {
                (' ', Some(next), Some(depth)) if !escapes_all => {
                    self.put('\n');
                    self.pad(depth);
                    if *next == ' ' {
                        self.put('\\');
                    }
                }
                _ if escapes_all
                    || !is_printable(character)
                    || is_break(character)
                    || matches!(character, '"' | '\\') =>
                {
                    escape(character).chars().for_each(|character| self.put(character));
                }
                _ => self.put(character),
            }
            last = character;
        }
        self.put('"');
    }

    fn literal(&mut self, text: &str, depth: usize) {
        self.put('|');
        if text.starts_with(|first| first == ' ' || is_break(first)) {
            // Leading blanks of the first line hide the indentation.
            self.put('2');
        }
        match text.strip_suffix(is_break) {
            None => self.put('-'),
            Some(rest) if rest.is_empty() || rest.ends_with(is_break) => self.put('+'),
            Some(_) => {}
        }
        self.put('\n');
        for character in text.chars() {
            if self.column == 0 && !is_break(character) {
                self.pad(depth);
            }
            self.put(character);
        }
    }
}

/// Formats a number. Floats without a fraction are read as integers as long as these have the bits.
fn number_text(number: &serde_json::Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.fract() == 0.0 && (-9.2e18..1.8e19).contains(&float) => format!("{float}"),
        Some(float) => go::float(float),
        None => number.to_string(),
    }
}

enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

fn style(text: &str) -> Style {
    let pair = |test: fn(char, char) -> bool| text.chars().zip(text.chars().skip(1)).any(|(a, b)| test(a, b));
    let is_odd = !text.chars().all(is_printable) || pair(|a, b| a == ' ' && is_break(b));
    if is_odd {
        return Style::Double;
    }
    if text.contains('\n') {
        return if text.ends_with(' ') { Style::Double } else { Style::Literal };
    }
    if !is_text(text) {
        return Style::Double;
    }
    let is_edge = |character| character == ' ' || is_break(character);
    if !text.starts_with(is_edge) && !text.ends_with(is_edge) && !text.contains(is_break) && !has_indicator(text) {
        return Style::Plain;
    }
    if pair(|a, b| is_break(a) && b == ' ') { Style::Double } else { Style::Single }
}

/// Reports whether a string contains a YAML indicator.
fn has_indicator(text: &str) -> bool {
    let is_mark = |mark: &str| text == mark || text.strip_prefix(mark).is_some_and(|rest| rest.starts_with(' '));
    text.starts_with(|first| "#,[]{}&*!|>'\"%@`".contains(first))
        || ["---", "..."].iter().any(|mark| text.starts_with(mark))
        || ["-", "?"].into_iter().any(is_mark)
        || text.ends_with(':')
        || text.contains(": ")
        || text.contains(" #")
}

fn is_printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{a0}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

fn escape(character: char) -> String {
    let name = match character {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '"' | '\\' => character,
        '\u{85}' => 'N',
        '\u{a0}' => '_',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        _ => {
            return match u32::from(character) {
                code @ ..=0xff => format!("\\x{code:02X}"),
                code @ ..=0xffff => format!("\\u{code:04X}"),
                code => format!("\\U{code:08X}"),
            };
        }
    };
    format!("\\{name}")
}

/// Sorts keys in natural order, numbers by their size. This order is not transitive: `a1b` < `a2` < `a12` < `a1b`. The
/// standard library's sort may panic on that, so this is a merge sort.
fn sorted_naturally(mut keys: Vec<&str>) -> Vec<&str> {
    if keys.len() < 2 {
        return keys;
    }
    let mut second = sorted_naturally(keys.split_off(keys.len() / 2)).into_iter().peekable();
    let mut out = Vec::with_capacity(keys.len() + second.len());
    for key in sorted_naturally(keys) {
        while let Some(other) = second.next_if(|other| comes_before(other, key)) {
            out.push(other);
        }
        out.push(key);
    }
    out.extend(second);
    out
}

/// Compares keys: letters come last, and digits count as a number from the point where the keys differ.
fn comes_before(a: &str, b: &str) -> bool {
    let mut shared = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    while !a.is_char_boundary(shared) {
        shared -= 1;
    }
    let rest_of_a = &a[shared..];
    let rest_of_b = &b[shared..];
    let (Some(x), Some(y)) = (rest_of_a.chars().next(), rest_of_b.chars().next()) else { return a.len() < b.len() };
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x < y,
        (false, false) => {}
        (_, is_alphabetic) => return is_alphabetic,
    }
    // A zero counts if a digit precedes it.
    let mut digits_before = a[..shared].bytes().rev().take_while(u8::is_ascii_digit);
    let first = i64::from((x == '0' || y == '0') && digits_before.any(|digit| digit != b'0'));
    let number = |rest: &str| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit);
        digits.fold((first, 0), |(number, length), digit| {
            (number.wrapping_mul(10).wrapping_add(i64::from(digit - b'0')), length + 1)
        })
    };
    (number(rest_of_a), x) < (number(rest_of_b), y)
}
