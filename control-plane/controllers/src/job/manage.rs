//! Creates missing pods, after a backoff when the last ones failed, and deletes surplus ones.

use std::collections::BTreeSet;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use jiff::Timestamp;

use super::indexes::{INDEX, Indexes, index_of};
use super::{Pass, TRACKING};
use crate::runtime::{Action, PodRow, Report};
use crate::workload::{pods, template};

const BURST: usize = 500;
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

impl Pass<'_> {
    /// Returns the writes that bring the number of active pods to the desired one.
    pub(super) fn manage(&mut self) -> Vec<Action> {
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let active = i32::try_from(self.active().count()).unwrap_or(i32::MAX);
        let wanted = match self.spec.completions {
            None if self.successes() > 0 => active.min(parallelism),
            None => parallelism,
            Some(completions) => (completions - self.successes()).clamp(0, parallelism),
        };
        let duplicates = self.duplicates();
        if !duplicates.is_empty() {
            return duplicates;
        }
        if active > wanted {
            return self.delete_active(usize::try_from(active - wanted).unwrap_or(0));
        }
        let only_failed =
            self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some();
        let held = if only_failed { i32::try_from(self.terminating()).unwrap_or(i32::MAX) } else { 0 };
        let missing = usize::try_from(wanted - active - held).unwrap_or(0).min(BURST);
        if missing == 0 {
            return Vec::new();
        }
        match self.spec.backoff_limit_per_index.filter(|_| self.is_indexed()) {
            // Each index has its own backoff.
            Some(_) => self.create_indexed(missing),
            None => match self.pause() {
                Some(pause) => {
                    self.plan.requeue(pause);
                    Vec::new()
                }
                None if self.is_indexed() => self.create_indexed(missing),
                None => self.create(missing),
            },
        }
    }

    /// Deletes active pods in the order of a scale-down.
    pub(super) fn delete_active(&self, most: usize) -> Vec<Action> {
        let mut active: Vec<PodRow> = self.active().cloned().collect();
        pods::rank_for_deletion(&mut active, &self.pods, self.now);
        let report = Report::pod_deleted(self.job);
        active.iter().take(most).map(|pod| Action::delete_pod(pod, report.clone())).collect()
    }

    /// Deletes active pods whose index has a pod already, or is not to run.
    fn duplicates(&self) -> Vec<Action> {
        if !self.is_indexed() {
            return Vec::new();
        }
        let (completed, wanted) = (self.completed(), self.spec.completions.unwrap_or(0));
        let works = |pod: &PodRow, seen: &mut BTreeSet<i32>| {
            index_of(pod).is_some_and(|index| index < wanted && !completed.contains(index) && seen.insert(index))
        };
        // There are nearly never any; only then it matters which of two is older.
        let mut seen = BTreeSet::new();
        if self.active().all(|pod| works(pod, &mut seen)) {
            return Vec::new();
        }
        seen.clear();
        let mut active: Vec<&PodRow> = self.active().collect();
        active.sort_unstable_by_key(|pod| (pod.object.header.creation_timestamp, pod.name()));
        active.retain(|pod| !works(pod, &mut seen));
        let report = Report::pod_deleted(self.job);
        active.into_iter().map(|pod| Action::delete_pod(pod, report.clone())).collect()
    }

    /// Returns the backoff before the next pod: ten seconds after a failure, doubling with each consecutive one.
    fn pause(&self) -> Option<Duration> {
        let ended = |wanted: &str| {
            let of_phase = self.pods.iter().filter(move |pod| pods::phase(pod) == wanted);
            of_phase.filter_map(finished_at).collect::<Vec<Timestamp>>()
        };
        let last_success = ended("Succeeded").into_iter().max();
        let failures: Vec<Timestamp> =
            ended("Failed").into_iter().filter(|at| last_success.is_none_or(|success| *at > success)).collect();
        pause_after(failures.len(), *failures.iter().max()?, self.now)
    }

    /// Returns a pod of the template, with the labels and the finalizer of the Job.
    fn new_pod(&self) -> Pod {
        let mut pod = template::pod_from(&self.spec.template, self.job);
        pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
        pod
    }

    fn create(&self, missing: usize) -> Vec<Action> {
        let pod = self.new_pod();
        (0..missing).map(|_| Action::create_reported(&pod, Report::pod_created(self.job))).collect()
    }

    /// Creates pods for the first open indexes; an index whose last pod failed waits for its backoff.
    fn create_indexed(&mut self, missing: usize) -> Vec<Action> {
        let last = self.last_failed();
        let busy: Indexes = self.active().filter_map(index_of).collect();
        let closed = self.completed().union(&self.failed_indexes()).union(&busy);
        let end = self.spec.completions.unwrap_or(0);
        let pod = self.new_pod();
        let mut created = Vec::new();
        let mut next = closed.first_absent(0);
        while next < end && created.len() < missing {
            let index = next;
            next = closed.first_absent(index + 1);
            if let Some(pause) = last.get(&index).and_then(|last| self.pause_of_index(last)) {
                self.plan.requeue(pause);
                continue;
            }
            let mut pod = indexed(pod.clone(), self.job.name(), index);
            self.carry_failures(&mut pod, last.get(&index));
            created.push(Action::create_reported(&pod, Report::pod_created(self.job)));
        }
        created
    }
}

/// Returns the backoff after this many consecutive failures, the last one at that time; none when it is over.
pub(super) fn pause_after(failures: usize, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    let pause = (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE);
    let passed: Duration = now.duration_since(last).try_into().unwrap_or(Duration::ZERO);
    pause.checked_sub(passed).filter(|left| !left.is_zero())
}

pub(super) fn finished_at(pod: &PodRow) -> Option<Timestamp> {
    pod.facts.finished.or(pod.object.header.creation_timestamp)
}

/// Returns the pod for one index, with the index in a label, an annotation, the environment and the hostname.
fn indexed(mut pod: Pod, job: &str, index: i32) -> Pod {
    let number = index.to_string();
    pod.metadata.generate_name = Some(format!("{job}-{index}-"));
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.to_owned(), number.clone());
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), number);
    let spec = pod.spec.get_or_insert_default();
    spec.hostname.get_or_insert_with(|| format!("{job}-{index}").chars().take(63).collect());
    let source =
        ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), ..ObjectFieldSelector::default() };
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(source), ..EnvVarSource::default() }),
        ..EnvVar::default()
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let environment = container.env.get_or_insert_default();
        if !environment.iter().any(|other| other.name == variable.name) {
            environment.push(variable.clone());
        }
    }
    pod
}
