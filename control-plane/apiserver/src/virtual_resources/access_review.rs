//! SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview: may they do that?

use std::collections::BTreeMap;

use corten_meta::Value;
use serde_json::json;

use crate::authentication::User;
use crate::authorization::{Attributes, Decision, decide as decide_on};
use crate::handlers::Target;

/// About the user that asks.
pub async fn own(target: &Target<'_>, review: &Value) -> Value {
    decide(target, &target.context.user, &review["spec"]).await
}

/// About the user that the review names.
pub async fn of_subject(target: &Target<'_>, review: &Value) -> Value {
    let spec = &review["spec"];
    decide(target, &subject(spec), spec).await
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

async fn decide(target: &Target<'_>, user: &User, spec: &Value) -> Value {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |value: &'static str| -> &str {
        let from = if resource.is_object() { resource } else { path };
        from[value].as_str().unwrap_or_default()
    };
    let mut ignored = Vec::new();
    let mut read = |field: &str, is_selector: fn(&str) -> bool| {
        let text = selector(&resource[field]);
        if is_selector(&text) {
            return text;
        }
        ignored.push(format!("spec.resourceAttributes.{field} ignored due to parse error"));
        String::new()
    };
    let fields = read("fieldSelector", |text| corten_meta::fields::FieldSelector::parse(text).is_ok());
    let labels = read("labelSelector", |text| corten_meta::labels::Selector::parse(text).is_ok());
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
        version: text("version"),
        field_selector: &fields,
        label_selector: &labels,
    };
    let verdict = decide_on(target.server, &attributes).await;
    let mut status = json!({ "allowed": verdict.decision == Decision::Allow });
    if verdict.decision == Decision::Deny {
        status["denied"] = true.into();
    }
    if !verdict.reason.is_empty() {
        status["reason"] = verdict.reason.into();
    }
    if !ignored.is_empty() {
        status["evaluationError"] = ignored.join(", ").into();
    }
    status
}

/// A selector of a review as text: given so, or by its requirements. Those that cannot be written narrow nothing.
fn selector(given: &Value) -> String {
    if let Some(raw) = given["rawSelector"].as_str().filter(|raw| !raw.is_empty()) {
        return raw.to_owned();
    }
    let requirement = |r: &Value| {
        let key = r["key"].as_str()?;
        let values: Vec<&str> = r["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match (r["operator"].as_str()?, values.as_slice()) {
            ("In", [one]) => Some(format!("{key}={one}")),
            ("NotIn", [one]) => Some(format!("{key}!={one}")),
            ("In", many) => Some(format!("{key} in ({})", many.join(","))),
            ("NotIn", many) => Some(format!("{key} notin ({})", many.join(","))),
            ("Exists", _) => Some(key.to_owned()),
            ("DoesNotExist", _) => Some(format!("!{key}")),
            _ => None,
        }
    };
    let requirements = given["requirements"].as_array().into_iter().flatten();
    requirements.filter_map(requirement).collect::<Vec<_>>().join(",")
}
