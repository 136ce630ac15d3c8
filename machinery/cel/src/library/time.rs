//! The library of timestamps and durations: their parts in any time zone.

use jiff::tz::{Offset, TimeZone};

use super::no_overload;
use crate::declare::Line;
use crate::error::Error;
use crate::value::Value;
pub use crate::value::{format_duration, format_timestamp, parse_duration};

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
    ("duration_to_hours", "duration::getHours() -> int", |_, a| units(a, 3_600_000_000_000)),
    ("timestamp_to_minutes", "timestamp::getMinutes() -> int", |_, a| part(a, |t| t.minute().into())),
    ("timestamp_to_minutes_with_tz", "timestamp::getMinutes(string) -> int", |_, a| part(a, |t| t.minute().into())),
    ("duration_to_minutes", "duration::getMinutes() -> int", |_, a| units(a, 60_000_000_000)),
    ("timestamp_to_seconds", "timestamp::getSeconds() -> int", |_, a| part(a, |t| t.second().into())),
    ("timestamp_to_seconds_tz", "timestamp::getSeconds(string) -> int", |_, a| part(a, |t| t.second().into())),
    ("duration_to_seconds", "duration::getSeconds() -> int", |_, a| units(a, 1_000_000_000)),
    ("timestamp_to_milliseconds", "timestamp::getMilliseconds() -> int", |_, a| part(a, |t| t.millisecond().into())),
    ("timestamp_to_milliseconds_with_tz", "timestamp::getMilliseconds(string) -> int", |_, a| {
        part(a, |t| t.millisecond().into())
    }),
    ("duration_to_milliseconds", "duration::getMilliseconds() -> int", |_, a| units(a, 1_000_000)),
];

fn units<'a>(args: &[Value<'a>], unit: i64) -> Outcome<'a> {
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
