//! Times as the API writes them, and ages as `kubectl get` prints them.

use crate::Error;
use jiff::fmt::temporal::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use std::time::Instant;

/// Returns the time of the wall clock. Only binaries and the edges of components may call it: logic takes the time as
/// an argument.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// A clock that never jumps: the time of the wall clock when it was made, and the time since. Deadlines and delays of a
/// component follow it, so that a clock that is set neither freezes them nor ends them early.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    wall: Timestamp,
    since: Instant,
}

impl Default for SteadyClock {
    fn default() -> SteadyClock {
        SteadyClock { wall: now(), since: Instant::now() }
    }
}

impl SteadyClock {
    pub fn now(&self) -> Timestamp {
        self.wall.saturating_add(self.since.elapsed()).unwrap_or(self.wall)
    }
}

/// Formats a `Time`: in seconds, UTC, `2026-01-02T03:04:05Z`.
pub fn rfc3339(at: Timestamp) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(0));
    PRINTER.timestamp_to_string(&at)
}

/// Formats a `MicroTime`: always six digits of fraction, UTC.
pub fn rfc3339_micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Reads a `Time` or a `MicroTime`.
pub fn parse(text: &str) -> Result<Timestamp, Error> {
    crate::go::parse_time(text, false).map_err(Error::Time)
}

/// Formats an age with two or three significant figures, as `kubectl get` prints it.
pub fn human_duration(age: SignedDuration) -> String {
    let seconds = age.as_secs();
    if seconds < -1 {
        return "<invalid>".into();
    }
    if seconds < 0 {
        return "0s".into();
    }
    if seconds < 60 * 2 {
        return format!("{seconds}s");
    }
    let minutes = seconds / 60;
    if minutes < 10 {
        return pair(minutes, "m", seconds % 60, "s");
    }
    if minutes < 60 * 3 {
        return format!("{minutes}m");
    }
    let hours = minutes / 60;
    if hours < 8 {
        return pair(hours, "h", minutes % 60, "m");
    }
    if hours < 48 {
        return format!("{hours}h");
    }
    let days = hours / 24;
    if hours < 24 * 8 {
        return pair(days, "d", hours % 24, "h");
    }
    if hours < 24 * 365 * 2 {
        return format!("{days}d");
    }
    if hours < 24 * 365 * 8 {
        return pair(days / 365, "y", days % 365, "d");
    }
    format!("{}y", days / 365)
}

/// Formats the big unit, and the small one if it is not zero.
fn pair(big: i64, big_unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        const MINUTE: i64 = 60;
        const HOUR: i64 = 60 * MINUTE;
        const DAY: i64 = 24 * HOUR;
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (1, "1s"),
            (70, "70s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (10 * MINUTE, "10m"),
            (47 * MINUTE, "47m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 60, "3h1m"),
            (8 * HOUR + 60, "8h"),
            (47 * HOUR, "47h"),
            (49 * HOUR, "2d1h"),
            (8 * DAY, "8d"),
            (365 * DAY, "365d"),
            (2 * 365 * DAY, "2y"),
            (2 * 365 * DAY + DAY, "2y1d"),
            (8 * 365 * DAY + DAY, "8y"),
            (10 * 365 * DAY, "10y"),
        ] {
            assert_eq!(human_duration(SignedDuration::from_secs(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn times_have_whole_seconds() {
        for (text, written) in [
            ("2026-01-02T03:04:05.999999999Z", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(parse(text).unwrap()), written);
        }
    }

    #[test]
    fn times_round_trip() {
        let at = Timestamp::new(1_700_000_000, 123_456_789).unwrap();
        assert_eq!(rfc3339(at), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339_micro(at), "2023-11-14T22:13:20.123456Z");
        assert_eq!(parse("2023-11-14T23:13:20+01:00").unwrap(), Timestamp::new(1_700_000_000, 0).unwrap());
        assert!(parse("yesterday").is_err());
    }
}
