//! The resources that are allocated to the pods of this node. Every pod is checked here before it gets a sandbox and
//! before a resize; check and allocation are one step, so that two workers never allocate the same room.
//!
//! It counts requests and ports, never usage, and does not depend on containers.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::Pod;

use super::{Holding, NodeInfo, Rejection, preemption};
use crate::pod::resources::QosClass;
use crate::pod::spec;
use crate::pod::waker::Waker;

#[derive(Default)]
pub struct Allocations {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: HashMap<String, Holding>,
    /// The resizes that found no room.
    deferred: HashMap<String, Deferred>,
    /// The workers whose pods wait for preempted pods.
    waiting: HashMap<String, Waker>,
    /// The number of resizes that were deferred so far.
    number: u64,
}

/// A resize that waits for room.
struct Deferred {
    wanted: Holding,
    node_info: NodeInfo,
    waker: Waker,
    /// The order in which they began to wait.
    number: u64,
}

impl Deferred {
    /// Returns the rank, the smallest first: by priority, Guaranteed pods before others, and in the order of arrival.
    fn rank(&self) -> (Reverse<i32>, bool, u64) {
        (Reverse(self.wanted.priority), self.wanted.class != QosClass::Guaranteed, self.number)
    }
}

impl State {
    fn others(&self, uid: &str) -> Vec<&Holding> {
        self.held.iter().filter(|(other, _)| *other != uid).map(|(_, holding)| holding).collect()
    }

    /// Allocates freed room at once to the resizes that fit now, the most important first, so that no other pod gets it
    /// before their workers wake.
    fn freed(&mut self) {
        self.waiting.drain().for_each(|(_, waker)| waker.wake());
        let mut uids: Vec<String> = self.deferred.keys().cloned().collect();
        uids.sort_by_key(|uid| self.deferred[uid].rank());
        for uid in uids {
            let Deferred { wanted, node_info, .. } = &self.deferred[&uid];
            if super::room(wanted, &self.others(&uid), node_info).is_err() {
                continue;
            }
            if let Some(granted) = self.deferred.remove(&uid) {
                self.held.insert(uid, granted.wanted);
                granted.waker.wake();
            }
        }
    }
}

impl Allocations {
    /// Allocates the requests of a pod that was admitted before, without a check.
    pub fn hold(&self, pod: &Pod) {
        self.lock().held.insert(spec::uid(pod).to_owned(), Holding::of(pod));
    }

    /// Admits a new pod, or returns the reason of its rejection.
    pub fn admit(&self, pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
        let mut state = self.lock();
        super::admit(pod, &state.others(spec::uid(pod)), node_info)?;
        state.held.insert(spec::uid(pod).to_owned(), Holding::of(pod));
        Ok(())
    }

    /// Allocates new requests of a pod. If there is no room, `waker` is woken when there may be.
    pub fn resize(&self, pod: &Pod, node_info: &NodeInfo, waker: &Waker) -> Result<(), Rejection> {
        let uid = spec::uid(pod);
        let mut state = self.lock();
        let wanted = Holding::of(pod);
        if let Err(rejection) = super::room(&wanted, &state.others(uid), node_info) {
            state.number += 1;
            let number = state.deferred.get(uid).map_or(state.number, |known| known.number);
            let deferred = Deferred { wanted, node_info: node_info.clone(), waker: waker.clone(), number };
            state.deferred.insert(uid.to_owned(), deferred);
            return Err(rejection);
        }
        state.deferred.remove(uid);
        state.held.insert(uid.to_owned(), wanted);
        state.freed();
        Ok(())
    }

    /// Withdraws a deferred resize: the pod's spec is back at these requests.
    pub fn withdraw(&self, pod: &Pod) {
        let mut state = self.lock();
        state.deferred.remove(spec::uid(pod));
        state.held.insert(spec::uid(pod).to_owned(), Holding::of(pod));
        state.freed();
    }

    /// Returns the uids of the pods to preempt so that this one fits; none if even that would not do. The pod is woken
    /// when one of them has gone.
    pub fn preempt(&self, pod: &Pod, node_info: &NodeInfo, waker: &Waker) -> Option<Vec<String>> {
        let uid = spec::uid(pod);
        let mut state = self.lock();
        let others: HashMap<&str, &Holding> =
            state.held.iter().filter(|(other, _)| *other != uid).map(|(uid, held)| (uid.as_str(), held)).collect();
        let victims = preemption::victims(&Holding::of(pod), &others, &node_info.allocatable)?;
        state.waiting.insert(uid.to_owned(), waker.clone());
        Some(victims)
    }

    /// Returns the CPU requests of all burstable pods, in thousandths.
    pub fn burstable_cpu(&self) -> i64 {
        let state = self.lock();
        let burstable = state.held.values().filter(|held| held.class == QosClass::Burstable);
        burstable.filter_map(|held| held.requests.get("cpu")).sum()
    }

    /// Releases the resources of the pod.
    pub fn release(&self, uid: &str) {
        let mut state = self.lock();
        state.deferred.remove(uid);
        state.waiting.remove(uid);
        if state.held.remove(uid).is_some() {
            state.freed();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use crate::fixtures;

    fn pod(uid: &str, cpu: &str) -> Pod {
        let fields = format!(r#"{{"containers":[{{"name":"c","resources":{{"requests":{{"cpu":"{cpu}"}}}}}}]}}"#);
        let mut pod = fixtures::pod(&fields);
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    #[tokio::test]
    async fn room_is_allocated_once_and_freed_room_wakes_waiting_pods() {
        let node_info =
            NodeInfo { allocatable: [("cpu".to_owned(), Quantity("2".into()))].into(), ..NodeInfo::default() };
        let allocations = Allocations::default();
        assert!(allocations.admit(&pod("a", "1"), &node_info).is_ok());
        assert!(allocations.admit(&pod("b", "1"), &node_info).is_ok());
        assert_eq!(allocations.admit(&pod("c", "1m"), &node_info).unwrap_err().reason, "OutOfcpu");

        let waker = Waker::default();
        assert!(allocations.resize(&pod("a", "1500m"), &node_info, &waker).is_err());
        allocations.release("b");
        tokio::time::timeout(std::time::Duration::from_secs(300), waker.woken()).await.unwrap();
        assert!(allocations.resize(&pod("a", "1500m"), &node_info, &waker).is_ok());
        assert!(allocations.admit(&pod("c", "600m"), &node_info).is_err(), "the resize holds its room");
    }

    /// Checks that the most important resize gets the room, not the first one, if only one fits.
    #[test]
    fn freed_room_goes_to_the_most_important_resize() {
        let node_info =
            NodeInfo { allocatable: [("cpu".to_owned(), Quantity("2".into()))].into(), ..NodeInfo::default() };
        let allocations = Allocations::default();
        let with_priority = |uid: &str, cpu: &str, priority: i32| {
            let mut pod = pod(uid, cpu);
            pod.spec.get_or_insert_default().priority = Some(priority);
            pod
        };
        allocations.hold(&pod("large", "1"));
        for uid in ["low", "high", "other"] {
            allocations.hold(&pod(uid, "100m"));
        }
        let waker = Waker::default();
        assert!(allocations.resize(&with_priority("low", "1500m", 0), &node_info, &waker).is_err());
        assert!(allocations.resize(&with_priority("high", "1500m", 1000), &node_info, &waker).is_err());
        assert!(allocations.resize(&with_priority("other", "1500m", 0), &node_info, &waker).is_err());
        allocations.release("large");
        assert!(allocations.resize(&with_priority("low", "1500m", 0), &node_info, &waker).is_err());
        assert!(allocations.resize(&with_priority("high", "1500m", 1000), &node_info, &waker).is_ok());
        allocations.release("high");
        assert!(
            allocations.resize(&with_priority("other", "1500m", 0), &node_info, &waker).is_err(),
            "low asked before"
        );
        allocations.withdraw(&with_priority("low", "100m", 0));
        assert!(allocations.resize(&with_priority("other", "1500m", 0), &node_info, &waker).is_ok());
    }
}
