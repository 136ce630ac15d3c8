//! What `kubectl explain` says about types and fields.
//!
//! The text comes from the schema output of `k8s-openapi` while this package is built (see `build.rs`) and is
//! carried compressed. Load it, build the OpenAPI documents, and drop it: loaded it takes megabytes,
//! which nothing needs between two requests for a document.

use std::collections::BTreeMap;
use std::io::Read as _;

static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.zz"));

/// Type → field → description.
pub struct Descriptions(BTreeMap<String, BTreeMap<String, String>>);

impl Descriptions {
    /// Unpacks the descriptions.
    pub fn load() -> Descriptions {
        let mut json = Vec::new();
        flate2::read::ZlibDecoder::new(COMPRESSED).read_to_end(&mut json).expect("the build wrote a zlib stream");
        Descriptions(serde_json::from_slice(&json).expect("the build wrote JSON"))
    }

    /// The description of a field, or with an empty field that of the type.
    pub fn get(&self, type_name: &str, field: &str) -> Option<&str> {
        self.0.get(type_name)?.get(field).map(String::as_str)
    }

    /// How many types are described.
    pub fn types(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_fields_are_described() {
        let descriptions = Descriptions::load();
        assert!(descriptions.types() > 450, "{}", descriptions.types());
        for (type_name, field) in [
            ("io.k8s.api.core.v1.Pod", ""),
            ("io.k8s.api.core.v1.PodSpec", "containers"),
            ("io.k8s.api.apps.v1.DeploymentSpec", "replicas"),
            ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "labels"),
        ] {
            let text = descriptions.get(type_name, field).unwrap_or_default();
            assert!(text.len() > 10, "{type_name} {field:?}: {text:?}");
        }
        assert_eq!(descriptions.get("io.k8s.api.core.v1.Pod", "bogus"), None);
    }

    #[test]
    fn it_is_small_when_carried() {
        assert!(COMPRESSED.len() < 400_000, "{}", COMPRESSED.len());
    }
}
