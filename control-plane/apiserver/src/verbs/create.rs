//! POST to a collection: a new object.

use corten_meta::Status;
use http::StatusCode;

use super::options::{Write, check_options};
use crate::body::Reply;
use crate::response;
use crate::write::field_ownership::Ownership;
use crate::write::normalise::wipe;
use crate::write::{Scope, check_namespace, create_object};

/// Returns the response with the created object.
pub async fn create(scope: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    check_options(scope.context, Write::Create)?;
    let make = || {
        let mut object = scope.decode(bytes)?;
        check_namespace(scope, &mut object)?;
        wipe(&mut object);
        Ok(object)
    };
    let object = scope.shown(create_object(scope, &make, Ownership::Tracked).await?);
    let context = scope.context;
    Ok(response::object(context.accept, context.include_object(), StatusCode::CREATED, &scope.resource.kind, &object))
}
