//! SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview: may they do that?

use std::collections::BTreeMap;

use corten_meta::Value;
use serde_json::json;

use crate::authentication::User;
use crate::authorization::{Attributes, authorize};
use crate::handlers::Target;

/// About the user that asks.
pub fn own(target: &Target<'_>, review: &Value) -> Value {
    decide(target, &target.context.user, &review["spec"])
}

/// About the user that the review names.
pub fn of_subject(target: &Target<'_>, review: &Value) -> Value {
    let spec = &review["spec"];
    decide(target, &subject(spec), spec)
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

fn decide(target: &Target<'_>, user: &User, spec: &Value) -> Value {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
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
    match authorize(target.server, &attributes) {
        Ok(reason) if reason.is_empty() => json!({ "allowed": true }),
        Ok(reason) => json!({ "allowed": true, "reason": reason }),
        Err(reason) if reason.is_empty() => json!({ "allowed": false }),
        Err(reason) => json!({ "allowed": false, "reason": reason }),
    }
}
