//! Resources that are answered and never stored: reviews and bindings. One file each, one list entry each.

mod access_review;
mod component_status;
mod rules_review;
mod token_review;
mod user_review;

use bytes::Bytes;
use corten_meta::{Status, Value};
use http::StatusCode;

use crate::admission::Operation;
use crate::body::Reply;
use crate::handlers::Target;
use crate::{response, subresources};

/// Answers a GET of a virtual resource or of one of its objects.
pub fn read(target: &Target<'_>) -> Result<Reply, Status> {
    match target.resource.kind.plural.as_str() {
        "componentstatuses" => component_status::read(target),
        _ => Err(Status::path_not_found()),
    }
}

/// Answers a POST to a virtual resource.
pub async fn create(target: &Target<'_>, bytes: &Bytes) -> Result<Reply, Status> {
    let plural = target.resource.kind.plural.as_str();
    if plural == "bindings" {
        let pods = target.server.resource("", "v1", "pods")?;
        let pod = Target { resource: &pods, name: "", ..*target };
        return subresources::binding::create(&pod, bytes).await;
    }
    let review = target.decode(bytes)?;
    let mut review = target.server.admission.pass(target, Operation::Create, review).await?;
    let status = match plural {
        "tokenreviews" => token_review::review(target, &review).await?,
        "selfsubjectreviews" => user_review::review(target),
        "selfsubjectaccessreviews" => access_review::own(target, &review)?,
        "subjectaccessreviews" => access_review::of_subject(target, &review)?,
        "localsubjectaccessreviews" => access_review::local(target, &review)?,
        "selfsubjectrulesreviews" => rules_review::review(target, &review)?,
        _ => return Err(Status::path_not_found()),
    };
    if let Some(metadata) = review.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("creationTimestamp".to_owned(), Value::Null);
    }
    review["status"] = status;
    Ok(response::value(target.context.accept, StatusCode::CREATED, &review))
}
