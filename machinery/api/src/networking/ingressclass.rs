//! IngressClass.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, text};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

struct IngressClass;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses")
        .cluster()
        .generation()
        .table("Name, Controller, Parameters, Age")
        .behaviour(IngressClass)
}

impl Behaviour for IngressClass {
    fn rules(&self) -> &'static str {
        ".networking.v1.IngressClass"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/parameters/scope", "Cluster");
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let annotation = "/metadata/annotations/ingressclass.kubernetes.io~1is-default-class";
        let default = if text(object, annotation) == "true" { " (default)" } else { "" };
        let parameters = match object.pointer("/spec/parameters").filter(|p| p.is_object()) {
            Some(p) => {
                let group = text(p, "/apiGroup");
                let dot = if group.is_empty() { "" } else { "." };
                format!("{}{dot}{group}/{}", text(p, "/kind"), text(p, "/name"))
            }
            None => "<none>".to_string(),
        };
        vec![
            format!("{}{default}", text(object, "/metadata/name")).into(),
            text(object, "/spec/controller").into(),
            parameters.into(),
            age(object, now),
        ]
    }
}
