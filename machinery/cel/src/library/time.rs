//! The library of timestamps and durations: parsing, formatting, and their parts in any time zone.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use super::no_overload;
use crate::declare::Line;
use crate::error::Error;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, Error>;

pub const TABLE: &[Line] = &[
    ("timestamp_to_year", "timestamp::getFullYear() -> int", |_, a| part(a, |t| t.year().into())),
    ("timestamp_to_year_with_tz", "timestamp::getFullYear(string) -> int", |_, a| part(a, |t| t.year().into())),
    ("timestamp_to_month", "timestamp::getMonth() -> int", |_, a| part(a, |t| i64::from(t.month()) - 1)),
    ("timestamp_to_month_with_tz", "timestamp::getMonth(string) -> int", |_, a| part(a, |t| i64::from(t.month()) - 1)),
    ("timestamp_to_day_of_year", "timestamp::getDayOfYear() -> int", |_, a| {
        part(a, |t| i64::from(t.day_of_year()) - 1)
    }),
    ("timestamp_to_day_of_year_with_tz", "timestamp::getDayOfYear(string) -> int", |_, a| {
        part(a, |t| i64::from(t.day_of_year()) - 1)
    }),
    ("timestamp_to_day_of_month", "timestamp::getDayOfMonth() -> int", |_, a| part(a, |t| i64::from(t.day()) - 1)),
    ("timestamp_to_day_of_month_with_tz", "timestamp::getDayOfMonth(string) -> int", |_, a| {
        part(a, |t| i64::from(t.day()) - 1)
    }),
    ("timestamp_to_day_of_month_1_based", "timestamp::getDate() -> int", |_, a| part(a, |t| t.day().into())),
    ("timestamp_to_day_of_month_1_based_with_tz", "timestamp::getDate(string) -> int", |_, a| {
        part(a, |t| t.day().into())
    }),
    ("timestamp_to_day_of_week", "timestamp::getDayOfWeek() -> int", |_, a| {
        part(a, |t| t.weekday().to_sunday_zero_offset().into())
    }),
    ("timestamp_to_day_of_week_with_tz", "timestamp::getDayOfWeek(string) -> int", |_, a| {
        part(a, |t| t.weekday().to_sunday_zero_offset().into())
    }),
    ("timestamp_to_hours", "timestamp::getHours() -> int", |_, a| part(a, |t| t.hour().into())),
    ("timestamp_to_hours_with_tz", "timestamp::getHours(string) -> int", |_, a| part(a, |t| t.hour().into())),
    ("duration_to_hours", "duration::getHours() -> int", |_, a| whole(a, 3_600_000_000_000)),
    ("timestamp_to_minutes", "timestamp::getMinutes() -> int", |_, a| part(a, |t| t.minute().into())),
    ("timestamp_to_minutes_with_tz", "timestamp::getMinutes(string) -> int", |_, a| part(a, |t| t.minute().into())),
    ("duration_to_minutes", "duration::getMinutes() -> int", |_, a| whole(a, 60_000_000_000)),
    ("timestamp_to_seconds", "timestamp::getSeconds() -> int", |_, a| part(a, |t| t.second().into())),
    ("timestamp_to_seconds_tz", "timestamp::getSeconds(string) -> int", |_, a| part(a, |t| t.second().into())),
    ("duration_to_seconds", "duration::getSeconds() -> int", |_, a| whole(a, 1_000_000_000)),
    ("timestamp_to_milliseconds", "timestamp::getMilliseconds() -> int", |_, a| part(a, |t| t.millisecond().into())),
    ("timestamp_to_milliseconds_with_tz", "timestamp::getMilliseconds(string) -> int", |_, a| {
        part(a, |t| t.millisecond().into())
    }),
    ("duration_to_milliseconds", "duration::getMilliseconds() -> int", |_, a| whole(a, 1_000_000)),
];

fn whole<'a>(args: &[Value<'a>], unit: i64) -> Outcome<'a> {
    match args.first() {
        Some(Value::Duration(nanos)) => Ok(Value::Int(nanos / unit)),
        _ => Err(no_overload()),
    }
}

/// Returns a part of a timestamp, in UTC or in the zone of the argument.
fn part<'a>(args: &[Value<'a>], get: impl Fn(&jiff::Zoned) -> i64) -> Outcome<'a> {
    let Some(Value::Timestamp(at)) = args.first() else { return Err(no_overload()) };
    let zone = match args.get(1) {
        None => TimeZone::UTC,
        Some(Value::String(name)) => zone(name)?,
        Some(_) => return Err(no_overload()),
    };
    Ok(Value::Int(get(&at.to_zoned(zone))))
}

/// Returns a time zone by its name or by its offset from UTC.
fn zone(name: &str) -> Result<TimeZone, Error> {
    let unknown = || Error::failed(format!("unknown time zone {name}"));
    if name.is_empty() || name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let Some((hours, minutes)) = name.split_once(':') else {
        return TimeZone::get(name).map_err(|_| unknown());
    };
    let negative = hours.starts_with('-');
    let hours: i32 = hours.trim_start_matches(['+', '-']).parse().map_err(|_| unknown())?;
    let minutes: i32 = minutes.parse().map_err(|_| unknown())?;
    if !(0..=25).contains(&hours) || !(0..60).contains(&minutes) {
        return Err(unknown());
    }
    let seconds = hours * 3600 + minutes * 60;
    Offset::from_seconds(if negative { -seconds } else { seconds }).map(TimeZone::fixed).map_err(|_| unknown())
}

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
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.is_empty() && fraction.is_empty() || whole.len() > 19 {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let kept: String = fraction.chars().take(18).collect();
        let part: i128 = if kept.is_empty() { 0 } else { kept.parse::<i128>().ok()? };
        total += whole * unit + part * unit / 10i128.pow(kept.len() as u32);
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
