//! The namespace and the name of an object, which the path of the request decides.

use corten_meta::{Status, Value};

use super::scope::Scope;

/// Gives the object the namespace of the path, and refuses a body that names another. Cluster-scoped objects have none,
/// whatever the body says.
pub fn check_namespace(scope: &Scope<'_>, object: &mut Value) -> Result<(), Status> {
    if !scope.resource.kind.namespaced {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("namespace");
        }
        return Ok(());
    }
    check_given_namespace(scope, object)?;
    corten_meta::set(object, "/metadata/namespace", scope.namespace.into());
    Ok(())
}

/// Refuses an object that has another namespace than the path.
pub fn check_given_namespace(scope: &Scope<'_>, object: &Value) -> Result<(), Status> {
    let given = corten_meta::namespace(object);
    let is_other = !given.is_empty() && given != scope.namespace && !scope.namespace.is_empty();
    if scope.resource.kind.namespaced && is_other {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Refuses a body that names another object than the path, or none.
pub fn check_name(scope: &Scope<'_>, body: &Value) -> Result<(), Status> {
    let name = corten_meta::name(body);
    if name.is_empty() {
        return Err(unnamed(scope));
    }
    if name != scope.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            scope.name
        )));
    }
    Ok(())
}

/// Refuses an object with another namespace or name than the path.
pub fn check_location(scope: &Scope<'_>, object: &Value) -> Result<(), Status> {
    check_given_namespace(scope, object)?;
    check_name(scope, object)
}

/// Returns the error for an object without a name.
pub fn unnamed(scope: &Scope<'_>) -> Status {
    let name = scope.name;
    Status::bad_request(format!(
        "the name of the object ({name} based on URL) was undeterminable: name must be provided"
    ))
}
