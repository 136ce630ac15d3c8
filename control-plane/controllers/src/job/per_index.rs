//! Failures per index: how often the pods of an index failed, when the index has failed, and its backoff.
//!
//! The pods themselves carry the count. Invariant: the last failed pod of an index stays until its successor carries
//! the count on; otherwise deleting a pod would erase a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Pod;

use super::indexes::{Indexes, index_of};
use super::manage::{finished_at, pause_after};
use super::{Pass, is_tracked};
use crate::runtime::PodRow;

const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// Returns the failures of the index before this pod, ignored ones included.
fn all_before(pod: &PodRow) -> i32 {
    pod.facts.index_failures.saturating_add(pod.facts.index_failures_ignored)
}

impl Pass<'_> {
    fn limit_per_index(&self) -> Option<i32> {
        self.spec.backoff_limit_per_index.filter(|_| self.is_indexed())
    }

    /// Returns the indexes below the Job's completions, which may have been reduced.
    pub(super) fn below_completions(&self, indexes: Indexes) -> Indexes {
        match self.spec.completions {
            Some(completions) => indexes.below(completions),
            None => indexes,
        }
    }

    pub(super) fn failed_indexes(&self) -> Indexes {
        self.below_completions(Indexes::parse(self.status.failed_indexes.as_deref().unwrap_or_default()))
    }

    /// Marks an index as failed when its pods failed more often than its limit, or a rule fails the index.
    pub(super) fn count_failed_indexes(&mut self) {
        let Some(limit) = self.limit_per_index() else { return };
        let mut failed = self.failed_indexes();
        let before = failed.len();
        for pod in self.pods.iter().filter(|pod| is_tracked(&pod.object) && self.has_failed(pod)) {
            let action = self.action_for(pod);
            let lost = match action {
                Some("FailIndex") => true,
                Some("Ignore") => false,
                _ => pod.facts.index_failures >= limit,
            };
            if let Some(index) = index_of(pod).filter(|_| lost) {
                failed.insert(index);
            }
        }
        let failed = self.below_completions(failed);
        self.count_indexes("failed", before, failed.len());
        self.status.failed_indexes = Some(failed.to_string());
    }

    /// Returns the failed pod of each open index that has no successor yet: the one with the most failures before it.
    pub(super) fn last_failed(&self) -> BTreeMap<i32, PodRow> {
        let mut last: BTreeMap<i32, PodRow> = BTreeMap::new();
        // A Job that is about to finish creates no successors: all its pods are counted.
        if self.limit_per_index().is_none() || self.decided().is_some() {
            return last;
        }
        let busy: Indexes = self.active().filter_map(index_of).collect();
        let (completed, failed) = (self.completed(), self.failed_indexes());
        let wanted = self.spec.completions.unwrap_or(0);
        for pod in self.pods.iter().filter(|pod| is_tracked(&pod.object) && self.has_failed(pod)) {
            let Some(index) = index_of(pod).filter(|index| *index < wanted) else { continue };
            if busy.contains(index) || completed.contains(index) || failed.contains(index) {
                continue;
            }
            let rank = |pod: &PodRow| (all_before(pod), finished_at(pod), pod.name().to_owned());
            if last.get(&index).is_none_or(|other| rank(other) < rank(pod)) {
                last.insert(index, pod.clone());
            }
        }
        last
    }

    /// Returns the backoff of the successor of a failed pod; none when it is over.
    pub(super) fn pause_of_index(&self, last: &PodRow) -> Option<Duration> {
        pause_after(usize::try_from(all_before(last)).unwrap_or(0) + 1, finished_at(last)?, self.now)
    }

    /// Sets the failure counts on the next pod of an index.
    pub(super) fn carry_failures(&self, pod: &mut Pod, last: Option<&PodRow>) {
        if self.limit_per_index().is_none() {
            return;
        }
        let forgiven = last.is_some_and(|last| self.is_ignored(last));
        let failures = last.map_or(0, |last| last.facts.index_failures + i32::from(!forgiven));
        let ignored = last.map_or(0, |last| last.facts.index_failures_ignored + i32::from(forgiven));
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED.to_owned(), ignored.to_string());
        }
    }
}
