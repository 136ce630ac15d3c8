//! SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview: may they do that?

use std::collections::BTreeMap;

use corten_meta::{Status, Value};
use serde_json::json;

use crate::authentication::User;
use crate::authorization::{Attributes, authorize};
use crate::handlers::Target;

/// About the user that asks.
pub fn own(target: &Target<'_>, review: &Value) -> Result<Value, Status> {
    decide(target, &target.context.user, &review["spec"])
}

/// About the user that the review names.
pub fn of_subject(target: &Target<'_>, review: &Value) -> Result<Value, Status> {
    let spec = &review["spec"];
    let user = subject(spec);
    if user.name.is_empty() && user.groups.is_empty() {
        let path = corten_meta::Path::root("spec").child("user");
        let error = corten_meta::FieldError::invalid(&path, "", "at least one of user or group must be specified");
        return Err(Status::invalid(&target.resource.group_kind(), "", vec![error]));
    }
    decide(target, &user, spec)
}

/// The same, inside one namespace.
pub fn local(target: &Target<'_>, review: &Value) -> Result<Value, Status> {
    let namespace = review.pointer("/spec/resourceAttributes/namespace").and_then(Value::as_str).unwrap_or_default();
    if namespace != target.namespace {
        return Err(Status::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {}",
            target.namespace
        )));
    }
    of_subject(target, review)
}

fn subject(spec: &Value) -> User {
    let list = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let extra: BTreeMap<String, Vec<String>> =
        spec["extra"].as_object().into_iter().flatten().map(|(key, values)| (key.clone(), list(values))).collect();
    User {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: list(&spec["groups"]),
        extra,
    }
}

fn decide(target: &Target<'_>, user: &User, spec: &Value) -> Result<Value, Status> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if resource.is_object() == path.is_object() {
        let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let error = corten_meta::FieldError::invalid(
            &corten_meta::Path::root("spec").child("resourceAttributes"),
            Value::Null,
            message,
        );
        return Err(Status::invalid(&target.resource.group_kind(), "", vec![error]));
    }
    let text = |value: &'static str| -> &str {
        let from = if resource.is_object() { resource } else { path };
        from[value].as_str().unwrap_or_default()
    };
    let attributes = Attributes {
        user,
        verb: text("verb"),
        is_resource: resource.is_object(),
        group: text("group"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        path: text("path"),
    };
    Ok(match authorize(target.server, &attributes) {
        Ok(reason) if reason.is_empty() => json!({ "allowed": true }),
        Ok(reason) => json!({ "allowed": true, "reason": reason }),
        Err(reason) if reason.is_empty() => json!({ "allowed": false }),
        Err(reason) => json!({ "allowed": false, "reason": reason }),
    })
}
