//! ReplicaSet.

use corten_meta::Value;

use crate::core::pod_spec::default_template;
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind, ScalePaths};

struct ReplicaSet;

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .category("all")
        .scale()
        .status()
        .generation()
        .table(
            "Name, Desired:integer=number(/spec/replicas), Current:integer=number(/status/replicas), \
             Ready:integer=number(/status/readyReplicas), Age; Containers=names(/spec/template/spec), \
             Images=images(/spec/template/spec), Selector=selector(/spec/selector)",
        )
        .behaviour(ReplicaSet)
}

impl Behaviour for ReplicaSet {
    fn rules(&self) -> &'static str {
        ".apps.v1.ReplicaSet"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/replicas", 1);
        default_template(object, "/spec/template");
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("template");
        let mut out = crate::core::pod_warnings::of_names(new, old);
        out.extend(crate::core::pod_warnings::of_template(new, old, "/spec/template", &path));
        out
    }

    fn empty(&self, object: &mut Value) {
        put(object, "/spec/replicas", 0);
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(super::scale_paths())
    }
}
