//! Query strings: parsing and decoding. Pure.

use std::collections::HashMap;

/// Returns the parameters in order; a name may occur more than once.
pub fn pairs(query: Option<&str>) -> Vec<(String, String)> {
    let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// Returns the first value of each parameter.
pub fn map(query: Option<&str>) -> HashMap<String, String> {
    let mut map = HashMap::new();
    for (name, value) in pairs(query) {
        map.entry(name).or_insert(value);
    }
    map
}

/// Reports whether any of the names has a true value.
pub fn flag(pairs: &[(String, String)], names: &[&str]) -> bool {
    pairs.iter().any(|(name, value)| names.contains(&name.as_str()) && (value == "1" || value == "true"))
}

/// Returns all values of the name.
pub fn all(pairs: &[(String, String)], name: &str) -> Vec<String> {
    pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = escaped(tail);
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the byte of the two hex digits after a `%`; a sign is not a digit.
fn escaped(tail: &[u8]) -> Option<u8> {
    let [high, low, ..] = tail else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let pairs = pairs(Some("command=sh&command=-c&command=echo+a%26b&tty=1&bad=%zz"));
        assert_eq!(all(&pairs, "command"), ["sh", "-c", "echo a&b"]);
        assert!(flag(&pairs, &["tty"]) && !flag(&pairs, &["input", "stdin"]));
        for (written, read) in
            [("%zz", "%zz"), ("%+1", "% 1"), ("%-1", "%-1"), ("%4", "%4"), ("%", "%"), ("%4a%4A", "JJ")]
        {
            assert_eq!(map(Some(&format!("bad={written}")))["bad"], read, "{written}");
        }
    }
}
