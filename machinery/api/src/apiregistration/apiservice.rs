//! APIService.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, list, name, number, text};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind, NameRule};

struct ApiService;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apiregistration.k8s.io", "v1", "APIService", "apiservices")
        .cluster()
        .category("api-extensions")
        .status()
        .conditional_update()
        .name_rule(NameRule::Own)
        .stored_at("/registry/apiregistration.k8s.io/apiservices")
        .table("Name, Service, Available, Age")
        .behaviour(ApiService)
}

impl Behaviour for ApiService {
    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/service/port", 443);
    }

    /// The name is the version and the group it serves.
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let name = text(object, "/metadata/name");
        let wanted = format!("{}.{}", text(object, "/spec/version"), text(object, "/spec/group"));
        if name != wanted {
            let detail = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
            errors.push(FieldError::invalid(&Path::root("metadata").child("name"), name, detail));
        }
        for (field, max) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
            let value = number(object, &format!("/spec/{field}"));
            if value <= 0 || value > max {
                let path = Path::root("spec").child(field);
                errors.push(FieldError::invalid(&path, value, format!("must be positive and less than {max}")));
            }
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let service = match object.pointer("/spec/service").filter(|s| s.is_object()) {
            Some(s) => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
            None => "Local".to_string(),
        };
        let available = list(object, "/status/conditions").iter().find(|c| text(c, "/type") == "Available");
        let status = match available {
            Some(c) if text(c, "/status") != "True" && !text(c, "/reason").is_empty() => {
                format!("{} ({})", text(c, "/status"), text(c, "/reason"))
            }
            Some(c) => text(c, "/status").to_string(),
            None => "Unknown".to_string(),
        };
        vec![name(object), service.into(), status.into(), age(object, now)]
    }
}
