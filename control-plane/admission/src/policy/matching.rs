//! Matches writes with policies, and selects the version of the resource that a policy sees.

use std::sync::Arc;

use corten_meta::{Status, Value};

use super::definition::MatchResources;
use super::scope::Input;
use crate::attributes::Attributes;
use crate::door::Resource;
use crate::webhook::matching::{matches_namespace, matches_object, matching_version};

/// Returns the resource in the version in which the write matches; none if it does not match.
pub async fn matches(constraints: &MatchResources, a: &Attributes<'_>) -> Result<Option<Arc<dyn Resource>>, Status> {
    // A binding without rules matches all writes that its policy matches.
    let resource = if constraints.rules.is_empty() {
        Some(Arc::clone(&a.target.resource))
    } else {
        matching_version(&constraints.rules, constraints.equivalent, a)
    };
    let Some(resource) = resource else { return Ok(None) };
    if matching_version(&constraints.excluded, constraints.equivalent, a).is_some() {
        return Ok(None);
    }
    let selected = matches_object(&constraints.objects, a)? && matches_namespace(&constraints.namespaces, a).await?;
    Ok(selected.then_some(resource))
}

/// Returns the variables of expressions for the write in that version.
pub async fn input(a: &Attributes<'_>, resource: &Arc<dyn Resource>) -> Result<Input, Status> {
    let own = &a.target.resource;
    let converted = resource.kind().api_version() != own.kind().api_version() && a.is_about_the_object();
    let old = a.old.as_deref().cloned().unwrap_or_default();
    if !converted {
        return Ok(Input::new(a, &**resource, a.object.clone(), old));
    }
    let show = async |object: &Value| match object.is_null() {
        true => Ok(Value::Null),
        false => own.convert(object.clone(), resource.kind()).await,
    };
    let object = show(&a.object).await?;
    let old = show(&old).await?;
    Ok(Input::new(a, &**resource, object, old))
}
