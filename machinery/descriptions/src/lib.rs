//! The descriptions of types and fields for `kubectl explain`, and of the columns of `kubectl get`.
//!
//! The build script takes them from the schema output of `k8s-openapi` (see `build.rs`) and compresses them. Load them,
//! build the OpenAPI documents, and drop them: loaded they take megabytes, which nothing needs between two requests for
//! a document.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::OnceLock;

static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.zz"));
static COLUMNS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/columns.zz"));

/// The descriptions by type and field.
pub struct Descriptions(BTreeMap<String, BTreeMap<String, String>>);

/// Returns the description of a column of a built-in kind; empty if there is none. These few descriptions stay unpacked
/// after the first use.
pub fn column(kind: &str, column: &str) -> &'static str {
    static UNPACKED: OnceLock<Descriptions> = OnceLock::new();
    let columns = UNPACKED.get_or_init(|| Descriptions::unpack(COLUMNS));
    columns.get(kind, column).or_else(|| columns.get("*", column)).unwrap_or_default()
}

const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";
/// A kind whose descriptions of `apiVersion`, `kind` and `metadata` are those of all kinds.
const ANY_KIND: &str = "io.k8s.api.core.v1.Pod";

/// Returns the description of a field of a watch event, which the source has no description for.
fn watch_event(field: &str) -> Option<&'static str> {
    match field {
        "" => Some("One event of a watch."),
        "object" => {
            Some("The object as it is after the event; as it was, if it was deleted; a Status, if it is an error.")
        }
        "type" => Some("What happened: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."),
        _ => None,
    }
}

impl Descriptions {
    /// Unpacks the descriptions.
    pub fn load() -> Descriptions {
        Descriptions::unpack(COMPRESSED)
    }

    fn unpack(compressed: &[u8]) -> Descriptions {
        let mut json = Vec::new();
        flate2::read::ZlibDecoder::new(compressed).read_to_end(&mut json).expect("the build wrote a zlib stream");
        Descriptions(serde_json::from_slice(&json).expect("the build wrote JSON"))
    }

    /// Returns the description of a field, or with an empty field that of the type.
    pub fn get(&self, type_name: &str, field: &str) -> Option<&str> {
        match self.0.get(type_name) {
            Some(fields) => fields.get(field).map(String::as_str),
            None if type_name == WATCH_EVENT => watch_event(field),
            None if type_name.ends_with("List") => self.list(field),
            None => None,
        }
    }

    /// Returns the description of a field of every list: the source has it for one list only.
    fn list(&self, field: &str) -> Option<&str> {
        match field {
            "" => Some("A list of objects of one kind."),
            "items" => Some("The objects."),
            "metadata" => Some("What is known of the list as a whole."),
            "apiVersion" | "kind" => self.get(ANY_KIND, field),
            _ => None,
        }
    }

    /// Returns the number of described types.
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
        let list = "io.k8s.api.core.v1.PodList";
        assert_eq!(descriptions.get(list, "kind"), descriptions.get(ANY_KIND, "kind"));
        assert!(descriptions.get(list, "items").is_some() && descriptions.get(list, "spec").is_none());
    }

    #[test]
    fn compressed_descriptions_are_small() {
        assert!(COMPRESSED.len() < 400_000, "{}", COMPRESSED.len());
        assert!(COLUMNS.len() < 20_000, "{}", COLUMNS.len());
    }

    #[test]
    fn columns_have_the_descriptions_of_their_fields() {
        let all = Descriptions::load();
        let field = |of: &str, field: &str| all.get(of, field).unwrap_or_default().to_owned();
        assert_eq!(column("Pod", "IP"), field("io.k8s.api.core.v1.PodStatus", "podIP"));
        assert_eq!(
            column("Lease", "Age"),
            field("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "creationTimestamp")
        );
        assert_eq!(column("Namespace", "Status"), "The status of the namespace");
        assert!(column("RoleBinding", "Role").ends_with("must return an error."));
        assert_eq!(column("Pod", "Bogus"), "");
    }
}
