//! Durations in Go's notation: `1m30s`, `100ms`, `0s`. Pure.

use std::time::Duration;

const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration; a bare `0` is one too.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit_length = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (_, factor) = UNITS.iter().find(|(unit, _)| *unit == &rest[..unit_length]).ok_or_else(wrong)?;
        total += number * *factor as f64;
        rest = &rest[unit_length..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_nanos(total as u64)) }
}

pub fn format_duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    if nanoseconds == 0 {
        return "0s".into();
    }
    if duration < Duration::from_secs(1) {
        let (unit, factor) = match nanoseconds {
            0..1_000 => ("ns", 1.0),
            1_000..1_000_000 => ("µs", 1e3),
            _ => ("ms", 1e6),
        };
        return format!("{}{unit}", nanoseconds as f64 / factor);
    }
    let hours = duration.as_secs() / 3600;
    let minutes = duration.as_secs() / 60 % 60;
    let seconds = (duration.as_secs() % 60) as f64 + f64::from(duration.subsec_nanos()) / 1e9;
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, milliseconds, written) in [
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("4h", 14_400_000, "4h0m0s"),
            ("100ms", 100, "100ms"),
            ("1.5s", 1_500, "1.5s"),
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(format_duration(duration), written);
        }
        for wrong in ["", "5", "s", "1d", "-1s", "1m 2s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
