//! Decides whether a webhook is called for a write, and in which version it sees the object.

use std::sync::Arc;

use corten_meta::{Selector, Status, Value};

use super::conditions::matches_conditions;
use super::configuration::Webhook;
use super::invocation::Invocation;
use crate::attributes::Attributes;
use crate::door::Resource;
use crate::operation::Operation;
use crate::rules::{Question, Rule};

/// Decides whether the webhook is called. An error of a selector counts only if the rules match.
pub async fn invocation<'a>(hook: &'a Webhook, a: &Attributes<'_>) -> Result<Option<Invocation<'a>>, Status> {
    let namespace = matches_namespace(&hook.namespaces, a).await;
    if matches!(namespace, Ok(false)) {
        return Ok(None);
    }
    let object = matches_object(&hook.objects, a);
    if matches!(object, Ok(false)) {
        return Ok(None);
    }
    let Some(resource) = matching_version(&hook.rules, hook.equivalent, a) else { return Ok(None) };
    namespace?;
    object?;
    let invocation = Invocation { hook, resource };
    if hook.conditions.is_empty() || matches_conditions(&invocation, a).await? {
        return Ok(Some(invocation));
    }
    Ok(None)
}

/// Returns the resource in the version of the first rule that matches: its own, or an equivalent one.
pub fn matching_version(rules: &[Rule], equivalent: bool, a: &Attributes<'_>) -> Option<Arc<dyn Resource>> {
    let own = &a.target.resource;
    let matches = |rule: &Rule, resource: &dyn Resource| {
        let question = Question {
            operation: a.operation.word(),
            group: &resource.kind().group,
            version: &resource.kind().version,
            resource: &resource.kind().plural,
            subresource: a.subresource(),
            namespaced: resource.kind().namespaced,
            name: a.name(),
        };
        rule.matches(&question)
    };
    if rules.iter().any(|rule| matches(rule, &**own)) {
        return Some(Arc::clone(own));
    }
    if !equivalent {
        return None;
    }
    let others = a.target.core.objects.equivalents(own.kind());
    rules.iter().find_map(|rule| others.iter().find(|other| matches(rule, &***other)).cloned())
}

/// Reports whether the selector matches the namespace of a write; cluster-scoped objects always match.
pub async fn matches_namespace(selector: &Result<Selector, String>, a: &Attributes<'_>) -> Result<bool, Status> {
    let is_namespace = a.target.resource.kind().group.is_empty() && a.target.resource.kind().plural == "namespaces";
    let namespace = a.namespace();
    if namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    let selector = selector.as_ref().map_err(Status::internal)?;
    if selector.is_empty() {
        return Ok(true);
    }
    if is_namespace && a.subresource().is_empty() && matches!(a.operation, Operation::Create | Operation::Update) {
        return Ok(selector.matches(&corten_meta::labels(&a.object)));
    }
    let core = a.target.core;
    let labels = match core.objects.cached("", "namespaces", "", &namespace) {
        Some(object) => object.header.labels.clone(),
        None => core.objects.get("", "namespaces", "", &namespace).await?.header.labels.clone(),
    };
    Ok(selector.matches(&labels))
}

/// Reports whether the selector matches the object of a write, before or after it.
pub fn matches_object(selector: &Result<Selector, String>, a: &Attributes<'_>) -> Result<bool, Status> {
    let selector = selector.as_ref().map_err(Status::internal)?;
    if selector.is_empty() {
        return Ok(true);
    }
    let matches = |object: &Value| object.is_object() && selector.matches(&corten_meta::labels(object));
    Ok(matches(&a.object) || a.old.as_deref().is_some_and(matches))
}
