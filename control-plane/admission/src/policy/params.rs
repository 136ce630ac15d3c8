//! The parameters of a binding: objects of its policy's paramKind.

use std::sync::Arc;

use corten_meta::{Object, Selector, Value};

use super::definition::{Binding, Policy};
use crate::attributes::Attributes;
use crate::door::Resource;

/// Returns the parameters, one evaluation each. Without parameters there is one evaluation, with null.
pub async fn params(policy: &Policy, binding: &Binding, a: &Attributes<'_>) -> Result<Vec<Value>, String> {
    let (Some((api_version, kind)), true) = (&policy.param_kind, binding.params.is_object()) else {
        return Ok(vec![Value::Null]);
    };
    let reference = &binding.params;
    let string = |key: &str| reference[key].as_str().unwrap_or_default();
    let resource = resource(a, api_version, kind)
        .ok_or_else(|| format!("paramKind kind `{api_version}, Kind={kind}` not known"))?;
    let namespace = match (resource.kind().namespaced, string("namespace"), a.target.namespace) {
        (false, "", _) => "",
        (false, ..) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
        (true, "", "") => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, "", of_request) => of_request,
        (true, namespace, _) => namespace,
    };
    let found = find(&*resource, namespace, string("name"), &reference["selector"])?;
    if found.is_empty() && string("parameterNotFoundAction") != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let mut values = Vec::new();
    for object in found {
        values.push(resource.serve(&object).await.map_err(|status| status.message)?.value());
    }
    Ok(values)
}

fn resource(a: &Attributes<'_>, api_version: &str, kind: &str) -> Option<Arc<dyn Resource>> {
    let mut resources = a.target.core.objects.resources().into_iter();
    resources.find(|resource| resource.kind().kind == kind && resource.kind().api_version() == api_version)
}

fn find(resource: &dyn Resource, namespace: &str, name: &str, selector: &Value) -> Result<Vec<Arc<Object>>, String> {
    if !resource.is_stored() {
        return Ok(Vec::new());
    }
    if !name.is_empty() {
        return Ok(resource.cached(namespace, name).into_iter().collect());
    }
    if !selector.is_object() {
        return Err("one of name or selector must be provided".to_owned());
    }
    let selector = Selector::from_label_selector(selector).map_err(|error| error.to_string())?;
    let objects = resource.list(namespace).into_iter();
    Ok(objects.filter(|object| selector.matches(&object.header.labels)).collect())
}
