//! The rules of CronJob: a schedule, a time zone, and a job that the server may give a selector.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::schedule::schedule_error;
use super::validation::validate_job_spec;
use crate::check::{At, Errors};

/// Validates a CronJob. A time zone in the old schedule may stay, the field's time zone is validated when it changes,
/// and the length of the name only when the object is new.
pub(super) fn validate_cron_job(object: &Value, old: Option<&Value>) -> Errors {
    let name = At::object(object).get("metadata").get("name");
    let spec = At::object(object).get("spec");
    let before = old.map(|old| At::object(old).get("spec"));
    let schedule = spec.get("schedule");
    let zone = spec.get("timeZone");
    let mut errors = Errors::new();
    if schedule.must(&mut errors) {
        let text = schedule.text().split_once(' ').filter(|(zone, _)| zone.contains("TZ="));
        let text = text.map_or(schedule.text(), |(_, rest)| rest.trim_start());
        errors.extend(schedule_error(text).map(|detail| schedule.invalid(detail)));
        let had_zone = before.as_ref().is_some_and(|before| before.get("schedule").text().contains("TZ"));
        if schedule.text().contains("TZ") && had_zone && zone.is_set() {
            errors.push(schedule.invalid("cannot use both timeZone field and TZ or CRON_TZ in schedule"));
        } else if schedule.text().contains("TZ") && !had_zone {
            errors.push(schedule.invalid("cannot use TZ or CRON_TZ in schedule, use timeZone field instead"));
        }
    }
    spec.get("startingDeadlineSeconds").nonnegative(&mut errors);
    if before.is_none_or(|before| before.get("timeZone").value != zone.value) {
        validate_time_zone(&zone, &mut errors);
    }
    spec.get("concurrencyPolicy").must_be_one_of(&mut errors, &["Allow", "Forbid", "Replace"]);
    let job = spec.get("jobTemplate").get("spec");
    validate_job_spec(&job, &mut errors);
    if job.get("selector").is_set() {
        errors.push(job.get("selector").invalid("`selector` will be auto-generated"));
    }
    if job.get("manualSelector").is_true() {
        errors.push(job.get("manualSelector").not_supported(&["nil", "false"]));
    }
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        spec.get(field).nonnegative(&mut errors);
    }
    // The controller adds eleven characters to make the names of jobs.
    if old.is_none() && name.text().len() > 52 {
        errors.push(name.invalid("must be no more than 52 characters"));
    }
    errors
}

fn validate_time_zone(zone: &At<'_>, errors: &mut Errors) {
    if !zone.is_set() {
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
