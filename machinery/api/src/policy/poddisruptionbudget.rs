//! PodDisruptionBudget.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::apps::validation::at_most_all;
use crate::cells::{age, name, number};
use crate::check::{At, Errors};
use crate::defaulting::absent;
use crate::kind::{Behaviour, Kind, NameRule};

struct PodDisruptionBudget;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
        .short(&["pdb"])
        .status()
        .generation()
        .conditional_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Min Available, Max Unavailable, Allowed Disruptions:integer, Age")
        .name_rule(NameRule::PathSegment)
        .behaviour(PodDisruptionBudget)
}

impl Behaviour for PodDisruptionBudget {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = Path::root("spec");
        let mut errors = Vec::new();
        if !absent(object, "/spec/minAvailable") && !absent(object, "/spec/maxUnavailable") {
            let detail = "minAvailable and maxUnavailable cannot be both set";
            errors.push(FieldError::invalid(&spec, object["spec"].clone(), detail));
        }
        for field in ["minAvailable", "maxUnavailable"] {
            let quantity = At::new(&object["spec"][field], &spec.child(field));
            errors.extend(crate::validation::int_or_percent(quantity.value, &quantity.path));
            at_most_all(&quantity, &mut errors);
        }
        errors.extend(crate::validation::label_selector(&object["spec"]["selector"], &spec.child("selector")));
        let policy = At::object(object).get("spec").get("unhealthyPodEvictionPolicy");
        policy.one_of(&mut errors, &["AlwaysAllow", "IfHealthyBudget"]);
        errors
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        let status = At::object(new).get("status");
        let mut errors = Errors::new();
        crate::validation::conditions(&status.get("conditions"), &mut errors);
        for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
            status.get(field).nonnegative(&mut errors);
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let quantity = |field: &str| match object.pointer(field) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => "N/A".to_string(),
        };
        vec![
            name(object),
            quantity("/spec/minAvailable").into(),
            quantity("/spec/maxUnavailable").into(),
            number(object, "/status/disruptionsAllowed").into(),
            age(object, now),
        ]
    }
}
