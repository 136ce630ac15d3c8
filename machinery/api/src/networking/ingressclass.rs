//! IngressClass.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use super::validation::validate_reference;
use crate::cells::{age, text};
use crate::check::{At, Errors};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};
use crate::validation::domain_prefixed_path;

struct IngressClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses")
        .cluster()
        .generation()
        .table("Name, Controller, Parameters, Age")
        .behaviour(IngressClass)
}

impl Behaviour for IngressClass {
    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/parameters/scope", "Cluster");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = At::object(object).get("spec");
        let mut errors = Errors::new();
        spec.get("controller").at_most_bytes(&mut errors, 250);
        domain_prefixed_path(&spec.get("controller"), &mut errors);
        spec.get("parameters").when_object(&mut errors, |parameters, e| {
            validate_reference(parameters, e);
            let scope = parameters.get("scope");
            let namespace = parameters.get("namespace");
            if !scope.is_set() {
                e.push(scope.required(""));
            }
            scope.one_of_texts(e, &["Cluster", "Namespace"]);
            match (scope.text(), namespace.is_set()) {
                ("Namespace", false) => e.push(namespace.required("`parameters.scope` is set to 'Namespace'")),
                ("Namespace", true) => namespace.follows_also_empty(e, names::dns1123_label),
                ("Cluster", true) => e.push(namespace.forbidden("`parameters.scope` is set to 'Cluster'")),
                _ => {}
            }
        });
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["spec"]["controller"] == old["spec"]["controller"] {
            return Vec::new();
        }
        let path = Path::root("spec").child("controller");
        vec![FieldError::invalid(&path, new["spec"]["controller"].clone(), "field is immutable")]
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
