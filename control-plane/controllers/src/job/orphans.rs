//! Removes the finalizer of pods whose Job is deleted: no controller will count them.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::batch::v1::Job;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use super::{is_tracked, release};
use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch};

pub struct UncountedPods;

pub struct Observed {
    pod: Arc<Object>,
    /// The Job that is in no cache, but may exist on the server.
    unknown: Option<Key>,
}

impl Controller for UncountedPods {
    type Observed = Observed;

    const NAME: &'static str = "job-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<Pod>(of_pod), Watch::mapped::<Job>(of_job)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let pod = view.get(ResourceType::of::<Pod>(), key).filter(|pod| is_tracked(pod))?;
        let owner = pod.controller().filter(|owner| owner.kind == Job::KIND).cloned();
        let key = owner.as_ref().map(|owner| Key::new(key.namespace.clone(), owner.name.clone()));
        let job = key.as_ref().and_then(|key| view.get(ResourceType::of::<Job>(), key));
        match job {
            Some(job) if owner.is_some_and(|owner| owner.uid == job.header.uid) => None,
            Some(_) => Some(Observed { pod, unknown: None }),
            None => Some(Observed { pod, unknown: key }),
        }
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::nothing();
        // A pod may be seen before its Job: only the server knows that the Job does not exist.
        plan.actions.extend(observed.unknown.clone().map(Action::absent::<Job>));
        plan.push(release(&observed.pod));
        plan
    }
}

fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let tracked = change.new.as_ref().is_some_and(|pod| is_tracked(pod));
    if tracked { vec![change.key.clone()] } else { Vec::new() }
}

/// Returns the pods of a Job that was deleted, or replaced by another of its name.
fn of_job(view: &dyn View, change: &Change) -> Vec<Key> {
    let Some(old) = &change.old else { return Vec::new() };
    if change.new.as_ref().is_some_and(|new| new.header.uid == old.header.uid) {
        return Vec::new();
    }
    view.owned(ResourceType::of::<Pod>(), &old.header.uid).iter().map(|pod| pod.key()).collect()
}
