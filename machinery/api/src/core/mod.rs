//! The core group, one file a kind.

use crate::kind::Kind;

mod binding;
mod componentstatus;
mod configmap;
mod endpoints;
mod event;
mod limitrange;
mod namespace;
mod node;
mod persistentvolume;
mod persistentvolumeclaim;
mod pod;
mod podtemplate;
mod replicationcontroller;
mod resourcequota;
mod secret;
mod service;
mod serviceaccount;

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
