//! TokenReview: whose token this is.

use corten_meta::{Status, Value};
use serde_json::json;

use crate::authentication::token::NOT_A_TOKEN;
use crate::authentication::{Authentication, bearer_token};
use crate::user::User;
use crate::write::Scope;

pub async fn review(target: &Scope<'_>, authentication: &Authentication, review: &Value) -> Result<Value, Status> {
    let token = review.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let asked: Vec<String> = review
        .pointer("/spec/audiences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let core = target.core;
    let audiences = if asked.is_empty() { &core.config.audiences } else { &asked };
    let header = format!("Bearer {token}");
    let token = bearer_token(&header).unwrap_or_default();
    if token.is_empty() {
        return Ok(nobody(authentication, review, audiences));
    }
    let why = match authentication.authenticate_token(token, audiences).await {
        Ok(found) => {
            return Ok(json!({ "authenticated": true, "user": found.user.to_value(), "audiences": found.audiences }));
        }
        Err(reason) if reason == NOT_A_TOKEN => "invalid bearer token".to_owned(),
        Err(reason) => format!("[invalid bearer token, {reason}]"),
    };
    Ok(answered(review, Some(why)))
}

/// The answer about no token at all: who brings none is anonymous, where that is allowed.
fn nobody(authentication: &Authentication, review: &Value, audiences: &[String]) -> Value {
    if !authentication.allows_anonymous("") {
        return answered(review, None);
    }
    json!({ "authenticated": true, "user": User::anonymous().to_value(), "audiences": audiences })
}

/// The answer about a token of nobody. What the question brought along stays: upstream writes only what it found out.
fn answered(review: &Value, why: Option<String>) -> Value {
    let mut status = review.get("status").filter(|given| given.is_object()).cloned().unwrap_or_else(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        status.remove("authenticated");
        status.entry("user").or_insert_with(|| json!({}));
        status.extend(why.map(|why| ("error".to_owned(), why.into())));
    }
    status
}
