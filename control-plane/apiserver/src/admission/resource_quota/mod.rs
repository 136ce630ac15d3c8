//! ResourceQuota: a namespace takes no more than it was given.
//!
//! What is in use is counted from the live objects, so nothing drifts. The quota's status is written in the
//! commit of the object that changes it, under the revision that was read: of two creations that would exceed a
//! quota only together, one begins again and sees the other.

mod usage;

use std::sync::Arc;

use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op};
use futures::future::BoxFuture;
use serde_json::json;

use self::usage::{Amounts, add, amounts, is_in_scope, usage};
use super::{Attributes, Operation, Plugin};
use crate::handlers::Target;

/// Resources that every container must state if a quota limits them.
const MUST_STATE: &[&str] = &["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

pub struct ResourceQuota;

impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation != Operation::Delete && a.is("", "resourcequotas", "") {
                let used = used_now(a.target, &a.object, None).await?;
                write_status(&mut a.object, &used);
            }
            Ok(())
        })
    }

    fn charge<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation != Operation::Create || !a.subresource().is_empty() || a.target.namespace.is_empty() {
                return Ok(());
            }
            for quota in quotas(a.target).await? {
                if let Some(operation) = charge(a, &quota).await? {
                    a.companions.push(operation);
                }
            }
            Ok(())
        })
    }

    fn released<'a>(&'a self, target: &'a Target<'_>, object: &'a Value) -> BoxFuture<'a, Result<Vec<Op>, Status>> {
        Box::pin(async move {
            let mut operations = Vec::new();
            if target.namespace.is_empty() || target.resource.kind.plural == "resourcequotas" {
                return Ok(operations);
            }
            for quota in quotas(target).await? {
                let mut value = quota.value();
                let used = used_now(target, &value, Some(corten_meta::name(object))).await?;
                write_status(&mut value, &used);
                operations.extend(put(target, &quota, &value).await?);
            }
            Ok(operations)
        })
    }
}

/// The quotas of the namespace, as they are after everything that was acknowledged.
async fn quotas(target: &Target<'_>) -> Result<Vec<Arc<Object>>, Status> {
    // A namespace without quotas, which is most of them, costs nothing but this look. The store is asked, since
    // the caches may not have seen a quota that was just made.
    let resource = target.server.resource("", "v1", "resourcequotas")?;
    if target.server.registry.is_empty(&resource, target.namespace).await? {
        return Ok(Vec::new());
    }
    target.server.registry.caches.fresh().await?;
    Ok(target.server.cached_list("", "v1", "resourcequotas", target.namespace))
}

/// Checks the new object against a quota; the operation is the quota's new status.
async fn charge(a: &Attributes<'_>, quota: &Arc<Object>) -> Result<Option<Op>, Status> {
    let kind = &a.target.resource.kind;
    let mut value = quota.value();
    let hard = amounts(value.pointer("/spec/hard"));
    let wanted = usage(&kind.group, &kind.plural, &a.object);
    let limited: Amounts =
        wanted.into_iter().filter(|(name, amount)| hard.contains_key(name) && !amount.is_zero()).collect();
    if !is_in_scope(&value, &kind.plural, &a.object) {
        return Ok(None);
    }
    let name = &quota.header.name;
    if kind.group.is_empty() && kind.plural == "pods" {
        let missing: Vec<&str> =
            MUST_STATE.iter().copied().filter(|n| hard.contains_key(*n) && !limited.contains_key(*n)).collect();
        if !missing.is_empty() {
            return Err(a.forbidden(format!("failed quota: {name}: must specify {}", missing.join(","))));
        }
    }
    if limited.is_empty() {
        return Ok(None);
    }
    let mut used = used_now(a.target, &value, None).await?;
    let before = used.clone();
    add(&mut used, &limited);
    let exceeded: Vec<&String> = limited.keys().filter(|name| used[*name] > hard[*name]).collect();
    if !exceeded.is_empty() {
        let list = |of: &Amounts| {
            let words = exceeded.iter().map(|n| format!("{n}={}", of.get(*n).cloned().unwrap_or_default()));
            words.collect::<Vec<_>>().join(",")
        };
        let (requested, in_use, limit) = (list(&limited), list(&before), list(&hard));
        return Err(
            a.forbidden(format!("exceeded quota: {name}, requested: {requested}, used: {in_use}, limited: {limit}"))
        );
    }
    write_status(&mut value, &used);
    put(a.target, quota, &value).await
}

/// What the quota's resources are used by now, without the object of the target's kind that is named.
async fn used_now(target: &Target<'_>, quota: &Value, without: Option<&str>) -> Result<Amounts, Status> {
    target.server.registry.caches.fresh().await?;
    let hard = amounts(quota.pointer("/spec/hard"));
    let mut used: Amounts = hard.keys().map(|name| (name.clone(), corten_meta::Quantity::zero())).collect();
    for resource in &target.server.registry.resources().ordered {
        let kind = &resource.kind;
        let Some(stored) = resource.stored.as_ref().filter(|_| kind.namespaced && !resource.is_converted()) else {
            continue;
        };
        let sample =
            usage(&kind.group, &kind.plural, &json!({ "spec": { "resources": { "requests": { "storage": "1" } } } }));
        let compute = kind.group.is_empty() && matches!(kind.plural.as_str(), "pods" | "persistentvolumeclaims");
        if !compute && !sample.keys().any(|name| hard.contains_key(name)) {
            continue;
        }
        let same_kind = kind.group == target.resource.kind.group && kind.plural == target.resource.kind.plural;
        for object in stored.cache.list(target.namespace) {
            if same_kind && without == Some(object.header.name.as_str()) {
                continue;
            }
            let value = object.value();
            if is_in_scope(quota, &kind.plural, &value) {
                let taken = usage(&kind.group, &kind.plural, &value);
                add(&mut used, &taken.into_iter().filter(|(name, _)| hard.contains_key(name)).collect());
            }
        }
    }
    Ok(used)
}

fn write_status(quota: &mut Value, used: &Amounts) {
    let hard = quota.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    let used: serde_json::Map<String, Value> = used.iter().map(|(n, a)| (n.clone(), a.to_string().into())).collect();
    quota["status"] = json!({ "hard": hard, "used": used });
}

/// The write of the quota, if it changed.
async fn put(target: &Target<'_>, quota: &Arc<Object>, value: &Value) -> Result<Option<Op>, Status> {
    let resource = target.server.resource("", "v1", "resourcequotas")?;
    let (operation, bytes) = target.server.registry.put(&resource, value, Expect::ModRevision(quota.revision)).await?;
    Ok((bytes != quota.bytes).then_some(operation))
}
