//! VolumeBackupSchedules: makes a VolumeBackup of each selected claim at each scheduled time, and deletes the oldest
//! ones beyond the number to keep.
//!
//! The name of a backup contains its time, so that no time gets two. Backups are not owned by their schedule: they stay
//! when it is deleted.
//!
//! Invariant: retention deletes a finished backup only while as many newer finished ones exist as are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use corten_client::Change;
use corten_meta::time::rfc3339;
use corten_meta::{Key, Value};
use corten_snapshots::{READY, SCHEDULE_LABEL, VolumeBackup, VolumeBackupSchedule, with_condition};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::ACCOUNT;
use crate::cronjob::schedule::Schedule;
use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch, key_of};
use crate::workload::owner::selector;

/// More missed times than this are not enumerated.
const MANY: usize = 1000;
/// The longest name of an object.
const LONGEST_NAME: usize = 253;
/// The longest value of a label.
const LONGEST_LABEL: usize = 63;

pub struct ScheduleController;

pub struct Observed {
    schedule: VolumeBackupSchedule,
    /// The names of the selected claims, in order.
    claims: Vec<String>,
    /// The backups of the schedule by their claims, the newest first.
    backups: BTreeMap<String, Vec<VolumeBackup>>,
}

impl Controller for ScheduleController {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<VolumeBackupSchedule>(),
            Watch::mapped::<VolumeBackup>(of_backup),
            Watch::read::<PersistentVolumeClaim>(),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let schedule: VolumeBackupSchedule = view.typed(key)?;
        if schedule.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let selected: Vec<PersistentVolumeClaim> = view.select(&key.namespace, &selector(&schedule.spec.selector));
        let mut claims: Vec<String> = selected.iter().map(|claim| claim.name().to_owned()).collect();
        claims.sort_unstable();
        let label = label(schedule.name());
        let mut own: Vec<VolumeBackup> = view.all(&key.namespace);
        own.retain(|backup| backup.metadata.labels.as_ref().and_then(|all| all.get(SCHEDULE_LABEL)) == Some(&label));
        own.sort_by_key(|backup| std::cmp::Reverse((created(backup), backup.name().to_owned())));
        let mut backups: BTreeMap<String, Vec<VolumeBackup>> = BTreeMap::new();
        for backup in own {
            let claim = backup.spec.source.persistent_volume_claim_name.clone().unwrap_or_default();
            backups.entry(claim).or_default().push(backup);
        }
        Some(Observed { schedule, claims, backups })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::from(observed.surplus());
        match observed.times(now) {
            Err(message) => {
                let conditions = &observed.schedule.status.clone().unwrap_or_default().conditions;
                if let Some(conditions) = with_condition(conditions, READY, false, "InvalidSchedule", &message, now) {
                    let status = json!({"status": {"conditions": conditions}});
                    plan.push(Action::patch_status(&observed.schedule, status));
                }
            }
            Ok(_) if observed.schedule.spec.suspend => {}
            Ok(times) => observed.follow(times, now, &mut plan),
        }
        plan
    }
}

/// The last time that is due, and the next one.
struct Times {
    due: Option<Timestamp>,
    next: Option<Timestamp>,
}

impl Observed {
    /// Returns the times of the schedule around now. Of several missed times only the last counts.
    fn times(&self, now: Timestamp) -> Result<Times, String> {
        let spec = &self.schedule.spec;
        let schedule = Schedule::parse(&spec.schedule)?;
        let zone = match spec.time_zone.as_deref() {
            None | Some("") => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_| format!("the time zone {name} is not known"))?,
        };
        let last = self.schedule.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
        let last = last.and_then(|time| time.parse().ok());
        let mut after = last.or(self.schedule.metadata.creation_timestamp.as_ref().map(|time| time.0)).unwrap_or(now);
        let mut due = None;
        for _ in 0..MANY {
            match schedule.next(after, &zone) {
                Some(next) if next <= now => {
                    due = Some(next);
                    after = next;
                }
                next => return Ok(Times { due, next }),
            }
        }
        // The schedule was off for long: it goes on from now.
        Ok(Times { due: Some(now), next: schedule.next(now, &zone) })
    }

    /// Makes the backups that are due, and plans the next time.
    fn follow(&self, times: Times, now: Timestamp, plan: &mut Plan) {
        if let Some(due) = times.due {
            let writes = self.claims.iter().filter_map(|claim| self.backup_at(claim, due));
            plan.actions.extend(writes);
            let mut status = json!({"lastScheduleTime": rfc3339(due)});
            let conditions = self.schedule.status.clone().unwrap_or_default().conditions;
            let set = match self.claims.len() {
                0 => with_condition(&conditions, READY, false, "NoClaims", "the selector selects no claim", now),
                count => {
                    let message = format!("{count} claims are backed up");
                    with_condition(&conditions, READY, true, "Scheduled", &message, now)
                }
            };
            if let Some(conditions) = set {
                status["conditions"] = conditions;
            }
            plan.push(Action::patch_status(&self.schedule, json!({"status": status})));
        }
        if let Some(next) = times.next {
            let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
            plan.requeue(wait + Duration::from_millis(100));
        }
    }

    /// Returns the backup of a claim at a time; none while an earlier one is under way.
    fn backup_at(&self, claim: &str, at: Timestamp) -> Option<Action> {
        let earlier = self.backups.get(claim).map(Vec::as_slice).unwrap_or_default();
        let name = name_at(self.schedule.name(), claim, at);
        let is_running = |backup: &VolumeBackup| !backup.is_ready() && backup.metadata.deletion_timestamp.is_none();
        if earlier.iter().any(|backup| backup.name() == name || is_running(backup)) {
            return None;
        }
        let object: Value = json!({
            "apiVersion": VolumeBackup::API_VERSION,
            "kind": VolumeBackup::KIND,
            "metadata": {
                "name": name,
                "namespace": self.schedule.namespace(),
                "labels": {SCHEDULE_LABEL: label(self.schedule.name())},
            },
            "spec": {
                "repositoryName": self.schedule.spec.repository_name,
                "source": {"persistentVolumeClaimName": claim},
                "deletionPolicy": "Delete",
            },
        });
        Some(Action::Create { resource: ResourceType::of::<VolumeBackup>(), object, report: None })
    }

    /// Deletes the finished backups of each claim beyond the newest that are kept, and unfinished ones that are older
    /// than a finished one.
    fn surplus(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for backups in self.backups.values() {
            let mut finished = 0;
            for backup in backups {
                let is_surplus = match backup.is_ready() {
                    true => {
                        finished += 1;
                        finished > self.schedule.spec.keep.max(1)
                    }
                    false => finished > 0,
                };
                if is_surplus && backup.metadata.deletion_timestamp.is_none() {
                    actions.push(Action::delete(backup));
                }
            }
        }
        actions
    }
}

fn created(backup: &VolumeBackup) -> Option<Timestamp> {
    backup.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn hash(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the value of the label; a long name is shortened.
fn label(schedule: &str) -> String {
    match schedule.len() > LONGEST_LABEL {
        true => format!("{}-{}", &schedule[..LONGEST_LABEL - 17], hash(schedule)),
        false => schedule.to_owned(),
    }
}

fn name_at(schedule: &str, claim: &str, at: Timestamp) -> String {
    let minute = at.as_second() / 60;
    let name = format!("{schedule}-{claim}-{minute}");
    match name.len() > LONGEST_NAME {
        true => format!("backup-{}-{minute}", hash(&format!("{schedule}/{claim}"))),
        false => name,
    }
}

fn of_backup(view: &dyn View, change: &Change) -> Vec<Key> {
    let labels = change.object().map(|object| object.header.labels.clone()).unwrap_or_default();
    let Some(label_of) = labels.get(SCHEDULE_LABEL) else { return Vec::new() };
    let all: Vec<VolumeBackupSchedule> = view.all(&change.key.namespace);
    all.iter().filter(|one| label(one.name()) == *label_of).map(key_of).collect()
}
