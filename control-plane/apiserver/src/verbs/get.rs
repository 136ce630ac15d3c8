//! GET of one object: a consistent read from the store.

use corten_meta::Status;
use http::StatusCode;

use super::list::revision;
use crate::body::Reply;
use crate::request::Query;
use crate::response;
use crate::write::Scope;

/// Returns the response with the present object, once the state is as new as the client requests.
pub async fn get(target: &Scope<'_>) -> Result<Reply, Status> {
    let context = target.context;
    let registry = &target.core.registry;
    check_export(&context.info.query)?;
    let requested =
        revision(&context.info.query).map_err(|e| Status { code: 500, message: e.to_string(), ..Status::default() })?;
    target.resource.storage()?.cache.feed.reach(requested.unwrap_or(0)).await?;
    let object = target.shown(registry.get(target.resource, target.namespace, target.name).await?);
    Ok(response::object(context.accept, context.include_object(), StatusCode::OK, &target.resource.kind, &object))
}

/// Refuses the `export` parameter, which is no longer supported.
pub fn check_export(query: &Query) -> Result<(), Status> {
    match query.flag("export") {
        true => Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported")),
        false => Ok(()),
    }
}
