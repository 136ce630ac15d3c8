//! The text forms of timestamps and durations.

use jiff::Timestamp;

/// Formats RFC 3339 with as many digits of the fraction as necessary.
pub fn format_timestamp(at: Timestamp) -> String {
    at.to_string()
}

/// Formats seconds, with a fraction if there is one: `1.5s`.
pub fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let seconds = nanos / 1_000_000_000;
    let rest = nanos % 1_000_000_000;
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// Reads a duration as Go does: `1h30m`, `-1.5s`, `0`.
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
        let (digits, after) = rest.split_at(number);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if integer.is_empty() && fraction.is_empty() || integer.len() > 19 {
            return None;
        }
        let integer: i128 = if integer.is_empty() { 0 } else { integer.parse().ok()? };
        let kept: String = fraction.chars().take(18).collect();
        let part: i128 = if kept.is_empty() { 0 } else { kept.parse::<i128>().ok()? };
        total += integer * unit + part * unit / 10i128.pow(kept.len() as u32);
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, nanos) in [
            ("0", Some(0)),
            ("1h30m", Some(5_400_000_000_000)),
            ("-1.5s", Some(-1_500_000_000)),
            ("1.5.5s", None),
            ("1", None),
            ("", None),
            ("s", None),
            ("10µs", Some(10_000)),
            ("9999999h", None),
        ] {
            assert_eq!(parse_duration(text), nanos, "{text}");
        }
        assert_eq!(format_duration(-1_500_000_000), "-1.5s");
        assert_eq!(format_duration(5_400_000_000_000), "5400s");
    }
}
