//! The spelling of a document's numbers that are not plain integers: `1e3`, `1.50`, `-0`, `1E400`.
//!
//! Upstream decodes a field from the spelling of its number: a quantity keeps its exponent, an error shows the number
//! as it was sent, and a number beyond any float is no error if no field reads it. Used only for documents with such
//! numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The spellings of such numbers by path, such as `spec.containers[0].name`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    texts: BTreeMap<String, String>,
    /// The first numbers that are beyond any float.
    beyond: Vec<(String, String)>,
}

/// The limit of recorded numbers. A hostile object must not cost more than its size.
const MAX_TEXTS: usize = 10_000;

impl Numbers {
    /// Returns the spelling of the number at a path, if it is no plain integer.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns the numbers beyond any float, with their paths, in the order of the document.
    pub fn beyond(&self) -> impl Iterator<Item = (&str, &str)> {
        self.beyond.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns all numbers with their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn insert(&mut self, path: &str, text: &str) {
        if self.texts.len() < MAX_TEXTS {
            self.texts.insert(path.to_owned(), text.to_owned());
            if is_beyond(text) {
                self.beyond.push((path.to_owned(), text.to_owned()));
            }
        }
    }
}

/// Reports whether a number is beyond any float.
pub fn is_beyond(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Returns upstream's error about a number beyond any float in a float field.
pub fn beyond_error(text: &str) -> String {
    format!("json: cannot unmarshal number {text} into Go value of type float64")
}

/// Returns the document with the greatest float in place of numbers beyond it, and the spellings of all numbers that
/// the decoder reads as floats, in order.
pub(crate) fn spelled(bytes: &[u8]) -> (Cow<'_, [u8]>, Vec<&str>) {
    let mut texts = Vec::new();
    let mut out = Vec::new();
    let mut kept = 0;
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

/// Returns the length of the quoted string that bytes begin with.
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
    fn numbers_are_found_outside_of_strings() {
        let text = br#"{"a":[1,-0,1e3,-5,18446744073709551615],"1.5":"2.5 \" 3.5","b":1E400,"c":-1e999}"#;
        let (document, texts) = spelled(text);
        assert_eq!(texts, ["-0", "1e3", "1E400", "-1e999"]);
        let wanted = r#"{"a":[1,-0,1e3,-5,18446744073709551615],"1.5":"2.5 \" 3.5","b":1.7976931348623157e308,"c":-1.7976931348623157e308}"#;
        assert_eq!(document, wanted.as_bytes());
        assert!(matches!(spelled(b"{\"a\":1.5}").0, Cow::Borrowed(_)));
        assert_eq!(spelled(b"\"\\").1, Vec::<&str>::new());
    }
}
