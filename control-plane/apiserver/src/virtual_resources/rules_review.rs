//! SelfSubjectRulesReview: the rules of the user in a namespace.

use corten_access::Rule;
use corten_meta::{Status, Value};
use serde_json::json;

use crate::write::Scope;

pub fn review(target: &Scope<'_>, review: &Value) -> Result<Value, Status> {
    let namespace = review.pointer("/spec/namespace").and_then(Value::as_str).unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let user = &target.context.user;
    let rules = target.core.authorization.rbac().rules_for(user, namespace);
    let (urls, resources): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|rule| !rule.urls.is_empty());
    let mut status = json!({
        "resourceRules": resources.iter().map(|r| r.to_value()).collect::<Vec<_>>(),
        "nonResourceRules": urls.iter().map(|r| r.to_value()).collect::<Vec<_>>(),
        "incomplete": false,
    });
    if target.core.authorization.has_webhook() {
        status["incomplete"] = true.into();
        status["evaluationError"] = "webhook authorizer does not support user rule resolution".into();
    }
    Ok(status)
}
