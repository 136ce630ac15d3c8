//! PriorityClass.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

use crate::cells::{boolean, text};
use crate::check::Errors;
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};
use crate::rules::Site;

/// The highest value that a user may set.
const HIGHEST_USER: i64 = 1_000_000_000;

struct PriorityClass;

pub fn kind() -> Kind {
    Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
        .cluster()
        .short(&["pc"])
        .table(
            "Name, Value:integer=number(/value), Global-Default:boolean=bool(/globalDefault), Age, \
             PreemptionPolicy=/preemptionPolicy",
        )
        .behaviour(PriorityClass)
}

impl Behaviour for PriorityClass {
    fn rules(&self) -> &'static str {
        ".scheduling.v1.PriorityClass"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/preemptionPolicy", "PreemptLowerPriority");
    }

    /// Keeps the generation at its first value.
    fn prepare_create(&self, object: &mut Value) {
        crate::defaulting::put(object, "/metadata/generation", 1);
    }
}

/// Validates the value: the highest ones are those of the system's own classes.
pub(crate) fn priority_value(site: &Site<'_, '_>, errors: &mut Errors) {
    let name = text(site.root, "/metadata/name");
    let value = site.at.number().unwrap_or_default();
    if !name.starts_with("system-") {
        if value > HIGHEST_USER {
            let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER}");
            errors.push(site.at.forbidden(detail));
        }
        return;
    }
    let known = [("system-node-critical", HIGHEST_USER * 2 + 1000), ("system-cluster-critical", HIGHEST_USER * 2)];
    let problem = match known.iter().find(|(known, _)| *known == name) {
        None => format!("{name} is not a known system priority class"),
        Some((_, wanted)) if *wanted != value => format!("value of {name} PriorityClass must be {wanted}"),
        Some(_) if boolean(site.root, "/globalDefault") => {
            format!("globalDefault of {name} PriorityClass must be false")
        }
        Some(_) => return,
    };
    let detail = "priority class names with 'system-' prefix are reserved for system use only. error: ";
    errors.push(FieldError::forbidden(&Path::root("metadata").child("name"), format!("{detail}{problem}")));
}
