//! The rules of CronJob beyond its fields: a schedule and a time zone.

use corten_meta::field::FieldError;

use super::schedule::schedule_error;
use crate::check::Errors;
use crate::rules::Site;

/// Validates the schedule. A time zone in the old one may stay.
pub(crate) fn cron_schedule(site: &Site<'_, '_>, errors: &mut Errors) {
    let schedule = site.at;
    let zone = site.of.get("timeZone");
    let text = schedule.text().split_once(' ').filter(|(zone, _)| zone.contains("TZ="));
    let text = text.map_or(schedule.text(), |(_, rest)| rest.trim_start());
    errors.extend(schedule_error(text).map(|detail| schedule.invalid(detail)));
    let had_zone = site.old.is_some_and(|old| old.as_str().is_some_and(|old| old.contains("TZ")));
    if schedule.text().contains("TZ") && had_zone && zone.is_set() {
        errors.push(schedule.invalid("cannot use both timeZone field and TZ or CRON_TZ in schedule"));
    } else if schedule.text().contains("TZ") && !had_zone {
        errors.push(schedule.invalid("cannot use TZ or CRON_TZ in schedule, use timeZone field instead"));
    }
}

/// Validates the length of a new CronJob's name: the controller adds eleven characters to make the names of jobs.
pub(crate) fn cron_job_name(site: &Site<'_, '_>, errors: &mut Errors) {
    if site.old.is_none() && site.at.text().len() > 52 {
        errors.push(site.at.invalid("must be no more than 52 characters"));
    }
}

/// Validates a time zone that is new or changes.
pub(crate) fn cron_time_zone(site: &Site<'_, '_>, errors: &mut Errors) {
    let zone = site.at;
    if !zone.is_set() || site.old == Some(zone.value) {
        return;
    }
    let name = zone.text();
    if name.is_empty() {
        errors.push(zone.invalid("timeZone must be nil or non-empty string"));
        return;
    }
    let part = |part: &str| {
        let characters = part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b));
        characters && (1..=14).contains(&part.len()) && part != "." && part != ".." && !part.starts_with('-')
    };
    let unknown = || FieldError::invalid(&zone.path, name, format!("unknown time zone {name}")).as_json();
    if !name.split('/').all(part) {
        errors.push(unknown());
        return;
    }
    if name.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.push(zone.invalid(detail));
    }
    if jiff::tz::TimeZone::get(name).is_err() && name != "Local" {
        errors.push(unknown());
    }
}
