//! CSIDriver.

use corten_meta::Value;
use jiff::Timestamp;
use serde_json::json;

use crate::cells::{age, boolean, join, list, name, number, or, text};
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind};

struct CsiDriver;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSIDriver", "csidrivers")
        .cluster()
        .conditional_update()
        .table("Name, AttachRequired:boolean, PodInfoOnMount:boolean, StorageCapacity:boolean, TokenRequests, RequiresRepublish:boolean, Modes, Age")
        .returns_deleted()
        .behaviour(CsiDriver)
}

impl Behaviour for CsiDriver {
    fn rules(&self) -> &'static str {
        ".storage.v1.CSIDriver"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/attachRequired", true);
        default_at(object, "/spec/podInfoOnMount", false);
        default_at(object, "/spec/storageCapacity", false);
        default_at(object, "/spec/fsGroupPolicy", "ReadWriteOnceWithFSType");
        if list(object, "/spec/volumeLifecycleModes").is_empty() {
            put(object, "/spec/volumeLifecycleModes", json!(["Persistent"]));
        }
        default_at(object, "/spec/requiresRepublish", false);
        default_at(object, "/spec/seLinuxMount", false);
    }

    /// Counts changes in the generation, though not from one.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        if new["spec"] != old["spec"] {
            put(new, "/metadata/generation", number(old, "/metadata/generation") + 1);
        }
    }

    fn warnings(&self, driver: &Value, old: Option<&Value>) -> Vec<String> {
        let requested = list(driver, "/spec/tokenRequests");
        let asks = !requested.is_empty() && old.is_none_or(|old| list(old, "/spec/tokenRequests") != requested);
        let unset = driver.pointer("/spec/serviceAccountTokenInSecrets").is_none_or(Value::is_null);
        let warning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to \
                       prevent possible logging of tokens in volume attributes";
        (asks && unset).then(|| warning.to_string()).into_iter().collect()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let attach = object.pointer("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true);
        let tokens = match object.pointer("/spec/tokenRequests").and_then(Value::as_array) {
            Some(requests) => join(requests.iter().map(|r| text(r, "/audience"))),
            None => "<unset>".to_string(),
        };
        let modes = join(list(object, "/spec/volumeLifecycleModes").iter().filter_map(Value::as_str));
        vec![
            name(object),
            attach.into(),
            boolean(object, "/spec/podInfoOnMount").into(),
            boolean(object, "/spec/storageCapacity").into(),
            tokens.into(),
            boolean(object, "/spec/requiresRepublish").into(),
            or(&modes, "<none>").into(),
            age(object, now),
        ]
    }
}
