//! What the pods of this node have been promised. Every pod asks here before it gets a sandbox and before a
//! resize; the answer and the promise are one step, so that two workers never give away the same room.
//!
//! It counts requests and ports, never use, and knows nothing of containers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::Pod;

use super::{Holding, Place, Rejection, preemption};
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
    /// The workers whose resize found no room; they ask again when somebody leaves.
    deferred: HashMap<String, Waker>,
}

impl State {
    fn others(&self, uid: &str) -> Vec<&Holding> {
        self.held.iter().filter(|(other, _)| *other != uid).map(|(_, holding)| holding).collect()
    }

    fn wake_deferred(&mut self) {
        self.deferred.drain().for_each(|(_, waker)| waker.wake());
    }
}

impl Allocations {
    /// A pod that was taken before: it holds what it asks for, without a question.
    pub fn hold(&self, pod: &Pod) {
        self.lock().held.insert(spec::uid(pod).to_owned(), Holding::of(pod));
    }

    /// Takes a new pod, or says why not.
    pub fn admit(&self, pod: &Pod, place: &Place) -> Result<(), Rejection> {
        let mut state = self.lock();
        super::admit(pod, &state.others(spec::uid(pod)), place)?;
        state.held.insert(spec::uid(pod).to_owned(), Holding::of(pod));
        Ok(())
    }

    /// Gives a pod its new requests. If there is no room, `waker` is woken when there may be.
    pub fn resize(&self, pod: &Pod, place: &Place, waker: &Waker) -> Result<(), Rejection> {
        let uid = spec::uid(pod);
        let mut state = self.lock();
        if let Err(rejection) = super::resize(pod, &state.others(uid), place) {
            state.deferred.insert(uid.to_owned(), waker.clone());
            return Err(rejection);
        }
        state.deferred.remove(uid);
        state.held.insert(uid.to_owned(), Holding::of(pod));
        state.wake_deferred();
        Ok(())
    }

    /// The pods that must go so that this one fits, by uid; none if even that would not do. The pod is woken when one
    /// of them has gone.
    pub fn preempt(&self, pod: &Pod, place: &Place, waker: &Waker) -> Option<Vec<String>> {
        let uid = spec::uid(pod);
        let mut state = self.lock();
        let others: HashMap<&str, &Holding> =
            state.held.iter().filter(|(other, _)| *other != uid).map(|(uid, held)| (uid.as_str(), held)).collect();
        let victims = preemption::victims(&Holding::of(pod), &others, &place.allocatable)?;
        state.deferred.insert(uid.to_owned(), waker.clone());
        Some(victims)
    }

    /// What the burstable pods together ask of the processor, in thousandths.
    pub fn burstable_cpu(&self) -> i64 {
        let state = self.lock();
        let burstable = state.held.values().filter(|held| held.class == QosClass::Burstable);
        burstable.filter_map(|held| held.requests.get("cpu")).sum()
    }

    /// The pod needs nothing any more.
    pub fn release(&self, uid: &str) {
        let mut state = self.lock();
        state.deferred.remove(uid);
        if state.held.remove(uid).is_some() {
            state.wake_deferred();
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
    async fn room_is_given_once_and_freed_room_wakes_who_waits() {
        let place = Place { allocatable: [("cpu".to_owned(), Quantity("2".into()))].into(), ..Place::default() };
        let allocations = Allocations::default();
        assert!(allocations.admit(&pod("a", "1"), &place).is_ok());
        assert!(allocations.admit(&pod("b", "1"), &place).is_ok());
        assert_eq!(allocations.admit(&pod("c", "1m"), &place).unwrap_err().reason, "OutOfcpu");

        let waker = Waker::default();
        assert!(allocations.resize(&pod("a", "1500m"), &place, &waker).is_err());
        allocations.release("b");
        tokio::time::timeout(std::time::Duration::from_secs(300), waker.woken()).await.unwrap();
        assert!(allocations.resize(&pod("a", "1500m"), &place, &waker).is_ok());
        assert!(allocations.admit(&pod("c", "600m"), &place).is_err(), "the resize holds its room");
    }
}
