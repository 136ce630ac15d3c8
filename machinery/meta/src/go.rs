//! Messages and formats of Go and its libraries that clients see: of its JSON scanner, its time parser and its printer
//! of maps.
//!
//! Except for times, this code runs only after something has failed, so clarity goes before speed.

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::quote::quote;

/// The maximal nesting of values. Upstream's scanner allows ten thousand levels; here every later step walks a value
/// recursively, so the stack bounds it.
const MAX_DEPTH: usize = 127;

/// Returns the error of upstream's scanner about bytes that are not JSON; `None` if it accepts them.
pub fn json_error(bytes: &[u8]) -> Option<String> {
    let mut scanner = Scanner { bytes, at: 0 };
    let scanned = scanner.value().and_then(|()| {
        scanner.skip_space();
        match scanner.peek() {
            Some(byte) => Err(invalid(byte, "after top-level value")),
            None => Ok(()),
        }
    });
    scanned.err()
}

const END: &str = "unexpected end of JSON input";

fn invalid(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        other => {
            let quoted = quote(&char::from(other).to_string());
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    };
    format!("invalid character {shown} {context}")
}

#[derive(Clone, Copy)]
enum Nest {
    Object,
    Array,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Returns the next byte. At the end of the input it is a space, as upstream's scanner sees one there.
    fn peek_or_space(&self) -> u8 {
        self.peek().unwrap_or(b' ')
    }

    /// Returns the next byte that is no space.
    fn next(&mut self) -> Result<u8, String> {
        self.skip_space();
        let byte = self.peek().ok_or(END)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads one value of any depth. The nesting is a list and not the stack, which a hostile body could exhaust.
    fn value(&mut self) -> Result<(), String> {
        let mut open: Vec<Nest> = Vec::new();
        'value: loop {
            let begun = match self.next()? {
                b'{' => Some(Nest::Object),
                b'[' => Some(Nest::Array),
                first => {
                    self.scalar(first)?;
                    None
                }
            };
            if let Some(nest) = begun {
                if open.len() == MAX_DEPTH {
                    return Err("exceeded max depth".to_owned());
                }
                self.skip_space();
                match (nest, self.peek()) {
                    (Nest::Object, Some(b'}')) | (Nest::Array, Some(b']')) => self.at += 1,
                    (Nest::Object, _) => {
                        self.key()?;
                        open.push(nest);
                        continue 'value;
                    }
                    (Nest::Array, _) => {
                        open.push(nest);
                        continue 'value;
                    }
                }
            }
            while let Some(nest) = open.last() {
                match (nest, self.next()?) {
                    (Nest::Object, b',') => {
                        self.key()?;
                        continue 'value;
                    }
                    (Nest::Array, b',') => continue 'value,
                    (Nest::Object, b'}') | (Nest::Array, b']') => open.truncate(open.len() - 1),
                    (Nest::Object, other) => return Err(invalid(other, "after object key:value pair")),
                    (Nest::Array, other) => return Err(invalid(other, "after array element")),
                }
            }
            return Ok(());
        }
    }

    fn scalar(&mut self, first: u8) -> Result<(), String> {
        match first {
            b'"' => self.string(),
            b'-' => match self.peek_or_space() {
                b'0'..=b'9' => self.number(),
                other => Err(invalid(other, "in numeric literal")),
            },
            b'0'..=b'9' => {
                self.at -= 1;
                self.number()
            }
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            other => Err(invalid(other, "looking for beginning of value")),
        }
    }

    fn key(&mut self) -> Result<(), String> {
        match self.next()? {
            b'"' => self.string()?,
            other => return Err(invalid(other, "looking for beginning of object key string")),
        }
        match self.next()? {
            b':' => Ok(()),
            other => Err(invalid(other, "after object key")),
        }
    }

    fn string(&mut self) -> Result<(), String> {
        loop {
            let byte = self.peek().ok_or(END)?;
            self.at += 1;
            match byte {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                0..=0x1f => return Err(invalid(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let byte = self.peek_or_space();
        self.at += 1;
        if matches!(byte, b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') {
            return Ok(());
        }
        if byte != b'u' {
            return Err(invalid(byte, "in string escape code"));
        }
        for _ in 0..4 {
            let digit = self.peek_or_space();
            self.at += 1;
            if !digit.is_ascii_hexdigit() {
                return Err(invalid(digit, "in \\u hexadecimal character escape"));
            }
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits();
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.must_have_digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.must_have_digits("in exponent of numeric literal")?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn must_have_digits(&mut self, context: &str) -> Result<(), String> {
        match self.peek_or_space() {
            b'0'..=b'9' => {
                self.digits();
                Ok(())
            }
            other => Err(invalid(other, context)),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes().skip(1) {
            let byte = self.peek_or_space();
            self.at += 1;
            if byte != expected {
                let context = format!("in literal {word} (expecting '{}')", char::from(expected));
                return Err(invalid(byte, &context));
            }
        }
        Ok(())
    }
}

/// Reads a time of the wanted precision as upstream's parser does, or returns that parser's error.
pub fn parse_time(text: &str, micro: bool) -> Result<Timestamp, String> {
    let layout = if micro { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let cannot = |rest: &str, element: &str| {
        let [text, layout, rest, element] = [text, layout, rest, element].map(quote_time);
        format!("parsing time {text} as {layout}: cannot parse {rest} as {element}")
    };
    let error = |reason: String| format!("parsing time {}: {reason}", quote_time(text));
    let mut rest = text;
    let mut numbers = [0i64; 6];
    // Each number with the separator before it; an hour may have one digit.
    let elements = [("", "2006"), ("-", "01"), ("-", "02"), ("T", "15"), (":", "04"), (":", "05")];
    for (number, (before, element)) in numbers.iter_mut().zip(elements) {
        rest = rest.strip_prefix(before).ok_or_else(|| cannot(rest, before))?;
        let digits = rest.bytes().take(element.len()).take_while(u8::is_ascii_digit).count();
        if digits < if element == "15" { 1 } else { element.len() } {
            return Err(cannot(rest, element));
        }
        *number = rest[..digits].parse().unwrap_or_default();
        rest = &rest[digits..];
        let range = match element {
            "01" if !(1..=12).contains(number) => "month",
            "15" if *number > 23 => "hour",
            "04" if *number > 59 => "minute",
            "05" if *number > 59 => "second",
            _ => continue,
        };
        return Err(error(format!("{range} out of range")));
    }
    let digits = rest.bytes().skip(1).take(if micro { 6 } else { usize::MAX }).take_while(u8::is_ascii_digit).count();
    let has_fraction = rest.starts_with(['.', ',']) && digits >= if micro { 6 } else { 1 };
    if micro && !has_fraction {
        return Err(cannot(rest, ".000000"));
    }
    let mut nanoseconds = 0;
    if has_fraction {
        let shown = &rest[1..=digits.min(9)];
        nanoseconds = format!("{shown:0<9}").parse().unwrap_or_default();
        rest = &rest[digits + 1..];
    }
    let mut offset = 0;
    if let Some(behind) = rest.strip_prefix('Z') {
        rest = behind;
    } else {
        let (sign, hours, minutes) = zone(rest.as_bytes()).ok_or_else(|| cannot(rest, "Z07:00"))?;
        let range = if hours > 24 { "hour" } else { "minute" };
        if hours > 24 || minutes > 60 {
            return Err(error(format!("time zone offset {range} out of range")));
        }
        offset = sign * (hours * 60 + minutes) * 60;
        rest = &rest[6..];
    }
    if !rest.is_empty() {
        return Err(error(format!("extra text: {}", quote_time(rest))));
    }
    let [year, month, day, hour, minute, second] = numbers.map(|number| i16::try_from(number).unwrap_or_default());
    let [month, day, hour, minute, second] = [month, day, hour, minute, second].map(|n| n as i8);
    DateTime::new(year, month, day, hour, minute, second, nanoseconds)
        .and_then(|time| Offset::UTC.to_timestamp(time)?.checked_sub(SignedDuration::from_secs(offset)))
        .map_err(|_| error("day out of range".to_owned()))
}

/// Returns the sign, the hours and the minutes of `+07:00`.
fn zone(rest: &[u8]) -> Option<(i64, i64, i64)> {
    let digit = |at: usize| rest.get(at).filter(|byte| byte.is_ascii_digit()).map(|byte| i64::from(byte - b'0'));
    let sign = match (rest.first()?, rest.get(3)?) {
        (b'+', b':') => 1,
        (b'-', b':') => -1,
        _ => return None,
    };
    Some((sign, digit(1)? * 10 + digit(2)?, digit(4)? * 10 + digit(5)?))
}

/// Quotes a time as error messages do: byte by byte where it is not plain ASCII.
fn quote_time(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' | 0x7f => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out + "\""
}

/// Formats a number with six digits after the point, as `%f` does.
pub fn fixed(number: f64) -> String {
    match number {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        _ => format!("{number:.6}"),
    }
}

/// Formats a float in the fewest digits that read back the same, with an exponent if it is far from one: `1.5`,
/// `1e+06`.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Without a precision, Go chooses between the two forms as if six digits were requested.
    if (-4..6).contains(&exponent) {
        return format!("{number}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Reads an unsigned number, or returns the error of `strconv.ParseUint`.
pub fn parse_uint(text: &str) -> Result<u64, String> {
    let failed = |reason: &str| Err(format!("strconv.ParseUint: parsing {}: {reason}", quote(text)));
    match text.parse() {
        _ if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) => failed("invalid syntax"),
        Ok(number) => Ok(number),
        Err(_) => failed("value out of range"),
    }
}

/// Returns upstream's error about a string that is no duration such as `1h30m`; `None` if it is one.
pub fn duration_error(text: &str) -> Option<String> {
    const UNITS: [&str; 8] = ["ns", "us", "\u{b5}s", "\u{3bc}s", "ms", "s", "m", "h"];
    let invalid = || Some(format!("time: invalid duration {}", quote(text)));
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return None;
    }
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let digits = &rest[..rest.len() - number.len()];
        if digits.matches('.').count() > 1 || !digits.contains(|c: char| c.is_ascii_digit()) {
            return invalid();
        }
        let end = number.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(number.len());
        let unit = &number[..end];
        if unit.is_empty() {
            return Some(format!("time: missing unit in duration {}", quote(text)));
        }
        if !UNITS.contains(&unit) {
            return Some(format!("time: unknown unit {} in duration {}", quote(unit), quote(text)));
        }
        rest = &number[end..];
    }
    None
}

/// Formats a value as Go prints one of unknown type: `map[spec:map[replicas:3]]`.
pub fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(printed).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| key.as_str());
            let shown: Vec<String> = entries.iter().map(|(key, item)| format!("{key}:{}", printed(item))).collect();
            format!("map[{}]", shown.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_upstream_writes_them() {
        for (number, wanted) in [
            (0.0, "0"),
            (3.0, "3"),
            (-0.5, "-0.5"),
            (100_000.5, "100000.5"),
            (123_456.0, "123456"),
            (1e6, "1e+06"),
            (123_456_789.5, "1.234567895e+08"),
            (1e21, "1e+21"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(float(number), wanted);
        }
    }

    #[test]
    fn numbers_without_sign() {
        for (text, wanted) in [
            ("12", Ok(12)),
            ("", Err("strconv.ParseUint: parsing \"\": invalid syntax")),
            ("+1", Err("strconv.ParseUint: parsing \"+1\": invalid syntax")),
            ("18446744073709551616", Err("strconv.ParseUint: parsing \"18446744073709551616\": value out of range")),
        ] {
            assert_eq!(parse_uint(text), wanted.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn broken_json_is_named_as_upstream_names_it() {
        for (text, wanted) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("kind: x", "invalid character 'k' looking for beginning of value"),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} {}", "invalid character '{' after top-level value"),
            ("\0", "invalid character '\\x00' looking for beginning of value"),
            ("nul!", "invalid character '!' in literal null (expecting 'l')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("tru", "invalid character ' ' in literal true (expecting 'e')"),
            ("-", "invalid character ' ' in numeric literal"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("1e", "invalid character ' ' in exponent of numeric literal"),
            (r#""\"#, "invalid character ' ' in string escape code"),
            (r#""\u12"#, "invalid character ' ' in \\u hexadecimal character escape"),
            (r#""a"#, "unexpected end of JSON input"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            (r#""\q""#, "invalid character 'q' in string escape code"),
        ] {
            assert_eq!(json_error(text.as_bytes()).as_deref(), Some(wanted), "{text:?}");
        }
        assert_eq!(json_error(br#" {"a": [1, -2.5e+3, true, null, "\u00e9"], "b": {}} "#), None);
        let deep = "[".repeat(128) + &"]".repeat(128);
        assert_eq!(json_error(deep.as_bytes()).as_deref(), Some("exceeded max depth"));
    }

    #[test]
    fn broken_times_are_named_as_upstream_names_them() {
        for (text, micro, wanted) in [
            ("zz", false, r#"parsing time "zz" as "2006-01-02T15:04:05Z07:00": cannot parse "zz" as "2006""#),
            ("2024-13-01T00:00:00Z", false, r#"parsing time "2024-13-01T00:00:00Z": month out of range"#),
            (
                "2024-01-01",
                false,
                r#"parsing time "2024-01-01" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#,
            ),
            (
                "2024-01-01T00:00:00Z",
                true,
                r#"parsing time "2024-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#,
            ),
            (
                "2024-01-01T0:00:00.1+01:00",
                true,
                r#"parsing time "2024-01-01T0:00:00.1+01:00" as "2006-01-02T15:04:05.000000Z07:00": cannot parse ".1+01:00" as ".000000""#,
            ),
            (
                "2024-01-01T00:00:00.1234567Z",
                true,
                r#"parsing time "2024-01-01T00:00:00.1234567Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "7Z" as "Z07:00""#,
            ),
            (
                "2024-01-01T00:00:00.Z",
                false,
                r#"parsing time "2024-01-01T00:00:00.Z" as "2006-01-02T15:04:05Z07:00": cannot parse ".Z" as "Z07:00""#,
            ),
            (
                "2024-01-01 00:00:00Z",
                false,
                r#"parsing time "2024-01-01 00:00:00Z" as "2006-01-02T15:04:05Z07:00": cannot parse " 00:00:00Z" as "T""#,
            ),
            (
                "2024-01-01t00:00:00z",
                false,
                r#"parsing time "2024-01-01t00:00:00z" as "2006-01-02T15:04:05Z07:00": cannot parse "t00:00:00z" as "T""#,
            ),
            (
                "2024-01-01T00:0:00Z",
                false,
                r#"parsing time "2024-01-01T00:0:00Z" as "2006-01-02T15:04:05Z07:00": cannot parse "0:00Z" as "04""#,
            ),
            ("2024-01-01T00:00:60Z", false, r#"parsing time "2024-01-01T00:00:60Z": second out of range"#),
            ("2023-02-29T00:00:00Z", false, r#"parsing time "2023-02-29T00:00:00Z": day out of range"#),
            ("2024-01-01T00:00:00Z ", false, r#"parsing time "2024-01-01T00:00:00Z ": extra text: " ""#),
            (
                "2024-01-01T00:00:00+25:00",
                false,
                r#"parsing time "2024-01-01T00:00:00+25:00": time zone offset hour out of range"#,
            ),
        ] {
            assert_eq!(parse_time(text, micro).expect_err(text), wanted);
        }
    }

    #[test]
    fn times_are_read_as_upstream_reads_them() {
        for (text, micro, wanted) in [
            ("2024-02-29T01:02:03Z", false, "2024-02-29T01:02:03Z"),
            ("2024-01-01T0:00:00Z", false, "2024-01-01T00:00:00Z"),
            ("2024-01-01T9:59:59,25Z", false, "2024-01-01T09:59:59.25Z"),
            ("2024-01-01T00:00:00.1234567890123Z", false, "2024-01-01T00:00:00.123456789Z"),
            ("2024-01-01T00:00:00+24:60", false, "2023-12-30T23:00:00Z"),
            ("2024-01-01T00:00:00-00:30", false, "2024-01-01T00:30:00Z"),
            ("2024-01-01T00:00:00.123456+01:00", true, "2023-12-31T23:00:00.123456Z"),
        ] {
            assert_eq!(parse_time(text, micro).expect(text).to_string(), wanted);
        }
    }

    #[test]
    fn broken_durations_are_named_as_upstream_names_them() {
        for (text, wanted) in [
            ("0", None),
            ("1h30m", None),
            ("-1.5s", None),
            ("x", Some(r#"time: invalid duration "x""#)),
            ("", Some(r#"time: invalid duration """#)),
            ("5", Some(r#"time: missing unit in duration "5""#)),
            ("5y", Some(r#"time: unknown unit "y" in duration "5y""#)),
        ] {
            assert_eq!(duration_error(text).as_deref(), wanted, "{text:?}");
        }
    }

    #[test]
    fn maps_are_printed_with_sorted_keys() {
        let value = serde_json::json!({"spec": {"b": [1, "x"], "a": null}});
        assert_eq!(printed(&value), "map[spec:map[a:<nil> b:[1 x]]]");
    }
}
