//! PUT: the whole desired object.

use std::sync::Arc;

use corten_meta::{Status, Value};
use http::StatusCode;

use super::options::{Write, check_options};
use crate::body::Reply;
use crate::response;
use crate::write::{Change, Part, Scope, Updated, check_name, check_namespace, owner_references};

/// Returns the response with the object after the update.
pub async fn update(scope: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    check_options(scope.context, Write::Update)?;
    let mut body = scope.decode(bytes)?;
    check_namespace(scope, &mut body)?;
    check_name(scope, &body)?;
    owner_references::drop_repeated(scope, &mut body);
    let transform = |_: &Value| Ok(body.clone());
    let updated = Change::new(Part::Main, &transform).or_create(&body).carry_out(scope).await?;
    Ok(reply(scope, &updated))
}

/// Returns the response of a change.
pub fn reply(scope: &Scope<'_>, updated: &Updated) -> Reply {
    let code = if matches!(updated, Updated::Created(_)) { StatusCode::CREATED } else { StatusCode::OK };
    let context = scope.context;
    // An object that is deleted with its last finalizer is shown as it was stored.
    let object = match updated {
        Updated::Deleted(object) => Arc::clone(object),
        Updated::Changed(object) | Updated::Created(object) => scope.shown(Arc::clone(object)),
    };
    response::object(context.accept, context.include_object(), code, &scope.resource.kind, &object)
}
