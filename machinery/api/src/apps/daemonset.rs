//! DaemonSet.

use corten_meta::Value;
use corten_meta::quote::quote;
use jiff::Timestamp;
use serde_json::json;

use crate::cells::text;
use crate::core::pod_spec::default_template;
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind};

struct DaemonSet;

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "DaemonSet", "daemonsets")
        .short(&["ds"])
        .category("all")
        .status()
        .generation()
        .table(
            "Name, Desired:integer=number(/status/desiredNumberScheduled), \
             Current:integer=number(/status/currentNumberScheduled), Ready:integer=number(/status/numberReady), \
             Up-to-date:integer=number(/status/updatedNumberScheduled), \
             Available:integer=number(/status/numberAvailable), \
             Node Selector=labels(/spec/template/spec/nodeSelector), Age; Containers=names(/spec/template/spec), \
             Images=images(/spec/template/spec), Selector=selector(/spec/selector)",
        )
        .behaviour(DaemonSet)
}

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn object_template_generation(object: &Value) -> i64 {
    text(object, &format!("/metadata/annotations/{TEMPLATE_GENERATION}")).parse().unwrap_or(1)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    put(object, &format!("/metadata/annotations/{TEMPLATE_GENERATION}"), generation.to_string());
}

impl Behaviour for DaemonSet {
    fn rules(&self) -> &'static str {
        ".apps.v1.DaemonSet"
    }

    fn annotations_of_version(&self) -> &'static [&'static str] {
        &[TEMPLATE_GENERATION]
    }

    fn unreadable(&self, object: &Value) -> Option<String> {
        let annotation = match object.pointer(&format!("/metadata/annotations/{TEMPLATE_GENERATION}"))? {
            // Go decodes null to the empty string.
            Value::Null => "",
            annotation => annotation.as_str()?,
        };
        let digits = annotation.strip_prefix(['+', '-']).unwrap_or(annotation);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let why = if is_number { "value out of range" } else { "invalid syntax" };
        annotation.parse::<i64>().err().map(|_| format!("strconv.ParseInt: parsing {}: {why}", quote(annotation)))
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/updateStrategy/type", "RollingUpdate");
        if text(object, "/spec/updateStrategy/type") == "RollingUpdate" {
            default_at(object, "/spec/updateStrategy/rollingUpdate", json!({}));
            default_at(object, "/spec/updateStrategy/rollingUpdate/maxUnavailable", 1);
            default_at(object, "/spec/updateStrategy/rollingUpdate/maxSurge", 0);
        }
        default_at(object, "/spec/revisionHistoryLimit", 10);
        default_at(object, "/metadata/annotations", json!({}));
        default_at(object, &format!("/metadata/annotations/{TEMPLATE_GENERATION}"), "0");
        default_template(object, "/spec/template");
    }

    /// Initializes the template generation from its annotation, which a new object may set to any number.
    fn prepare_create(&self, object: &mut Value) {
        let generation = object_template_generation(object);
        set_template_generation(object, generation.max(1));
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        let before = object_template_generation(old);
        let changed = new.pointer("/spec/template") != old.pointer("/spec/template");
        set_template_generation(new, if changed { before + 1 } else { before });
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value, _now: Timestamp) {
        set_template_generation(new, object_template_generation(old));
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("template");
        // Only a change of the template counts.
        if old.is_some_and(|old| old.pointer("/spec/template") == new.pointer("/spec/template")) {
            return Vec::new();
        }
        crate::core::pod_warnings::of_template(new, old, "/spec/template", &path)
    }

    fn empty(&self, object: &mut Value) {
        put(object, "/metadata/annotations", json!({}));
        set_template_generation(object, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_of_the_template_is_a_number() {
        for (input, wanted) in [
            (json!("3"), None),
            (json!("x"), Some("strconv.ParseInt: parsing \"x\": invalid syntax")),
            (Value::Null, Some("strconv.ParseInt: parsing \"\": invalid syntax")),
        ] {
            let set = json!({ "metadata": { "annotations": { TEMPLATE_GENERATION: input } } });
            assert_eq!(DaemonSet.unreadable(&set).as_deref(), wanted);
        }
    }
}
