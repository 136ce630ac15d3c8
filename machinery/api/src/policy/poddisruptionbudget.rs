//! PodDisruptionBudget.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, name, number};
use crate::kind::{Behaviour, Kind, NameRule};

struct PodDisruptionBudget;

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
    fn rules(&self) -> &'static str {
        ".policy.v1.PodDisruptionBudget"
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
