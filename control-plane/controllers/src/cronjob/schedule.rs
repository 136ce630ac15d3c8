//! Cron schedules: five fields, names, ranges, steps, lists, the usual macros; and their next time.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// The longest search for the next time: a schedule such as February 30th has none.
const HORIZON_DAYS: usize = 5 * 366;

#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    Cron(Box<Fields>),
    /// `@every 90m`, counted from the last scheduled time.
    Every(Duration),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fields {
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    days: BTreeSet<i8>,
    months: BTreeSet<i8>,
    weekdays: BTreeSet<i8>,
    /// Whether both a day of the month and a weekday are restricted: then either matches.
    either_day: bool,
}

impl Schedule {
    pub fn parse(text: &str) -> Result<Schedule, String> {
        let text = text.trim();
        if let Some(every) = text.strip_prefix("@every ") {
            return duration(every.trim())
                .map(Schedule::Every)
                .ok_or_else(|| format!("failed to parse duration {text}"));
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ if text.starts_with('@') => return Err(format!("unrecognized descriptor: {text}")),
            _ => text,
        };
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = parts.as_slice() else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
        };
        let is_star = |part: &str| part.starts_with('*') || part.starts_with('?');
        let weekday_set = field(weekdays, 0, 7, &DAYS, 0)?.into_iter().map(|day| day % 7).collect();
        Ok(Schedule::Cron(Box::new(Fields {
            minutes: field(minutes, 0, 59, &[], 0)?,
            hours: field(hours, 0, 23, &[], 0)?,
            days: field(days, 1, 31, &[], 0)?,
            months: field(months, 1, 12, &MONTHS, 1)?,
            weekdays: weekday_set,
            either_day: !is_star(days) && !is_star(weekdays),
        })))
    }

    /// Returns the first time after `after`, in the time zone.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(interval) => after.checked_add(*interval).ok(),
            Schedule::Cron(fields) => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut date = after.to_zoned(zone.clone()).date();
        for _ in 0..HORIZON_DAYS {
            if self.is_on(date) {
                let found = self
                    .times()
                    .map(|time| date.to_datetime(time))
                    .filter_map(|at| zone.to_timestamp(at).ok())
                    .find(|at| *at > after);
                if found.is_some() {
                    return found;
                }
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    fn times(&self) -> impl Iterator<Item = Time> {
        self.hours.iter().flat_map(|hour| self.minutes.iter().filter_map(|minute| Time::new(*hour, *minute, 0, 0).ok()))
    }

    fn is_on(&self, date: Date) -> bool {
        let weekday = self.weekdays.contains(&date.weekday().to_sunday_zero_offset());
        let day = self.days.contains(&date.day());
        let on_day = if self.either_day { day || weekday } else { day && weekday };
        self.months.contains(&date.month()) && on_day
    }
}

/// Parses one field: a list of ranges, each with an optional step.
fn field(text: &str, least: i8, most: i8, names: &[&str], first_name: i8) -> Result<BTreeSet<i8>, String> {
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let step: i8 = step
            .map_or(Ok(1), str::parse)
            .ok()
            .filter(|step| *step > 0)
            .ok_or_else(|| format!("failed to parse int from {part}"))?;
        let stepped = part.contains('/');
        let (first, last) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (least, most),
            Some((first, last)) => (value(first, names, first_name)?, value(last, names, first_name)?),
            None => {
                let only = value(range, names, first_name)?;
                (only, if stepped { most } else { only })
            }
        };
        if first < least {
            return Err(format!("beginning of range ({first}) below minimum ({least}): {part}"));
        }
        if last > most {
            return Err(format!("end of range ({last}) above maximum ({most}): {part}"));
        }
        if first > last {
            return Err(format!("beginning of range ({first}) beyond end of range ({last}): {part}"));
        }
        all.extend((first..=last).step_by(usize::from(step.unsigned_abs())));
    }
    Ok(all)
}

fn value(text: &str, names: &[&str], first_name: i8) -> Result<i8, String> {
    let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
    match named.and_then(|at| i8::try_from(at).ok()) {
        Some(at) => Ok(at + first_name),
        None => text.parse().map_err(|_| format!("failed to parse int from {text}")),
    }
}

/// Parses a duration such as `1h30m`.
fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut number) = (0u64, String::new());
    for character in text.chars() {
        if character.is_ascii_digit() {
            number.push(character);
            continue;
        }
        let scale = match character {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        let part = std::mem::take(&mut number).parse::<u64>().ok()?.checked_mul(scale)?;
        total = total.checked_add(part)?;
    }
    (number.is_empty() && total > 0).then(|| Duration::from_secs(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let at = Schedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone);
        at.map_or("never".to_owned(), |at| at.to_string())
    }

    #[test]
    fn the_next_time_is_what_cron_says() {
        for (schedule, after, expected) in [
            ("* * * * *", "2026-01-02T03:04:05Z", "2026-01-02T03:05:00Z"),
            ("*/15 * * * *", "2026-01-02T03:45:00Z", "2026-01-02T04:00:00Z"),
            ("0 0 * * *", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"),
            ("30 4 1,15 * *", "2026-01-02T00:00:00Z", "2026-01-15T04:30:00Z"),
            ("0 12 * * mon-fri", "2026-01-02T12:00:00Z", "2026-01-05T12:00:00Z"),
            ("0 0 13 * 5", "2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z"),
            ("0 0 1 jan *", "2026-01-02T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 * * 7", "2026-01-02T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("@hourly", "2026-01-02T03:04:05Z", "2026-01-02T04:00:00Z"),
            ("@every 90m", "2026-01-02T03:00:00Z", "2026-01-02T04:30:00Z"),
            ("0 0 30 2 *", "2026-01-01T00:00:00Z", "never"),
        ] {
            assert_eq!(next(schedule, after, "UTC"), expected, "{schedule}");
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for wrong in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "5-1 * * * *",
            "*/0 * * * *",
            "x * * * *",
            "@often",
            "@every soon",
            "@every 9999999999999999999h",
            "@every 18446744073709551615s1s",
        ] {
            assert!(Schedule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
