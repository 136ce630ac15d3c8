//! The ordinals of a StatefulSet: created from the first, deleted from the last, updated from the last.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::ControllerRevision;
use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Pass;
use super::identity::{claim_of, claims_of, pod_of, revision_of};
use crate::runtime::{Action, Plan, PodRow, Reference, Report};
use crate::workload::int_or_percent::scaled;
use crate::workload::pods;

/// The most pods that one reconcile creates: their echo starts the next reconcile.
const BURST: usize = 500;

impl Pass<'_> {
    pub(super) fn run(&self, plan: &mut Plan) {
        let waits = self.fill(plan);
        if waits && self.is_ordered() {
            return;
        }
        let shrinks = self.shrink(plan);
        if !shrinks && self.is_rolling() {
            self.roll(plan);
        }
    }

    /// Creates the missing ordinals; reports whether one is not available yet. With OrderedReady, none is created
    /// before the previous one is available.
    fn fill(&self, plan: &mut Plan) -> bool {
        let mut waits = false;
        let mut created = 0;
        for ordinal in self.ordinals() {
            if created == BURST {
                return true;
            }
            let settled = match self.members.get(&ordinal) {
                None if self.has_stale_claim(ordinal) => false,
                None => {
                    self.create(plan, ordinal);
                    created += 1;
                    false
                }
                Some(pod) if pods::is_terminal(pod) => {
                    if !pods::is_terminating(pod) {
                        self.delete(plan, pod);
                    }
                    false
                }
                Some(pod) => {
                    self.create_claims(plan, ordinal);
                    self.align_claims(plan, ordinal, pod);
                    self.is_available(pod)
                }
            };
            waits |= !settled;
            if waits && self.is_ordered() {
                return true;
            }
        }
        waits
    }

    fn create(&self, plan: &mut Plan, ordinal: i32) {
        self.create_claims(plan, ordinal);
        let pod = pod_of(self.set, self.revision_for(ordinal), ordinal);
        let what = format!("Create Pod {} in StatefulSet {}", pod.name(), self.set.name());
        plan.push(Action::create_reported(&pod, self.report("FailedCreate", &what)));
        plan.push(Action::normal(self.set, "SuccessfulCreate", format!("{what} successful")));
    }

    /// Returns the revision of a new pod. A rolling update keeps the ordinals below its partition at the current
    /// revision, also during the update; every other pod is created from the update revision, with OnDelete too.
    fn revision_for(&self, ordinal: i32) -> &ControllerRevision {
        let is_kept = self.is_rolling() && ordinal < self.first_updated();
        if is_kept { &self.current } else { &self.update }
    }

    fn report(&self, reason: &'static str, what: &str) -> Report {
        Report {
            about: Reference::to(self.set),
            success: ("", "".into()),
            failure: (reason, format!("{what} failed error: ").into()),
        }
    }

    fn create_claims(&self, plan: &mut Plan, ordinal: i32) {
        for (name, template) in claims_of(self.set, ordinal) {
            if self.claims.contains_key(name.as_str()) {
                continue;
            }
            let mut claim = claim_of(self.set, name, template);
            claim.metadata.owner_references = self.owners_of_new_claim();
            let pod = format!("{}-{ordinal}", self.set.name());
            let what = format!("Create Claim {} Pod {pod} in StatefulSet {}", claim.name(), self.set.name());
            plan.push(Action::create(&claim));
            plan.push(Action::normal(self.set, "SuccessfulCreate", format!("{what} success")));
        }
    }

    fn delete(&self, plan: &mut Plan, pod: &PodRow) {
        let what = format!("Delete Pod {} in StatefulSet {}", pod.name(), self.set.name());
        plan.push(Action::delete_pod(pod, self.report("FailedDelete", &what)));
        plan.push(Action::normal(self.set, "SuccessfulDelete", format!("{what} successful")));
    }

    /// Deletes pods that are out of range, the last first; reports whether there are any. With OrderedReady, one at a
    /// time, and only while all before it are healthy.
    fn shrink(&self, plan: &mut Plan) -> bool {
        let range = self.ordinals();
        let condemned: Vec<(&i32, &PodRow)> =
            self.members.iter().rev().filter(|(ordinal, _)| !range.contains(ordinal)).collect();
        condemned.iter().for_each(|(ordinal, pod)| self.align_claims(plan, **ordinal, pod));
        let sick = self.members.values().find(|pod| !self.is_available(pod)).map(PodRow::name);
        for (_, pod) in &condemned {
            if pods::is_terminating(pod) {
                if self.is_ordered() {
                    break;
                }
                continue;
            }
            // An unhealthy pod may be deleted itself, but blocks the others.
            if self.is_ordered() && sick.is_some_and(|name| name != pod.name()) {
                break;
            }
            self.delete(plan, pod);
            if self.is_ordered() {
                break;
            }
        }
        !condemned.is_empty()
    }

    /// Returns how many pods may be unavailable during an update.
    pub(super) fn most_unavailable(&self) -> i32 {
        let rolling = self.spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        let max_unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        scaled(max_unavailable.or(Some(&IntOrString::Int(1))), self.replicas(), true).max(1)
    }

    /// Replaces pods of an old revision, the last first, as many at a time as may be unavailable.
    fn roll(&self, plan: &mut Plan) {
        let most = self.most_unavailable();
        let first = self.first_updated();
        let mut unavailable = 0;
        for ordinal in self.ordinals().rev() {
            let Some(pod) = self.members.get(&ordinal) else {
                unavailable += 1;
                if unavailable >= most {
                    return;
                }
                continue;
            };
            if unavailable >= most || ordinal < first {
                return;
            }
            if revision_of(pod) != self.update.name() && !pods::is_terminating(pod) {
                self.delete(plan, pod);
                unavailable += 1;
            } else if !self.is_available(pod) {
                unavailable += 1;
            }
        }
    }
}
