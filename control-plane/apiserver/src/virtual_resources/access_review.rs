//! SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview: whether a user may do something.

use std::collections::BTreeMap;

use corten_access::{Attributes, User};
use corten_meta::Value;
use serde_json::json;

use crate::authorization::Decision;
use crate::write::Scope;

/// Reviews the access of the user of the request.
pub async fn own(target: &Scope<'_>, review: &Value) -> Value {
    decide(target, &target.context.user, &review["spec"]).await
}

/// Reviews the access of the user that the review names.
pub async fn of_subject(target: &Scope<'_>, review: &Value) -> Value {
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

async fn decide(target: &Scope<'_>, user: &User, spec: &Value) -> Value {
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    let text = |value: &'static str| -> &str {
        let from = if resource.is_object() { resource } else { path };
        from[value].as_str().unwrap_or_default()
    };
    let mut ignored = Vec::new();
    let mut read = |field: &str, is_selector: fn(&str) -> bool| {
        let terms = terms(&resource[field]);
        let kept: Vec<&str> = terms.iter().flatten().map(String::as_str).filter(|text| is_selector(text)).collect();
        if kept.len() < terms.len() {
            let how = if kept.is_empty() { "" } else { "partially " };
            ignored.push(format!("spec.resourceAttributes.{field} {how}ignored due to parse error"));
        }
        kept.join(",")
    };
    // A field has one value, and a requirement always has one.
    let fields = read("fieldSelector", |text| {
        !text.contains([' ', '(']) && corten_meta::field_selector::FieldSelector::parse(text).is_ok()
    });
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
    let verdict = target.core.authorization.decide(&attributes).await;
    let mut status = json!({ "allowed": verdict.decision == Decision::Allow });
    if verdict.decision == Decision::Deny {
        status["denied"] = true.into();
    }
    if !verdict.reason.is_empty() {
        status["reason"] = verdict.reason.into();
    }
    if !ignored.is_empty() {
        status["evaluationError"] = ignored.join("; ").into();
    }
    status
}

/// Returns the requirements of a review's selector as strings, raw or one by one; `None` for an invalid one.
fn terms(selector: &Value) -> Vec<Option<String>> {
    let term = |r: &Value| {
        let key = r["key"].as_str()?;
        let values: Vec<&str> = r["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match (r["operator"].as_str()?, values.as_slice()) {
            ("In", [one]) => Some(format!("{key}={one}")),
            ("NotIn", [one]) => Some(format!("{key}!={one}")),
            ("In", many) => Some(format!("{key} in ({})", many.join(","))),
            ("NotIn", many) => Some(format!("{key} notin ({})", many.join(","))),
            ("Exists", []) => Some(key.to_owned()),
            ("DoesNotExist", []) => Some(format!("!{key}")),
            _ => None,
        }
    };
    match selector["requirements"].as_array().filter(|all| !all.is_empty()) {
        Some(all) => all.iter().map(term).collect(),
        None => selector["rawSelector"]
            .as_str()
            .filter(|raw| !raw.is_empty())
            .map(|raw| Some(raw.to_owned()))
            .into_iter()
            .collect(),
    }
}
