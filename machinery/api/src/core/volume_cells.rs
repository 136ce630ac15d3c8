//! The shared cells of volumes and claims.

use corten_meta::Value;

use crate::cells::{list, text};

/// Returns access modes in their short form, in upstream's order.
pub(crate) fn access_modes(object: &Value, pointer: &str) -> String {
    const SHORT: [(&str, &str); 4] =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let modes = list(object, pointer);
    let present = SHORT.iter().filter(|(long, _)| modes.iter().any(|m| m == long));
    crate::cells::join(present.map(|(_, short)| *short))
}

/// Returns the storage class, by the old annotation first.
pub(crate) fn storage_class(object: &Value) -> &str {
    match object.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class") {
        Some(class) => class.as_str().unwrap_or_default(),
        None => text(object, "/spec/storageClassName"),
    }
}

/// Returns a quantity as it is written; `0` if it is absent.
pub(crate) fn quantity(object: &Value, pointer: &str) -> String {
    match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "0".to_string(),
    }
}
