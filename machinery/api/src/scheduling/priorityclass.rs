//! PriorityClass.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, boolean, name, number, text};
use crate::check::At;
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

/// The highest value that a user may set.
const HIGHEST_USER: i64 = 1_000_000_000;

struct PriorityClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
        .cluster()
        .short(&["pc"])
        .table("Name, Value:integer, Global-Default:boolean, Age, PreemptionPolicy")
        .behaviour(PriorityClass)
}

impl Behaviour for PriorityClass {
    fn default(&self, object: &mut Value) {
        default_at(object, "/preemptionPolicy", "PreemptLowerPriority");
    }

    /// Keeps the generation at its first value.
    fn prepare_create(&self, object: &mut Value) {
        crate::defaulting::put(object, "/metadata/generation", 1);
    }

    /// Validates the fields, which are immutable.
    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let name = text(object, "/metadata/name");
        let value = number(object, "/value");
        if name.starts_with("system-") {
            let known =
                [("system-node-critical", HIGHEST_USER * 2 + 1000), ("system-cluster-critical", HIGHEST_USER * 2)];
            let problem = match known.iter().find(|(known, _)| *known == name) {
                None => Some(format!("{name} is not a known system priority class")),
                Some((_, wanted)) if *wanted != value => {
                    Some(format!("value of {name} PriorityClass must be {wanted}"))
                }
                Some(_) if boolean(object, "/globalDefault") => {
                    Some(format!("globalDefault of {name} PriorityClass must be false"))
                }
                Some(_) => None,
            };
            errors.extend(problem.map(|problem| {
                let detail = "priority class names with 'system-' prefix are reserved for system use only. error: ";
                FieldError::forbidden(&Path::root("metadata").child("name"), format!("{detail}{problem}"))
            }));
        } else if value > HIGHEST_USER {
            let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER}");
            errors.push(FieldError::forbidden(&Path::root("value"), detail));
        }
        let policy = At::object(object).get("preemptionPolicy");
        if policy.must(&mut errors) {
            policy.one_of(&mut errors, &["PreemptLowerPriority", "Never"]);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if number(new, "/value") != number(old, "/value") {
            errors.push(FieldError::forbidden(&Path::root("value"), "may not be changed in an update."));
        }
        if new["preemptionPolicy"] != old["preemptionPolicy"] {
            let path = Path::root("preemptionPolicy");
            errors.push(FieldError::invalid(&path, new["preemptionPolicy"].clone(), "field is immutable"));
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            number(object, "/value").into(),
            boolean(object, "/globalDefault").into(),
            age(object, now),
            text(object, "/preemptionPolicy").into(),
        ]
    }
}
