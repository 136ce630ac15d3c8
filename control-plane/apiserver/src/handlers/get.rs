//! GET of one object: a consistent read from the store.

use corten_meta::Status;
use http::StatusCode;

use super::Target;
use crate::body::Reply;
use crate::response;

/// Answers with the object as it stands.
pub async fn get(target: &Target<'_>) -> Result<Reply, Status> {
    let object = target.server.registry.get(target.resource, target.namespace, target.name).await?;
    let context = target.context;
    Ok(response::object(context.accept, context.include_object(), StatusCode::OK, &target.resource.kind, &object))
}
