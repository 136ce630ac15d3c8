//! ReplicationController.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::replica_validation;
use crate::cells::number;
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind, NameRule, ScalePaths};

struct ReplicationController;

pub fn kind() -> Kind {
    Kind::new("", "v1", "ReplicationController", "replicationcontrollers")
        .short(&["rc"])
        .category("all")
        .scale()
        .status()
        .labels_from_template()
        .generation()
        .orphan_by_default()
        .name_rule(NameRule::SubdomainInBytes)
        .stored_at("/registry/controllers")
        .selectable(&["status.replicas"])
        .table(
            "Name, Desired:integer=number(/spec/replicas), Current:integer=number(/status/replicas), \
             Ready:integer=number(/status/readyReplicas), Age; Containers=names(/spec/template/spec), \
             Images=images(/spec/template/spec), Selector=labels(/spec/selector)",
        )
        .behaviour(ReplicationController)
}

impl Behaviour for ReplicationController {
    fn rules(&self) -> &'static str {
        ".core.v1.ReplicationController"
    }

    fn default(&self, object: &mut Value) {
        let labels = object.pointer("/spec/template/metadata/labels").filter(|l| l.is_object()).cloned();
        if let Some(labels) = labels {
            for target in ["/spec/selector", "/metadata/labels"] {
                if object.pointer(target).and_then(Value::as_object).is_none_or(|m| m.is_empty()) {
                    put(object, target, labels.clone());
                }
            }
        }
        default_at(object, "/spec/replicas", 1);
        super::pod_spec::default_template(object, "/spec/template");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        replica_validation::validate_replication_controller(object)
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("template");
        let mut out = crate::core::pod_warnings::of_names(new, old);
        // For a change, upstream uses the old template.
        let (subject, other) = old.map_or((new, None), |old| (old, Some(new)));
        out.extend(crate::core::pod_warnings::of_template(subject, other, "/spec/template", &path));
        out
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        (field == "status.replicas").then(|| number(object, "/status/replicas").to_string())
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(ScalePaths {
            spec_replicas: ".spec.replicas".to_string(),
            status_replicas: ".status.replicas".to_string(),
            selector: Some(".spec.selector".to_string()),
        })
    }
}
