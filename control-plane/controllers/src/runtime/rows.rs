//! Pods as the controllers count them: the shared bytes, and the few facts beyond metadata that decide whether a pod
//! counts, parsed once for each version of it.
//!
//! A workload of a thousand pods is looked at again after every change of one of them; decoding all of them each time
//! would be most of the work. A row never lags behind its object: it is made from those very bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use corten_meta::Object;
use jiff::Timestamp;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What is read of a pod's spec, status and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub node: Box<str>,
    pub phase: Box<str>,
    /// Whether the pod is ready, and since when if that is told.
    pub ready: Option<Option<Timestamp>>,
    pub restarts: i32,
    pub deletion_cost: i32,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct PodRow {
    pub object: Arc<Object>,
    pub facts: Arc<Facts>,
}

impl PodRow {
    /// A row that nobody keeps.
    pub fn new(object: Arc<Object>) -> PodRow {
        let facts = Arc::new(Facts::parse(&object).unwrap_or_default());
        PodRow { object, facts }
    }

    pub fn name(&self) -> &str {
        &self.object.header.name
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(default)]
    spec: Spec<'a>,
    #[serde(default)]
    status: Status<'a>,
}

#[derive(serde::Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    annotations: HashMap<Cow<'a, str>, Cow<'a, str>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default)]
    node_name: Cow<'a, str>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
    #[serde(default)]
    conditions: Vec<Condition<'a>>,
    #[serde(default)]
    container_statuses: Vec<Container>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    last_transition_time: Option<Cow<'a, str>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    restart_count: i32,
}

impl Facts {
    fn parse(object: &Object) -> Option<Facts> {
        let pod: Pod<'_> = serde_json::from_slice(&object.bytes).ok()?;
        let ready = pod.status.conditions.iter().find(|one| one.r#type == "Ready" && one.status == "True");
        let since = |one: &Condition<'_>| one.last_transition_time.as_ref().and_then(|time| time.parse().ok());
        Some(Facts {
            node: pod.spec.node_name.into(),
            phase: pod.status.phase.into(),
            ready: ready.map(since),
            restarts: pod.status.container_statuses.iter().map(|one| one.restart_count).max().unwrap_or(0),
            deletion_cost: pod.metadata.annotations.get(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0),
        })
    }
}

/// The facts of a pod and the version they are of.
type Row = (u64, Arc<Facts>);

/// The facts of the newest version of each pod that was asked for, by uid.
#[derive(Default)]
pub struct Rows(Mutex<HashMap<Box<str>, Row>>);

impl Rows {
    pub fn of(&self, pods: Vec<Arc<Object>>) -> Vec<PodRow> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |object: Arc<Object>| {
            if let Some((revision, facts)) = kept.get(object.header.uid.as_str())
                && *revision == object.revision
            {
                return PodRow { facts: facts.clone(), object };
            }
            let row = PodRow::new(object);
            kept.insert(row.object.header.uid.as_str().into(), (row.object.revision, row.facts.clone()));
            row
        };
        pods.into_iter().map(row).collect()
    }

    /// The pod is gone, and its row with it.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod;
    use crate::workload::pods::PodState;
    use proptest::prelude::*;

    fn object(value: &corten_meta::Value, revision: u64) -> Arc<Object> {
        Arc::new(Object::from_value(value, revision).unwrap())
    }

    #[test]
    fn a_row_is_of_the_version_that_was_asked_for() {
        let rows = Rows::default();
        let old = object(&pod("p").phase("Pending").value(), 1);
        let new = object(&pod("p").phase("Running").on("a").value(), 2);
        let phase = |object: &Arc<Object>| rows.of(vec![object.clone()])[0].phase().to_owned();
        assert_eq!(
            (phase(&old), phase(&new), phase(&new), phase(&old)),
            ("Pending".into(), "Running".into(), "Running".into(), "Pending".into())
        );
        rows.forget(&new.header.uid);
        assert!(rows.0.lock().unwrap().is_empty());
    }

    proptest! {
        /// A row and the decoded pod tell the same.
        #[test]
        fn a_row_says_what_the_pod_says(
            phase in prop::option::of(prop::sample::select(vec!["Pending", "Running", "Failed", "Succeeded", "Unknown"])),
            node in prop::option::of("[a-z]{0,3}"), ready in prop::option::of(0i64..100), cost in "[-]?[0-9]{0,3}",
            restarts in prop::collection::vec(0i32..9, 0..3), leaving: bool,
        ) {
            let mut builder = pod("p").annotation(DELETION_COST, &cost);
            if let Some(phase) = phase { builder = builder.phase(phase); }
            if let Some(node) = &node { builder = builder.on(node); }
            if let Some(seconds) = ready { builder = builder.ready(seconds); }
            if leaving { builder = builder.deleting(); }
            let statuses: Vec<_> = restarts.iter().map(|count| serde_json::json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": count})).collect();
            let value = builder.set("/status/containerStatuses", serde_json::json!(statuses)).value();
            let object = object(&value, 1);
            let decoded = corten_api::decode_object::<corten_api::k8s_openapi::api::core::v1::Pod>(&object).unwrap();
            let row = PodRow::new(object);
            prop_assert_eq!(row.phase(), decoded.phase());
            prop_assert_eq!(row.node_name(), decoded.node_name());
            prop_assert_eq!(row.ready(), decoded.ready());
            prop_assert_eq!(row.restarts(), decoded.restarts());
            prop_assert_eq!(row.deletion_cost(), decoded.deletion_cost());
            prop_assert_eq!(row.is_terminating(), decoded.is_terminating());
            prop_assert_eq!(row.created(), decoded.created());
            prop_assert_eq!(row.uid(), decoded.uid());
        }
    }
}
