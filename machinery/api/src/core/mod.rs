//! The core group, one file a kind.

use crate::kind::Kind;

mod binding;
mod claim_validation;
mod componentstatus;
mod configmap;
mod container_validation;
mod data;
mod endpoints;
pub(crate) mod event;
mod limitrange;
mod namespace;
mod node;
mod persistentvolume;
mod persistentvolume_validation;
pub(crate) mod persistentvolumeclaim;
mod pod;
mod pod_cells;
mod pod_qos;
pub(crate) mod pod_spec;
pub(crate) mod pod_validation;
mod podtemplate;
mod quota_validation;
mod replicationcontroller;
mod resourcequota;
mod secret;
pub(crate) mod service;
mod service_validation;
mod serviceaccount;
pub(crate) mod volume_cells;
mod volume_validation;

/// Its kinds, in the order of discovery.
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
