//! Entry points for the fuzz targets: decoders that are private to admission. Nothing else may use them.

use corten_meta::Value;

use crate::webhook::review;

/// Reads the response of an admission webhook.
pub fn admission_answer(bytes: &[u8], version: &str) -> Result<(), String> {
    for mutating in [true, false] {
        review::response(bytes, version, "u", mutating)?;
    }
    Ok(())
}

/// Returns the code of the Status of a write that a webhook denied.
pub fn denial(result: &Value) -> u16 {
    review::denied("w", result).code
}
