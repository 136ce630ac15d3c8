//! The events that the kubelet records about pods, their containers and the node. Recording never blocks and never
//! fails: nothing depends on an event.

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Client, EventRecorder, ObjectRef};

pub use corten_client::EventType;

use crate::pod::spec::{self, Role};

pub const NORMAL: EventType = EventType::Normal;
pub const WARNING: EventType = EventType::Warning;

/// Records events with the kubelet as their source.
#[derive(Clone)]
pub struct Events {
    recorder: EventRecorder,
    node_name: String,
}

impl Events {
    pub fn new(client: Client, node_name: &str) -> Events {
        Events { recorder: EventRecorder::new(client, "kubelet", node_name), node_name: node_name.to_owned() }
    }

    /// Records an event about the pod.
    pub fn pod(&self, pod: &Pod, type_: EventType, reason: &str, message: &str) {
        self.recorder.event(&reference(pod), type_, reason, message);
    }

    /// Records an event about one container of the pod.
    pub fn container(&self, pod: &Pod, container: &str, type_: EventType, reason: &str, message: &str) {
        let list = match spec::container(pod, container).map(|declared| declared.role) {
            Some(Role::Init | Role::Sidecar) => "initContainers",
            Some(Role::Ephemeral) => "ephemeralContainers",
            Some(Role::Main) | None => "containers",
        };
        let mut about = reference(pod);
        about.field_path = format!("spec.{list}{{{container}}}");
        self.recorder.event(&about, type_, reason, message);
    }

    /// Records an event about the node; the node's uid is its name, as in upstream's kubelet.
    pub fn node(&self, type_: EventType, reason: &str, message: &str) {
        let about = ObjectRef {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node_name.clone(),
            uid: self.node_name.clone(),
            ..ObjectRef::default()
        };
        self.recorder.event(&about, type_, reason, message);
    }
}

fn reference(pod: &Pod) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: spec::namespace(pod).to_owned(),
        name: spec::name(pod).to_owned(),
        uid: spec::uid(pod).to_owned(),
        resource_version: pod.metadata.resource_version.clone().unwrap_or_default(),
        ..ObjectRef::default()
    }
}
