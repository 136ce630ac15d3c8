//! Counts terminated pods: first into `uncountedTerminatedPods`, then the pod's finalizer is removed, then into the
//! counts.

use std::collections::HashSet;

use corten_api::k8s_openapi::api::batch::v1::UncountedTerminatedPods;

use super::indexes::{Indexes, index_of};
use super::{Pass, is_tracked, release};
use crate::metrics;
use crate::runtime::PodRow;
use crate::workload::condition::count;
use crate::workload::pods;

fn uid(pod: &PodRow) -> &str {
    &pod.object.header.uid
}

impl Pass<'_> {
    /// Reports whether a pod counts as failed. A terminating pod does, unless the pod replacement policy is Failed: it
    /// may never report a failed phase.
    pub(super) fn has_failed(&self, pod: &PodRow) -> bool {
        let only_failed =
            self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some();
        pods::phase(pod) == "Failed" || (!only_failed && pods::is_terminating(pod) && pods::phase(pod) != "Succeeded")
    }

    /// Returns the failures: the counted ones, and those to be counted.
    pub(super) fn failures(&self) -> i32 {
        let uncounted =
            self.status.uncounted_terminated_pods.as_ref().and_then(|lists| lists.failed.as_ref()).map_or(0, Vec::len);
        self.status.failed.unwrap_or(0) + i32::try_from(uncounted).unwrap_or(i32::MAX)
    }

    pub(super) fn successes(&self) -> i32 {
        if self.is_indexed() {
            return self.completed().len();
        }
        let uncounted = self
            .status
            .uncounted_terminated_pods
            .as_ref()
            .and_then(|lists| lists.succeeded.as_ref())
            .map_or(0, Vec::len);
        self.status.succeeded.unwrap_or(0) + i32::try_from(uncounted).unwrap_or(i32::MAX)
    }

    pub(super) fn completed(&self) -> Indexes {
        self.below_completions(Indexes::parse(self.status.completed_indexes.as_deref().unwrap_or_default()))
    }

    pub(super) fn account(&mut self) {
        self.settle_uncounted();
        let before = self.job.status.as_ref().and_then(|status| status.uncounted_terminated_pods.as_ref());
        let listed: HashSet<&str> = before
            .iter()
            .flat_map(|lists| lists.succeeded.iter().chain(&lists.failed).flatten())
            .map(String::as_str)
            .collect();
        let (mut releases, mut new) = (Vec::new(), UncountedTerminatedPods::default());
        let mut handled: Vec<String> = Vec::new();
        let (last, completed) = (self.last_failed(), self.completed());
        let held: HashSet<&str> = last.values().map(uid).collect();
        for pod in self.pods.iter().filter(|pod| is_tracked(&pod.object) && !held.contains(uid(pod))) {
            let (succeeded, failed) = (pods::phase(pod) == "Succeeded", self.has_failed(pod));
            if listed.contains(uid(pod)) {
                // The list is durable by now: the pod may be deleted.
                releases.push(release(&pod.object));
            } else if succeeded && self.counts_as_success(pod, &completed) {
                new.succeeded.get_or_insert_default().push(uid(pod).to_owned());
            } else if succeeded {
                releases.push(release(&pod.object));
            } else if failed {
                let action = self.action_for(pod).map(str::to_owned);
                match action.as_deref() {
                    Some("Ignore") => releases.push(release(&pod.object)),
                    _ => new.failed.get_or_insert_default().push(uid(pod).to_owned()),
                }
                handled.extend(action);
            }
        }
        for action in handled {
            self.plan.count(&metrics::JOB_FAILURES_HANDLED, [action.as_str().into()], 1.0);
        }
        self.count_held(&new, releases.len());
        self.plan.actions.extend(releases);
        self.add_indexes(&new);
        self.list_uncounted(new);
    }

    /// Counts the terminated pods that were found, and those that are released.
    fn count_held(&mut self, new: &UncountedTerminatedPods, released: usize) {
        let found = new.succeeded.iter().chain(&new.failed).map(Vec::len).sum::<usize>();
        for (event, number) in [("add", found), ("delete", released)] {
            if number > 0 {
                self.plan.count(&metrics::JOB_PODS_HELD, [event.into()], number as f64);
            }
        }
    }

    /// Counts the indexes that this reconcile completes.
    pub(super) fn count_indexes(&mut self, status: &str, before: i32, after: i32) {
        if after > before {
            let limit = if self.spec.backoff_limit_per_index.is_some() { "perIndex" } else { "global" };
            let labels = [status.into(), limit.into()];
            self.plan.count(&metrics::JOB_INDEXES_FINISHED, labels, f64::from(after - before));
        }
    }

    /// Moves listed pods that have lost their finalizer since into the counts.
    fn settle_uncounted(&mut self) {
        let is_listed = |lists: &UncountedTerminatedPods| lists.succeeded.is_some() || lists.failed.is_some();
        if !self.status.uncounted_terminated_pods.as_ref().is_some_and(is_listed) {
            return;
        }
        let Some(lists) = self.status.uncounted_terminated_pods.take() else { return };
        let held: HashSet<&str> = self.pods.iter().filter(|pod| is_tracked(&pod.object)).map(uid).collect();
        let part = |list: Option<Vec<String>>| -> (Vec<String>, i32) {
            let (still, gone): (Vec<String>, Vec<String>) =
                list.unwrap_or_default().into_iter().partition(|uid| held.contains(uid.as_str()));
            (still, i32::try_from(gone.len()).unwrap_or(i32::MAX))
        };
        let (succeeded, more_succeeded) = part(lists.succeeded);
        let (failed, more_failed) = part(lists.failed);
        for (result, more) in [("succeeded", more_succeeded), ("failed", more_failed)] {
            if more > 0 {
                self.plan.count(&metrics::JOB_PODS_FINISHED, [self.mode(), result.into()], more.into());
            }
        }
        self.status.succeeded = count(self.status.succeeded.unwrap_or(0) + more_succeeded);
        self.status.failed = count(self.status.failed.unwrap_or(0) + more_failed);
        if self.is_indexed() {
            self.status.succeeded = count(self.completed().len());
        }
        let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        self.status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { succeeded: some(succeeded), failed: some(failed) });
    }

    fn list_uncounted(&mut self, new: UncountedTerminatedPods) {
        let lists = self.status.uncounted_terminated_pods.get_or_insert_default();
        for (list, more) in [(&mut lists.succeeded, new.succeeded), (&mut lists.failed, new.failed)] {
            if let Some(mut more) = more {
                more.sort_unstable();
                list.get_or_insert_default().extend(more);
            }
        }
    }

    /// Reports whether a success counts: not for an index that already succeeded, or that is out of range.
    fn counts_as_success(&self, pod: &PodRow, completed: &Indexes) -> bool {
        if !self.is_indexed() {
            return true;
        }
        let wanted = self.spec.completions.unwrap_or(0);
        index_of(pod).is_some_and(|index| index < wanted && !completed.contains(index))
    }

    fn add_indexes(&mut self, new: &UncountedTerminatedPods) {
        if !self.is_indexed() {
            return;
        }
        let mut completed = self.completed();
        let before = completed.len();
        let new: HashSet<&str> = new.succeeded.iter().flatten().map(String::as_str).collect();
        let fresh = self.pods.iter().filter(|pod| new.contains(uid(pod)));
        fresh.filter_map(index_of).for_each(|index| completed.insert(index));
        let after = completed.len();
        self.count_indexes("succeeded", before, after);
        self.status.completed_indexes = Some(completed.to_string()).filter(|text| !text.is_empty());
        self.status.succeeded = count(completed.len());
    }
}
