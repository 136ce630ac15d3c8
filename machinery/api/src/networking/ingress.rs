//! Ingress.

use corten_meta::Value;
use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use jiff::Timestamp;

use super::validation;
use crate::cells::{age, list, name, or, text};
use crate::kind::{Behaviour, Kind};

struct Ingress;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses")
        .short(&["ing"])
        .status()
        .generation()
        .stored_at("/registry/ingress")
        .table("Name, Class, Hosts, Address, Ports, Age")
        .behaviour(Ingress)
}

impl Behaviour for Ingress {
    fn rules(&self) -> &'static str {
        ".networking.v1.Ingress"
    }

    fn validate_present(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        crate::rules::validate(self.rules(), object, Some(old))
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_ingress_create(object)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_ingress_status(new, old)
    }

    fn warnings(&self, ingress: &Value, old: Option<&Value>) -> Vec<String> {
        const CLASS: &str = "kubernetes.io/ingress.class";
        let is_stated =
            ingress.pointer("/metadata/annotations").is_some_and(|annotations| annotations.get(CLASS).is_some());
        let is_old = old.is_none() && is_stated && crate::defaulting::absent(ingress, "/spec/ingressClassName");
        let why = format!("annotation {} is deprecated, please use 'spec.ingressClassName' instead", quote(CLASS));
        is_old.then_some(why).into_iter().collect()
    }

    fn status_warnings(&self, ingress: &Value) -> Vec<String> {
        crate::address_warnings::load_balancers(ingress)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports = if list(object, "/spec/tls").is_empty() { "80" } else { "80, 443" };
        vec![
            name(object),
            or(text(object, "/spec/ingressClassName"), "<none>").into(),
            hosts(object).into(),
            crate::core::service::load_balancer(object).into(),
            ports.into(),
            age(object, now),
        ]
    }
}

/// Returns the first three hosts; rules without a host also count.
fn hosts(object: &Value) -> String {
    let rules = list(object, "/spec/rules");
    let hosts: Vec<&str> = rules.iter().map(|r| text(r, "/host")).filter(|h| !h.is_empty()).collect();
    match hosts.len() {
        0 => "*".to_string(),
        1..=3 => hosts.join(","),
        _ => format!("{} + {} more...", hosts[..3].join(","), rules.len() - 3),
    }
}
