//! The group `storage.k8s.io`, one file per kind.

use crate::kind::Kind;

mod csidriver;
mod csinode;
mod csistoragecapacity;
mod storageclass;
pub(crate) mod validation;
mod volumeattachment;
mod volumeattributesclass;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        csidriver::kind(),
        csinode::kind(),
        csistoragecapacity::kind(),
        storageclass::kind(),
        volumeattachment::kind(),
        volumeattributesclass::kind(),
    ]
}
