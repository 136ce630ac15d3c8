//! RuntimeClass.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::check::{At, Errors};
use crate::core::pod_validation::validate_overhead;
use crate::core::scheduling_validation::validate_tolerations;
use crate::kind::{Behaviour, Kind};
use crate::validation::labels;

struct RuntimeClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
        .cluster()
        .create_on_update()
        .conditional_update()
        .table("Name, Handler, Age")
        .behaviour(RuntimeClass)
}

impl Behaviour for RuntimeClass {
    fn warnings(&self, class: &Value, _old: Option<&Value>) -> Vec<String> {
        let selector = At::object(class).get("scheduling").get("nodeSelector");
        let old = selector.entries().filter_map(|(key, _)| crate::core::pod_warnings::old_label(key));
        old.map(|why| format!("{}: {why}", selector.path)).collect()
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let class = At::object(object);
        let mut errors = Errors::new();
        class.get("handler").must_follow(&mut errors, names::dns1123_label);
        let overhead = class.get("overhead");
        validate_overhead(&overhead.get("podFixed").with(overhead.path), &mut errors);
        let scheduling = class.get("scheduling");
        let selector = scheduling.get("nodeSelector");
        errors.extend(labels(selector.value, &selector.path));
        validate_tolerations(&scheduling.get("tolerations"), &mut errors);
        let tolerations = scheduling.get("tolerations");
        let mut seen = Vec::new();
        for toleration in tolerations.items() {
            let key = ["key", "effect", "operator", "value"].map(|field| toleration.get(field).text());
            if seen.contains(&key) {
                errors.push(toleration.duplicate());
            }
            seen.push(key);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["handler"] == old["handler"] {
            return Vec::new();
        }
        vec![FieldError::invalid(&Path::root("handler"), new["handler"].clone(), "field is immutable")]
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/handler").into(), age(object, now)]
    }
}
