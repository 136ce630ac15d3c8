//! StorageObjectInUseProtection: volumes, claims and VolumeAttributesClasses have a finalizer, so that none is removed
//! while it is in use.

use corten_meta::Status;
use futures::future::BoxFuture;
use serde_json::json;

use super::attributes::Attributes;
use super::plugin::Plugin;

pub struct StorageObjectInUseProtection;

impl Plugin for StorageObjectInUseProtection {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let finalizer = if a.creates("", "persistentvolumeclaims") {
                "kubernetes.io/pvc-protection"
            } else if a.creates("", "persistentvolumes") {
                "kubernetes.io/pv-protection"
            } else if a.creates("storage.k8s.io", "volumeattributesclasses") {
                "kubernetes.io/vac-protection"
            } else {
                return Ok(());
            };
            let mut finalizers: Vec<String> =
                corten_meta::finalizers(&a.object).into_iter().map(str::to_owned).collect();
            if !finalizers.iter().any(|f| f == finalizer) {
                finalizers.push(finalizer.to_owned());
                corten_meta::set(&mut a.object, "/metadata/finalizers", json!(finalizers));
            }
            Ok(())
        })
    }
}
