//! StorageClass.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, boolean, or, text};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

struct StorageClass;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "StorageClass", "storageclasses")
        .cluster()
        .short(&["sc"])
        .table("Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age")
        .returns_deleted()
        .behaviour(StorageClass)
}

impl Behaviour for StorageClass {
    fn rules(&self) -> &'static str {
        ".storage.v1.StorageClass"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/reclaimPolicy", "Delete");
        default_at(object, "/volumeBindingMode", "Immediate");
    }

    fn warnings(&self, class: &Value, _old: Option<&Value>) -> Vec<String> {
        let terms = crate::check::At::object(class).get("allowedTopologies");
        let keys = terms.items().flat_map(|term| term.get("matchLabelExpressions").items()).map(|one| one.get("key"));
        keys.filter_map(|key| Some(format!("{}: {}", key.path, crate::core::pod_warnings::old_label(key.text())?)))
            .collect()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let is_default =
            ["storageclass.kubernetes.io~1is-default-class", "storageclass.beta.kubernetes.io~1is-default-class"]
                .iter()
                .any(|a| text(object, &format!("/metadata/annotations/{a}")) == "true");
        let default = if is_default { " (default)" } else { "" };
        vec![
            format!("{}{default}", text(object, "/metadata/name")).into(),
            text(object, "/provisioner").into(),
            or(text(object, "/reclaimPolicy"), "Delete").into(),
            or(text(object, "/volumeBindingMode"), "Immediate").into(),
            boolean(object, "/allowVolumeExpansion").into(),
            age(object, now),
        ]
    }
}
