//! TokenReview: the user of a token.

use corten_access::User;
use corten_meta::{Status, Value};
use serde_json::json;

use crate::authentication::token::NOT_A_TOKEN;
use crate::authentication::{Authentication, bearer_token};
use crate::write::Scope;

pub async fn review(target: &Scope<'_>, authentication: &Authentication, review: &Value) -> Result<Value, Status> {
    let token = review.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let requested: Vec<String> = review
        .pointer("/spec/audiences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let core = target.core;
    let audiences = if requested.is_empty() { &core.config.audiences } else { &requested };
    let header = format!("Bearer {token}");
    let token = bearer_token(&header).unwrap_or_default();
    if token.is_empty() {
        return Ok(anonymous(authentication, review, audiences));
    }
    let why = match authentication.authenticate_token(token, audiences).await {
        Ok(found) => {
            return Ok(json!({ "authenticated": true, "user": found.user.to_value(), "audiences": found.audiences }));
        }
        Err(reason) if reason == NOT_A_TOKEN => "invalid bearer token".to_owned(),
        Err(reason) => format!("[invalid bearer token, {reason}]"),
    };
    Ok(unauthenticated(review, Some(why)))
}

/// Returns the status of a review without a token: the user is anonymous, where that is allowed.
fn anonymous(authentication: &Authentication, review: &Value, audiences: &[String]) -> Value {
    if !authentication.allows_anonymous("") {
        return unauthenticated(review, None);
    }
    json!({ "authenticated": true, "user": User::anonymous().to_value(), "audiences": audiences })
}

/// Returns the status of an invalid token. Other fields of the request's status stay: upstream writes only its results.
fn unauthenticated(review: &Value, why: Option<String>) -> Value {
    let mut status = review.get("status").filter(|given| given.is_object()).cloned().unwrap_or_else(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        status.remove("authenticated");
        status.entry("user").or_insert_with(|| json!({}));
        status.extend(why.map(|why| ("error".to_owned(), why.into())));
    }
    status
}
