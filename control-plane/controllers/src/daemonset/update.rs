//! The rolling update of a DaemonSet: replaces old pods in place, or by new ones beside them, within the bounds of the
//! strategy.

use corten_api::k8s_openapi::api::apps::v1::RollingUpdateDaemonSet;
use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Pass;
use crate::runtime::{Action, Plan, PodRow, Report};
use crate::workload::int_or_percent::scaled;
use crate::workload::pods;

impl Pass<'_> {
    fn rolling(&self) -> Option<RollingUpdateDaemonSet> {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
        (strategy.type_.as_deref() != Some("OnDelete")).then(|| strategy.rolling_update.unwrap_or_default())
    }

    pub(super) fn max_surge(&self) -> i32 {
        let rolling = self.rolling().unwrap_or_default();
        scaled(rolling.max_surge.as_ref().or(Some(&IntOrString::Int(0))), self.desired, true)
    }

    fn max_unavailable(&self) -> i32 {
        let rolling = self.rolling().unwrap_or_default();
        let bound = scaled(rolling.max_unavailable.as_ref().or(Some(&IntOrString::Int(1))), self.desired, true);
        // With both zero, the update would never proceed.
        if bound == 0 && self.max_surge() == 0 { 1 } else { bound }
    }

    fn is_available(&self, pod: &PodRow) -> bool {
        pods::is_available(pod, self.min_ready(), self.now)
    }

    pub(super) fn update(&self, plan: &mut Plan) {
        if self.rolling().is_none() {
            return;
        }
        match self.max_surge() {
            0 => self.replace_in_place(plan),
            surge => self.replace_beside(plan, surge),
        }
    }

    /// Deletes old pods: unavailable ones at once, others while enough pods stay available.
    fn replace_in_place(&self, plan: &mut Plan) {
        let (mut unavailable, mut serving, mut idle) = (0, Vec::new(), Vec::new());
        for on_node in self.nodes_with_pods.iter().filter(|on_node| on_node.runs) {
            let Some(pod) = on_node.pods.first() else {
                unavailable += 1;
                continue;
            };
            let available = self.is_available(pod) && !pods::is_terminating(pod);
            unavailable += i32::from(!available);
            match self.is_updated(pod) || pods::is_terminating(pod) {
                true => {}
                false if available => serving.push(pod),
                false => idle.push(pod),
            }
        }
        let room = usize::try_from((self.max_unavailable() - unavailable).max(0)).unwrap_or(0);
        self.give_up(plan, idle.into_iter().chain(serving.into_iter().take(room)));
    }

    /// Creates new pods beside old ones, at most `surge` at a time, and deletes an old pod when its successor is
    /// available.
    fn replace_beside(&self, plan: &mut Plan, surge: i32) {
        let (mut gone, mut wanted, mut under_way) = (Vec::new(), Vec::new(), 0);
        for on_node in self.nodes_with_pods.iter().filter(|on_node| on_node.runs) {
            let alive: Vec<&PodRow> = on_node.pods.iter().filter(|pod| !pods::is_terminating(pod)).collect();
            let (new, old): (Vec<&PodRow>, Vec<&PodRow>) = alive.into_iter().partition(|pod| self.is_updated(pod));
            let succeeded = new.iter().any(|pod| self.is_available(pod));
            match (old.first(), new.first()) {
                (Some(old), Some(_)) if succeeded => gone.push(*old),
                (Some(_), Some(_)) => under_way += 1,
                (Some(old), None) if !self.is_available(old) => gone.push(*old),
                (Some(_), None) => wanted.push(on_node.node.name()),
                (None, _) => gone.extend(new.into_iter().skip(1)),
            }
        }
        let room = usize::try_from((surge - under_way).max(0)).unwrap_or(0);
        self.give_up(plan, gone.into_iter());
        plan.actions.extend(wanted.into_iter().take(room).map(|node| self.create(node)));
    }

    fn give_up<'p>(&self, plan: &mut Plan, pods: impl Iterator<Item = &'p PodRow>) {
        let report = Report::pod_deleted(self.set);
        plan.actions.extend(pods.map(|pod| Action::delete_pod(pod, report.clone())));
    }
}
