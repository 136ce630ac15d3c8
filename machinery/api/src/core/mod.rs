//! The core group, one file per kind.

use crate::kind::Kind;

mod binding;
pub(crate) mod claim_validation;
mod componentstatus;
mod configmap;
mod container_validation;
mod data;
pub(crate) mod endpoints;
mod env_validation;
pub(crate) mod event;
pub(crate) mod event_validation;
mod key_pair;
mod limit_validation;
mod limitrange;
mod mount_validation;
mod namespace;
mod node;
mod persistentvolume;
pub(crate) mod persistentvolume_validation;
pub(crate) mod persistentvolumeclaim;
mod pod;
mod pod_cells;
mod pod_qos;
mod pod_resize;
pub(crate) mod pod_spec;
mod pod_status;
pub(crate) mod pod_update;
pub(crate) mod pod_validation;
pub(crate) mod pod_warnings;
mod podtemplate;
pub(crate) mod probe_validation;
pub(crate) mod profile_annotations;
pub(crate) mod projected_validation;
mod quota_validation;
pub(crate) mod replica_validation;
mod replicationcontroller;
pub(crate) mod resource_validation;
mod resourcequota;
pub(crate) mod scheduling_validation;
mod secret;
pub(crate) mod security_validation;
pub(crate) mod service;
pub(crate) mod service_validation;
mod service_warnings;
mod serviceaccount;
pub(crate) mod volume_cells;
pub(crate) mod volume_source;
mod volume_validation;
mod volume_warnings;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        binding::kind(),
        componentstatus::kind(),
        configmap::kind(),
        endpoints::kind(),
        event::kind(),
        limitrange::kind(),
        namespace::kind(),
        node::kind(),
        persistentvolumeclaim::kind(),
        persistentvolume::kind(),
        pod::kind(),
        podtemplate::kind(),
        replicationcontroller::kind(),
        resourcequota::kind(),
        secret::kind(),
        serviceaccount::kind(),
        service::kind(),
    ]
}
