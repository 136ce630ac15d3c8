//! Proportional scaling: if a Deployment is resized during a rollout, or paused, each ReplicaSet keeps its share.

use std::cmp::Reverse;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::ReplicaSet;

use super::revisions::{DESIRED_REPLICAS, MAX_REPLICAS, annotation};
use super::{Pass, available, bounds, is_rolling, size_of, total};

fn number(set: &ReplicaSet, key: &str) -> Option<i32> {
    annotation(&set.metadata, key).and_then(|value| value.parse::<i32>().ok()).filter(|value| *value >= 0)
}

impl Pass<'_> {
    /// Reports whether an active ReplicaSet was sized for a different number of replicas than the Deployment's.
    pub(super) fn is_scaling(&self) -> bool {
        let wanted = self.replicas();
        self.all()
            .filter(|set| size_of(set) > 0)
            .any(|set| number(set, DESIRED_REPLICAS).is_some_and(|sized| sized != wanted))
    }

    pub(super) fn scale(&mut self) {
        if let Some(only) = self.active_or_latest() {
            let wanted = self.replicas();
            self.resize(&only, wanted, false);
        } else if self.new.as_ref().is_some_and(|new| self.is_saturated(new)) {
            for set in self.old.clone().iter().filter(|set| size_of(set) > 0) {
                self.resize(set, 0, false);
            }
        } else if is_rolling(&self.deployment) {
            for (set, size) in self.proportions() {
                self.resize(&set, size, true);
            }
        }
    }

    /// Returns the only active ReplicaSet, or the latest if none is active.
    fn active_or_latest(&self) -> Option<ReplicaSet> {
        let mut active = self.all().filter(|set| size_of(set) > 0);
        match (active.next(), active.next()) {
            (None, _) => self.new.as_ref().or(self.old.last()).cloned(),
            (Some(only), None) => Some(only.clone()),
            _ => None,
        }
    }

    fn is_saturated(&self, new: &ReplicaSet) -> bool {
        let wanted = self.replicas();
        size_of(new) == wanted && number(new, DESIRED_REPLICAS) == Some(wanted) && available(new) == wanted
    }

    /// Returns every active ReplicaSet with its new size: in proportion to the old one, the remainder to the largest.
    fn proportions(&self) -> Vec<(ReplicaSet, i32)> {
        let wanted = self.replicas();
        let allowed = if wanted > 0 { wanted.saturating_add(bounds(&self.deployment).0) } else { 0 };
        let mut active: Vec<ReplicaSet> = self.all().filter(|set| size_of(set) > 0).cloned().collect();
        let to_add = allowed - total(active.iter().map(size_of));
        let age = |set: &ReplicaSet| set.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let name = |set: &ReplicaSet| set.name().to_owned();
        match to_add {
            0.. => active.sort_unstable_by_key(|set| (Reverse(size_of(set)), Reverse(age(set)), name(set))),
            _ => active.sort_unstable_by_key(|set| (Reverse(size_of(set)), age(set), name(set))),
        }
        let mut added = 0;
        let mut sizes: Vec<i32> = active
            .iter()
            .map(|set| {
                let share = self.share(set, to_add, added);
                added += share;
                size_of(set) + share
            })
            .collect();
        if let Some(largest) = sizes.first_mut() {
            *largest = largest.saturating_add(to_add - added).max(0);
        }
        active.into_iter().zip(sizes).collect()
    }

    fn share(&self, set: &ReplicaSet, to_add: i32, added: i32) -> i32 {
        if to_add == 0 || to_add == added {
            return 0;
        }
        let (left, fraction) = (to_add - added, self.fraction(set));
        if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
    }

    fn fraction(&self, set: &ReplicaSet) -> i32 {
        let (wanted, size) = (self.replicas(), size_of(set));
        if wanted == 0 {
            return -size;
        }
        let counted = self.deployment.status.as_ref().and_then(|status| status.replicas).unwrap_or(0);
        let before = number(set, MAX_REPLICAS).filter(|max| *max > 0).unwrap_or(counted);
        if before == 0 {
            return 0;
        }
        let (size, max, before) =
            (i64::from(size), i64::from(wanted.saturating_add(bounds(&self.deployment).0)), i64::from(before));
        // Rounded half up, as all these are positive.
        let rounded = (2 * size * max + before).div_euclid(2 * before);
        i32::try_from(rounded - size).unwrap_or(0)
    }
}
