//! ReplicaSet.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, containers, format_selector, name, number};
use crate::core::pod_spec::default_template;
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind, ScalePaths};

struct ReplicaSet;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .category("all")
        .scale()
        .status()
        .generation()
        .table("Name, Desired:integer, Current:integer, Ready:integer, Age; Containers, Images, Selector")
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

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [names, images] = containers(object, "/spec/template/spec");
        vec![
            name(object),
            number(object, "/spec/replicas").into(),
            number(object, "/status/replicas").into(),
            number(object, "/status/readyReplicas").into(),
            age(object, now),
            names,
            images,
            format_selector(object.pointer("/spec/selector")).into(),
        ]
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(super::scale_paths())
    }
}
