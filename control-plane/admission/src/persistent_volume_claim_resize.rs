//! PersistentVolumeClaimResize: a claim grows only if it is bound and its StorageClass allows volume expansion.

use corten_meta::{Quantity, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

pub struct PersistentVolumeClaimResize;

impl Plugin for PersistentVolumeClaimResize {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let old = match a.old.as_deref() {
                Some(old) if a.operation == Operation::Update && a.is("", "persistentvolumeclaims", "") => old,
                _ => return Ok(()),
            };
            let size = |claim: &Value| {
                let requested = claim.pointer("/spec/resources/requests/storage").and_then(Value::as_str);
                requested.and_then(|string| Quantity::parse(string).ok())
            };
            match (size(old), size(&a.object)) {
                (Some(before), Some(after)) if after > before => {}
                _ => return Ok(()),
            }
            if old.pointer("/status/phase").and_then(Value::as_str) != Some("Bound") {
                return Err(a.forbidden("Only bound persistent volume claims can be expanded"));
            }
            if !may_grow(a, old) {
                return Err(a.forbidden(
                    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
                ));
            }
            Ok(())
        })
    }
}

/// Reports whether the claim has a StorageClass, the same as before, that allows expansion.
fn may_grow(a: &Attributes<'_>, old: &Value) -> bool {
    let class = |claim: &Value| claim.pointer("/spec/storageClassName").and_then(Value::as_str).map(str::to_owned);
    let Some(name) = class(&a.object).filter(|name| !name.is_empty() && class(old).as_ref() == Some(name)) else {
        return false;
    };
    let class = a.target.core.objects.cached("storage.k8s.io", "storageclasses", "", &name);
    class.is_some_and(|class| class.value()["allowVolumeExpansion"] == true)
}
