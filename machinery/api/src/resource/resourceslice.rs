//! ResourceSlice.

use corten_meta::Value;
use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use jiff::Timestamp;

use crate::cells::text;
use crate::defaulting::{default_at, items};
use crate::kind::{Behaviour, Kind};

struct ResourceSlice;

pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
        .cluster()
        .generation()
        .counts_gated()
        .selectable(&["spec.driver", "spec.nodeName"])
        .table("Name, Node=/spec/nodeName, Driver=/spec/driver, Pool=/spec/pool/name, Age")
        .returns_deleted()
        .behaviour(ResourceSlice)
}

impl Behaviour for ResourceSlice {
    fn rules(&self) -> &'static str {
        ".resource.v1.ResourceSlice"
    }

    /// Sets the time of new taints.
    fn default_times(&self, slice: &mut Value, now: Timestamp) {
        for device in items(slice, "/spec/devices") {
            for taint in items(device, "/taints") {
                default_at(taint, "/timeAdded", corten_meta::time::rfc3339(now));
            }
        }
    }

    fn warnings(&self, slice: &Value, _old: Option<&Value>) -> Vec<String> {
        let driver = crate::cells::text(slice, "/spec/driver");
        let why =
            format!("spec.driver: driver names should be lowercase; {} contains uppercase characters", quote(driver));
        (driver != driver.to_lowercase()).then_some(why).into_iter().collect()
    }

    fn unsupported_field(&self, field: &str) -> String {
        format!("field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {field}")
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        crate::rules::validate(self.rules(), new, Some(old))
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        let part = field.strip_prefix("spec.")?;
        Some(text(object, &format!("/spec/{part}")).to_string())
    }
}
