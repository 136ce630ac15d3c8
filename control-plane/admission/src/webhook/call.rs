//! A call of a webhook: convert the write, send the review, read the answer.

use std::time::{Duration, Instant};

use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use corten_spans::{Attribute, Kind};
use serde_json::json;

use super::invocation::Invocation;
use super::review::{self, Response};
use crate::attributes::Attributes;

/// The reason why a webhook did not let the write pass.
pub enum Failure {
    /// The webhook could not be called, or its answer is invalid: its failure policy decides.
    Call(String),
    /// The webhook refused the write, or the write must not be sent to a webhook.
    Refused(Status),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Refused(status)
    }
}

/// The maximum size of an answer: a patch can hold a complete object, and is encoded twice.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Calls the webhook; an answer that refuses the write is a failure.
pub async fn call(a: &Attributes<'_>, invocation: &Invocation<'_>, mutating: bool) -> Result<Response, Failure> {
    let hook = invocation.hook;
    if a.dry_run && !hook.dry_run {
        let message = format!("admission webhook {} does not support dry run", quote(&hook.name));
        return Err(Failure::Refused(Status::bad_request(message)));
    }
    let Some(version) = hook.review_version else {
        let why =
            "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Err(Failure::Call(why.to_owned()));
    };
    let client = hook.client.as_ref().map_err(|e| Failure::Call(format!("could not get REST client: {e}")))?;
    let uid = uuid::Uuid::new_v4().to_string();
    let object = invocation.show(a, &a.object).await?;
    let old = invocation.show(a, a.old.as_deref().unwrap_or(&Value::Null)).await?;
    let request = review::request(a, invocation, object, old, &uid);
    let body =
        json!({ "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request });
    let outbound = a.target.core.outbound;
    let time = hook.timeout.min(time_left(a));
    let name = if mutating { "Call mutating webhook" } else { "Call validating webhook" };
    let attributes = || vec![Attribute::text("webhook", hook.name.clone()), Attribute::text("uid", uid.clone())];
    let posted = outbound.post(client, body.to_string().into(), time, MAX_ANSWER);
    let answer = corten_spans::child(name, Kind::Client, attributes, posted).await;
    if answer.is_err() && time_left(a).is_zero() {
        let status = Status::timeout("request did not complete within requested timeout", 0);
        return Err(Failure::Refused(status));
    }
    let answer = answer.map_err(|e| Failure::Call(format!("failed to call webhook: {e}")))?;
    let response = review::response(&answer, version, &uid, mutating);
    let response = response.map_err(|e| Failure::Call(format!("received invalid webhook response: {e}")))?;
    let context = a.target.context;
    for (key, value) in &response.annotations {
        context.annotate(&format!("{}/{key}", hook.name), value);
    }
    response.warnings.iter().for_each(|warning| context.warn(warning.clone()));
    if response.allowed { Ok(response) } else { Err(Failure::Refused(review::denied(&hook.name, &response.result))) }
}

/// Returns the time until the request's deadline.
fn time_left(a: &Attributes<'_>) -> Duration {
    a.target.context.deadline().saturating_duration_since(Instant::now())
}
