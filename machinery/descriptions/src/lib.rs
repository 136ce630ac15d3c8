//! What `kubectl explain` says about types and fields, and what the columns of `kubectl get` mean.
//!
//! The text comes from the schema output of `k8s-openapi` while this package is built (see `build.rs`) and is
//! carried compressed. Load it, build the OpenAPI documents, and drop it: loaded it takes megabytes,
//! which nothing needs between two requests for a document.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::OnceLock;

static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.zz"));
static COLUMNS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/columns.zz"));

/// Type → field → description.
pub struct Descriptions(BTreeMap<String, BTreeMap<String, String>>);

/// What a column of the table of a built-in kind means; empty if nobody says. These few texts stay unpacked once
/// they were asked for.
pub fn column(kind: &str, column: &str) -> &'static str {
    static UNPACKED: OnceLock<Descriptions> = OnceLock::new();
    let columns = UNPACKED.get_or_init(|| Descriptions::unpack(COLUMNS));
    columns.get(kind, column).or_else(|| columns.get("*", column)).unwrap_or_default()
}

const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";
/// A kind that says of itself what all say.
const ANY_KIND: &str = "io.k8s.api.core.v1.Pod";

/// An event of a watch is made by hand in the source, without words.
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

    /// The description of a field, or with an empty field that of the type.
    pub fn get(&self, type_name: &str, field: &str) -> Option<&str> {
        match self.0.get(type_name) {
            Some(fields) => fields.get(field).map(String::as_str),
            None if type_name == WATCH_EVENT => watch_event(field),
            None if type_name.ends_with("List") => self.list(field),
            None => None,
        }
    }

    /// What is true of every list: the source knows only one, of anything.
    fn list(&self, field: &str) -> Option<&str> {
        match field {
            "" => Some("A list of objects of one kind."),
            "items" => Some("The objects."),
            "metadata" => Some("What is known of the list as a whole."),
            "apiVersion" | "kind" => self.get(ANY_KIND, field),
            _ => None,
        }
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
        let list = "io.k8s.api.core.v1.PodList";
        assert_eq!(descriptions.get(list, "kind"), descriptions.get(ANY_KIND, "kind"));
        assert!(descriptions.get(list, "items").is_some() && descriptions.get(list, "spec").is_none());
    }

    #[test]
    fn it_is_small_when_carried() {
        assert!(COMPRESSED.len() < 400_000, "{}", COMPRESSED.len());
        assert!(COLUMNS.len() < 20_000, "{}", COLUMNS.len());
    }

    #[test]
    fn columns_mean_what_their_fields_mean() {
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
