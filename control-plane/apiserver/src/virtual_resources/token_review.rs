//! TokenReview: whose token this is.

use corten_meta::{Status, Value};
use serde_json::json;

use crate::authentication::token::NOT_A_TOKEN;
use crate::authentication::{User, bearer_token};
use crate::handlers::Target;

pub async fn review(target: &Target<'_>, review: &Value) -> Result<Value, Status> {
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
    let server = target.server;
    let audiences = if asked.is_empty() { &server.config.audiences } else { &asked };
    let header = format!("Bearer {token}");
    let token = bearer_token(&header).unwrap_or_default();
    if token.is_empty() {
        return Ok(nobody(target, review, audiences));
    }
    let why = match server.tokens.authenticate(server, token, audiences).await {
        Ok(found) => {
            return Ok(json!({ "authenticated": true, "user": found.user.to_value(), "audiences": found.audiences }));
        }
        Err(reason) if reason == NOT_A_TOKEN => "invalid bearer token".to_owned(),
        Err(reason) => format!("[invalid bearer token, {reason}]"),
    };
    Ok(answered(review, Some(why)))
}

/// The answer about no token at all: who brings none is anonymous, where that is allowed.
fn nobody(target: &Target<'_>, review: &Value, audiences: &[String]) -> Value {
    if !target.server.issuers.load().anonymous.is_allowed("") {
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
