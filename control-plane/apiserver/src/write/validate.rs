//! Validation: the errors of the kind and of admission together, then the warnings.

use corten_meta::{FieldError, Status, Value};

use super::part::Part;
use super::scope::Scope;

/// Refuses an object that has errors. Those of admission are inserted at their fields.
pub fn refuse_invalid(
    scope: &Scope<'_>,
    object: &Value,
    mut errors: Vec<FieldError>,
    mut of_admission: Vec<FieldError>,
) -> Result<(), Status> {
    if errors.is_empty() && of_admission.is_empty() {
        return Ok(());
    }
    let schema = &scope.resource.kind.schema;
    corten_api::schema::print_values(schema, &mut of_admission);
    corten_api::schema::insert_errors(schema, &mut errors, of_admission);
    Err(Status::invalid(&scope.resource.group_kind(), corten_meta::name(object), errors))
}

/// Returns the errors of a change. `sent` is the new object with its empty lists and maps.
pub fn errors_of_change(scope: &Scope<'_>, part: Part, new: &Value, sent: &Value, old: &Value) -> Vec<FieldError> {
    let kind = &scope.resource.kind;
    match part {
        Part::Main => kind.validate_sent_update(new, sent, old),
        Part::Status => kind.validate_sent_status_update(new, sent, old),
        Part::Transformed => {
            let role = kind.subresource(&scope.context.info.subresource).map(|s| s.role);
            role.map(|role| kind.validate_part_update(role, sent, old)).unwrap_or_default()
        }
    }
}

/// Warns the client of a new object. The client gets the warnings also if the write is refused later.
pub fn warn_of_new(scope: &Scope<'_>, object: &Value) {
    scope.resource.kind.behaviour.warnings(object, None).into_iter().for_each(|warning| scope.context.warn(warning));
}

/// Warns the client of a change. The client gets the warnings also if the write is refused later.
pub fn warn_of_change(scope: &Scope<'_>, part: Part, new: &Value, old: &Value) {
    let behaviour = &scope.resource.kind.behaviour;
    let warnings = match part {
        Part::Main => behaviour.warnings(new, Some(old)),
        Part::Status => behaviour.status_warnings(new),
        Part::Transformed => Vec::new(),
    };
    warnings.into_iter().for_each(|warning| scope.context.warn(warning));
}
