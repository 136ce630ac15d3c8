//! How the numbers of a document are written that are no plain integers: `1e3`, `1.50`, `-0`, `1E400`.
//!
//! Upstream reads a field by the text of its number, so an amount keeps its exponent, a complaint shows what was sent,
//! and a number that no float holds is no error where nobody reads it. Only looked at where a document has such numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The texts of such numbers by their places, which are written as `spec.containers[0].name`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    texts: BTreeMap<String, String>,
    /// The first of those that no float holds.
    beyond: Vec<(String, String)>,
}

/// No object has more of them; what a hostile one has must not cost more than the object.
const MAX_TEXTS: usize = 10_000;

impl Numbers {
    /// How the number at a place is written, if it is no plain integer.
    pub fn text(&self, place: &str) -> Option<&str> {
        self.texts.get(place).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The numbers that no float holds, with their places, in the order of the document.
    pub fn beyond(&self) -> impl Iterator<Item = (&str, &str)> {
        self.beyond.iter().map(|(place, text)| (place.as_str(), text.as_str()))
    }

    /// All of them, with their places.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(place, text)| (place.as_str(), text.as_str()))
    }

    pub fn insert(&mut self, place: &str, text: &str) {
        if self.texts.len() < MAX_TEXTS {
            self.texts.insert(place.to_owned(), text.to_owned());
            if is_beyond(text) {
                self.beyond.push((place.to_owned(), text.to_owned()));
            }
        }
    }
}

/// Whether no float holds a number.
pub fn is_beyond(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// What upstream says of a number that no float holds, where it wants a float.
pub fn beyond_error(text: &str) -> String {
    format!("json: cannot unmarshal number {text} into Go value of type float64")
}

/// The document with the greatest float for what no float holds, and in its order the texts of all numbers that the
/// reader takes for floats.
pub(crate) fn spelled(bytes: &[u8]) -> (Cow<'_, [u8]>, Vec<&str>) {
    let (mut texts, mut out, mut kept) = (Vec::new(), Vec::new(), 0);
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_length(&bytes[at..]),
            b'-' | b'0'..=b'9' => {
                let rest = &bytes[at..];
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                let text = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                if text == "-0" || text.parse::<i64>().is_err() && text.parse::<u64>().is_err() {
                    texts.push(text);
                }
                if is_beyond(text) {
                    out.extend_from_slice(&bytes[kept..at]);
                    let greatest = if *byte == b'-' { f64::MIN } else { f64::MAX };
                    out.extend_from_slice(format!("{greatest:e}").as_bytes());
                    kept = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    if kept == 0 {
        return (Cow::Borrowed(bytes), texts);
    }
    out.extend_from_slice(&bytes[kept..]);
    (Cow::Owned(out), texts)
}

/// The length of the quoted text that bytes begin with.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_outside_of_texts() {
        let text = br#"{"a":[1,-0,1e3,-5,18446744073709551615],"1.5":"2.5 \" 3.5","b":1E400,"c":-1e999}"#;
        let (document, texts) = spelled(text);
        assert_eq!(texts, ["-0", "1e3", "1E400", "-1e999"]);
        let wanted = r#"{"a":[1,-0,1e3,-5,18446744073709551615],"1.5":"2.5 \" 3.5","b":1.7976931348623157e308,"c":-1.7976931348623157e308}"#;
        assert_eq!(document, wanted.as_bytes());
        assert!(matches!(spelled(b"{\"a\":1.5}").0, Cow::Borrowed(_)));
        assert_eq!(spelled(b"\"\\").1, Vec::<&str>::new());
    }
}
