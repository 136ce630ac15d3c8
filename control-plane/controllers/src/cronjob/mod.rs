//! The CronJob controller: creates a Job at each scheduled time.
//!
//! The name of a Job contains its scheduled time, so that no time gets two Jobs. The status is computed from the Jobs,
//! not from events.

pub(crate) mod schedule;

use std::cmp::Reverse;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, Job};
use corten_api::k8s_openapi::api::core::v1::ObjectReference;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use corten_client::Propagation;
use corten_meta::Key;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, Reference, Report, View, Watch};
use crate::workload::condition::finished_condition;
use crate::workload::owner::{self, owners_of};
use schedule::Schedule;

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Clocks differ a little: a Job had better start a moment late than early.
const NUDGE: Duration = Duration::from_millis(100);
/// More missed times than this are not enumerated.
const MANY: usize = 100;

pub struct CronJobController;

pub struct Observed {
    cron: CronJob,
    /// The CronJob's Jobs, by name.
    jobs: Vec<Job>,
}

impl Controller for CronJobController {
    type Observed = Observed;

    const NAME: &'static str = "cronjob-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<CronJob>(), Watch::mapped::<Job>(|_, change| owners_of(change, CronJob::KIND))]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let cron: CronJob = view.typed(key).filter(|cron: &CronJob| cron.metadata.deletion_timestamp.is_none())?;
        let uid = cron.metadata.uid.clone()?;
        let mut jobs: Vec<Job> = view.owned_by(&uid);
        jobs.retain(|job| owner::is_controlled_by(&job.metadata, &uid));
        jobs.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        Some(Observed { cron, jobs })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let spec = &observed.cron.spec;
        let mut plan = Plan::nothing();
        tell(&mut plan, observed);
        clean_up(&mut plan, observed, spec);
        if !spec.suspend.unwrap_or(false) {
            schedule_next(&mut plan, observed, spec, now);
        }
        plan
    }
}

/// Reports whether the controller created the Job, by its name and scheduled time. A Job that a user created from the
/// template does not count.
fn is_ours(cron: &CronJob, job: &Job) -> bool {
    time_of(job).is_some_and(|at| job.name() == name_at(cron, at))
}

fn name_at(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.name(), at.as_second() / 60)
}

/// Returns the scheduled Jobs that still run.
fn active(observed: &Observed) -> impl Iterator<Item = &Job> {
    observed.jobs.iter().filter(|job| finished_condition(job).is_none() && is_ours(&observed.cron, job))
}

fn time_of(job: &Job) -> Option<Timestamp> {
    job.metadata.annotations.as_ref()?.get(SCHEDULED_AT)?.parse().ok()
}

/// Updates the status from the Jobs, and records an event for each that finished since.
fn tell(plan: &mut Plan, observed: &Observed) {
    let cron = &observed.cron;
    let before = cron.status.clone().unwrap_or_default();
    let mut status = before.clone();
    for reference in before.active.iter().flatten() {
        let job = observed.jobs.iter().find(|job| job.metadata.uid == reference.uid);
        match job.map(finished_condition) {
            Some(None) => {}
            Some(Some(condition)) => {
                let name = reference.name.as_deref().unwrap_or_default();
                let message = format!("Saw completed job: {name}, condition: {}", condition.type_);
                plan.push(Action::normal(cron, "SawCompletedJob", message));
            }
            None => {
                let message = format!("Active job went missing: {}", reference.name.as_deref().unwrap_or_default());
                plan.push(Action::normal(cron, "MissingJob", message));
            }
        }
    }
    for job in observed.jobs.iter().filter(|job| finished_condition(job).is_none() && !is_ours(cron, job)) {
        let message = format!("Saw a job that the controller did not create or forgot: {}", job.name());
        plan.push(Action::warning(cron, "UnexpectedJob", message));
    }
    let active: Vec<ObjectReference> = active(observed).map(reference_to).collect();
    status.active = Some(active).filter(|all| !all.is_empty());
    let latest = observed.jobs.iter().filter_map(time_of).chain(before.last_schedule_time.map(|time| time.0)).max();
    status.last_schedule_time = latest.map(Time);
    let ended = observed.jobs.iter().filter_map(|job| job.status.as_ref()?.completion_time.as_ref()).map(|time| time.0);
    status.last_successful_time = ended.chain(before.last_successful_time.map(|time| time.0)).max().map(Time);
    if cron.status.clone().unwrap_or_default() != status {
        let mut updated = cron.clone();
        updated.status = Some(status);
        plan.push(Action::update_status(&updated));
    }
}

fn reference_to(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some(Job::API_VERSION.to_owned()),
        kind: Some(Job::KIND.to_owned()),
        namespace: job.metadata.namespace.clone(),
        name: job.metadata.name.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// Deletes the oldest finished Jobs beyond the history limits.
fn clean_up(plan: &mut Plan, observed: &Observed, spec: &CronJobSpec) {
    let limits = [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    for (kind, limit) in limits {
        let mut ended: Vec<&Job> = observed
            .jobs
            .iter()
            .filter(|job| finished_condition(job).is_some_and(|condition| condition.type_ == kind))
            .collect();
        ended.retain(|job| job.metadata.deletion_timestamp.is_none());
        ended.sort_by_key(|job| {
            (
                Reverse(job.status.as_ref().and_then(|status| status.start_time.clone()).map(|time| time.0)),
                job.name().to_owned(),
            )
        });
        for job in ended.into_iter().skip(usize::try_from(limit).unwrap_or(0)) {
            delete(plan, &observed.cron, job);
        }
    }
}

fn delete(plan: &mut Plan, cron: &CronJob, job: &Job) {
    plan.push(Action::delete_with(job, None, Some(Propagation::Background), None));
    plan.push(Action::normal(cron, "SuccessfulDelete", format!("Deleted job {}", job.name())));
}

fn schedule_next(plan: &mut Plan, observed: &Observed, spec: &CronJobSpec, now: Timestamp) {
    let cron = &observed.cron;
    let zone = match spec.time_zone.as_deref().map_or(Ok(TimeZone::UTC), TimeZone::get) {
        Ok(zone) => zone,
        Err(error) => {
            let name = spec.time_zone.as_deref().unwrap_or_default();
            return plan.push(Action::warning(
                cron,
                "UnknownTimeZone",
                format!("invalid timeZone: \"{name}\": {error}"),
            ));
        }
    };
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: \"{}\" : {error}", spec.schedule);
            return plan.push(Action::warning(cron, "UnparseableSchedule", message));
        }
    };
    let since = since(observed, spec, now);
    let Some(next) = schedule.next(now, &zone) else {
        // A schedule such as February 31st is valid, but never occurs.
        let why = "time difference between two schedules is less than 1 second";
        let message = format!("invalid schedule: {} : {why}", spec.schedule);
        return plan.push(Action::warning(cron, "InvalidSchedule", message));
    };
    let wait: Duration = next.duration_since(now).try_into().unwrap_or(Duration::ZERO);
    plan.requeue(wait + NUDGE);
    if let Some(due) = latest_due(&schedule, &zone, since, now) {
        start(plan, observed, spec, due, now);
    }
}

/// Returns the earliest time to consider: the last scheduled time, but no earlier than the starting deadline.
fn since(observed: &Observed, spec: &CronJobSpec, now: Timestamp) -> Timestamp {
    let created = observed.cron.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let reported =
        observed.cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref()).map(|time| time.0);
    let last = observed.jobs.iter().filter_map(time_of).chain(reported).max().or(created).unwrap_or(now);
    let deadline = spec
        .starting_deadline_seconds
        .and_then(|seconds| now.checked_sub(jiff::SignedDuration::from_secs(seconds)).ok());
    deadline.map_or(last, |deadline| last.max(deadline))
}

/// Returns the latest scheduled time after `since` that has passed. After a long pause only its end is enumerated.
fn latest_due(schedule: &Schedule, zone: &TimeZone, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let first = schedule.next(since, zone).filter(|first| *first <= now)?;
    let interval = schedule.next(first, zone)?.duration_since(first);
    let many = interval.checked_mul(i32::try_from(MANY).unwrap_or(i32::MAX));
    let recent = many.and_then(|many| now.checked_sub(many).ok()).map_or(first, |recent| recent.max(first));
    let mut due =
        if recent > first { schedule.next(recent, zone).filter(|at| *at <= now).unwrap_or(first) } else { first };
    while let Some(next) = schedule.next(due, zone).filter(|next| *next <= now) {
        due = next;
    }
    Some(due)
}

fn start(plan: &mut Plan, observed: &Observed, spec: &CronJobSpec, due: Timestamp, now: Timestamp) {
    let cron = &observed.cron;
    let late = now.duration_since(due).as_secs();
    if spec.starting_deadline_seconds.is_some_and(|deadline| late > deadline) {
        let message = format!("Missed scheduled time to start a job: {}", corten_meta::time::rfc3339(due));
        return plan.push(Action::warning(cron, "MissSchedule", message));
    }
    let active: Vec<&Job> = active(observed).collect();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            return plan.push(Action::normal(cron, "JobAlreadyActive", message));
        }
        Some("Replace") => active
            .iter()
            .filter(|job| job.metadata.deletion_timestamp.is_none())
            .for_each(|job| delete(plan, cron, job)),
        _ => {}
    }
    plan.push(Action::Create {
        resource: crate::runtime::ResourceType::of::<Job>(),
        object: job_at(cron, spec, due).to_value(),
        report: Some(Report {
            about: Reference::to(cron),
            success: ("SuccessfulCreate", "Created job ".into()),
            failure: ("FailedCreate", "Error creating job: ".into()),
        }),
    });
    plan.count(&metrics::CRON_SKEW, [], now.duration_since(due).as_secs_f64());
}

fn job_at(cron: &CronJob, spec: &CronJobSpec, due: Timestamp) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED_AT.to_owned(), corten_meta::time::rfc3339(due));
    let metadata = ObjectMeta {
        name: Some(name_at(cron, due)),
        namespace: cron.metadata.namespace.clone(),
        labels: template.labels,
        annotations: Some(annotations),
        owner_references: Some(vec![owner::controller_reference(cron)]),
        ..ObjectMeta::default()
    };
    Job { metadata, spec: spec.job_template.spec.clone(), status: None }
}
