//! The rules of `metadata` that every kind shares: names, labels, annotations, owners, finalizers.

use corten_meta::Value;
use corten_meta::field::FieldError;

use crate::kind::Kind;

/// Errors of a new object's metadata.
pub fn validate(_kind: &Kind, _object: &Value) -> Vec<FieldError> {
    Vec::new()
}

/// Errors of a change of metadata.
pub fn validate_update(_new: &Value, _old: &Value) -> Vec<FieldError> {
    Vec::new()
}
