//! ResourceQuota: a namespace uses no more than its quotas' hard limits.
//!
//! Usage is counted from the live objects, so it does not drift. The quota's status is written in the commit of the
//! object that changes it, under the revision that was read: of two creations that would exceed a quota only together,
//! one conflicts, retries and counts the other.

use std::sync::Arc;

use corten_api::quota::{
    Counted, ExtendedResources, ResourceList, add, changes_scope, concerns, extended_resources, in_use, is_in_scope,
    resource_list, usage, usage_among,
};
use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op};
use futures::future::BoxFuture;
use serde_json::json;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;
use crate::door::Target;

/// The resources that every container must request if a quota limits them.
const MUST_STATE: &[&str] = &["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

pub struct ResourceQuota;

impl Plugin for ResourceQuota {
    fn charge<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            // A quota is enforced from its creation on; the quota of a dry run needs no usage.
            if a.operation != Operation::Delete && a.is("", "resourcequotas", "") && !a.dry_run {
                let used = used_now(&a.target, &a.object, None).await?;
                write_status(&mut a.object, &used);
            }
            if a.target.namespace.is_empty() || !is_counted(a) {
                return Ok(());
            }
            let quotas = quotas(&a.target).await?;
            if quotas.is_empty() || !takes_more(a) {
                return Ok(());
            }
            for quota in quotas {
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
            if target.namespace.is_empty() || target.resource.kind().plural == "resourcequotas" {
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

/// Returns the quotas of the namespace, up to the last acknowledged write.
async fn quotas(target: &Target<'_>) -> Result<Vec<Arc<Object>>, Status> {
    // A namespace without quotas, the usual case, costs only this read. It is a read of the store, since the caches may
    // not have a quota that was just created.
    if target.core.objects.is_empty("", "resourcequotas", target.namespace).await? {
        return Ok(Vec::new());
    }
    target.core.objects.fresh().await?;
    Ok(target.core.objects.cached_list("", "resourcequotas", target.namespace))
}

/// Reports whether writes such as this one can raise the usage: every creation, and changes of measured fields.
fn is_counted(a: &Attributes<'_>) -> bool {
    let kind = a.target.resource.kind();
    let is_measured = || matches!(kind.plural.as_str(), "pods" | "services" | "persistentvolumeclaims");
    match a.operation {
        Operation::Create => a.subresource().is_empty(),
        Operation::Update => kind.group.is_empty() && is_measured(),
        _ => false,
    }
}

/// Reports whether this write raises the usage: an update only if its object grows or changes its scope.
fn takes_more(a: &Attributes<'_>) -> bool {
    let kind = a.target.resource.kind();
    let Some(old) = a.old.as_deref() else { return true };
    if changes_scope(&kind.plural, old, &a.object) {
        return true;
    }
    let before = usage(&kind.group, &kind.plural, old);
    let after = usage(&kind.group, &kind.plural, &a.object);
    after.iter().any(|(name, quantity)| before.get(name).is_none_or(|had| had < quantity))
}

/// Checks the new object against a quota; returns the write of the quota's new status.
async fn charge(a: &Attributes<'_>, quota: &Arc<Object>) -> Result<Option<Op>, Status> {
    let kind = a.target.resource.kind();
    let mut value = quota.value();
    let hard = resource_list(value.pointer("/spec/hard"));
    if !is_in_scope(&value, &kind.plural, &a.object) {
        return Ok(None);
    }
    let extended = extended(&a.target);
    let beside = beside(&a.target);
    let limited = |object: &Value| -> ResourceList {
        let object = Counted { group: &kind.group, plural: &kind.plural, object: object.clone() };
        let wanted = usage_among(&object, &extended, &beside).into_iter();
        wanted.filter(|(name, quantity)| hard.contains_key(name) && !quantity.is_zero()).collect()
    };
    let wanted = limited(&a.object);
    check_stated(a, quota, &hard, &wanted)?;
    if wanted.is_empty() {
        return Ok(None);
    }
    // An object that changes is counted with its old usage, and then with its new usage.
    let had = a.old.as_deref().filter(|old| is_in_scope(&value, &kind.plural, old)).map(limited).unwrap_or_default();
    let before = used_now(&a.target, &value, None).await?;
    let others = if had.is_empty() { before.clone() } else { used_now(&a.target, &value, Some(a.target.name)).await? };
    let mut used = others;
    add(&mut used, &wanted);
    let raised = |name: &&String| had.get(*name).is_none_or(|quantity| *quantity < wanted[*name]);
    let exceeded: Vec<&String> = wanted.keys().filter(raised).filter(|name| used[*name] > hard[*name]).collect();
    if !exceeded.is_empty() {
        let list = |of: &ResourceList| {
            let words = exceeded.iter().map(|n| format!("{n}={}", of.get(*n).cloned().unwrap_or_default()));
            words.collect::<Vec<_>>().join(",")
        };
        let requested = list(&difference(&wanted, &had));
        let name = &quota.header.name;
        let in_use = list(&before);
        let limit = list(&hard);
        return Err(
            a.forbidden(format!("exceeded quota: {name}, requested: {requested}, used: {in_use}, limited: {limit}"))
        );
    }
    write_status(&mut value, &used);
    put(&a.target, quota, &value).await
}

/// Returns the new usage less the old usage.
fn difference(wanted: &ResourceList, had: &ResourceList) -> ResourceList {
    let more = |(name, quantity): (&String, &corten_meta::Quantity)| {
        let mut more = quantity.clone();
        if let Some(had) = had.get(name) {
            more -= had;
        }
        (name.clone(), more)
    };
    wanted.iter().map(more).collect()
}

/// Checks that a pod states the resources that a quota limits: others could not be counted.
fn check_stated(a: &Attributes<'_>, quota: &Object, hard: &ResourceList, stated: &ResourceList) -> Result<(), Status> {
    let kind = a.target.resource.kind();
    if !kind.group.is_empty() || kind.plural != "pods" {
        return Ok(());
    }
    let missing: Vec<&str> =
        MUST_STATE.iter().copied().filter(|n| hard.contains_key(*n) && !stated.contains_key(*n)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(a.forbidden(format!("failed quota: {}: must specify {}", quota.header.name, missing.join(",")))),
    }
}

/// Returns the current usage of the quota's resources, without the object `without` of the target's kind.
async fn used_now(target: &Target<'_>, quota: &Value, without: Option<&str>) -> Result<ResourceList, Status> {
    target.core.objects.fresh().await?;
    let hard = resource_list(quota.pointer("/spec/hard"));
    let resources = target.core.objects.resources();
    let mut objects = Vec::new();
    for resource in &resources {
        let kind = resource.kind();
        if !kind.namespaced || resource.is_converted() || !concerns(&hard, &kind.group, &kind.plural) {
            continue;
        }
        let same_kind = kind.group == target.resource.kind().group && kind.plural == target.resource.kind().plural;
        let listed = resource.list(target.namespace).into_iter();
        let listed = listed.filter(|object| !same_kind || without != Some(object.header.name.as_str()));
        objects.extend(listed.map(|object| Counted {
            group: &kind.group,
            plural: &kind.plural,
            object: object.value(),
        }));
    }
    Ok(in_use(quota, &extended(target), &objects))
}

/// Returns the extended resources of the cluster's DeviceClasses.
fn extended(target: &Target<'_>) -> ExtendedResources {
    let classes = target.core.objects.cached_list("resource.k8s.io", "deviceclasses", "");
    extended_resources(classes.iter().map(|class| class.value()))
}

/// Returns the pods and claims of the namespace, among which a new ResourceClaim is counted.
fn beside(target: &Target<'_>) -> Vec<Counted<'static>> {
    let kind = target.resource.kind();
    if (kind.group.as_str(), kind.plural.as_str()) != ("resource.k8s.io", "resourceclaims") {
        return Vec::new();
    }
    let mut objects = Vec::new();
    for (group, plural) in [("", "pods"), ("resource.k8s.io", "resourceclaims")] {
        let listed = target.core.objects.cached_list(group, plural, target.namespace);
        objects.extend(listed.iter().map(|object| Counted { group, plural, object: object.value() }));
    }
    objects
}

fn write_status(quota: &mut Value, used: &ResourceList) {
    let hard = quota.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    let used: serde_json::Map<String, Value> = used.iter().map(|(n, a)| (n.clone(), a.to_string().into())).collect();
    quota["status"] = json!({ "hard": hard, "used": used });
}

/// Returns the write of the quota, if it changed.
async fn put(target: &Target<'_>, quota: &Arc<Object>, value: &Value) -> Result<Option<Op>, Status> {
    let expect = Expect::ModRevision(quota.revision);
    let (operation, bytes) = target.core.objects.put("", "resourcequotas", value, expect).await?;
    Ok((bytes != quota.bytes).then_some(operation))
}
