//! APIService.

use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, list, name, text};
use crate::check::{At, Errors};
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind, NameRule};
use crate::rules::Site;

struct ApiService;

pub fn kind() -> Kind {
    Kind::new("apiregistration.k8s.io", "v1", "APIService", "apiservices")
        .cluster()
        .category("api-extensions")
        .status()
        .status_without_rows()
        .status_takes(&["uid", "generateName", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"])
        .conditional_update()
        .name_rule(NameRule::Own)
        .stored_at("/registry/apiregistration.k8s.io/apiservices")
        .table("Name, Service, Available, Age")
        .behaviour(ApiService)
}

impl Behaviour for ApiService {
    fn rules(&self) -> &'static str {
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/service/port", 443);
    }

    /// Makes a local APIService available at once.
    fn prepare_create(&self, object: &mut Value) {
        if object.pointer("/spec/service").is_some_and(Value::is_object) {
            return;
        }
        let now = text(object, "/metadata/creationTimestamp").to_string();
        let local = serde_json::json!({"type": "Available", "status": "True", "lastTransitionTime": now,
            "reason": "Local", "message": "Local APIServices are always available"});
        put(object, "/status", serde_json::json!({"conditions": [local]}));
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        let mut errors = Errors::new();
        for condition in At::object(new).get("status").get("conditions").items() {
            let status = condition.get("status");
            if !["True", "False", "Unknown"].contains(&status.text()) {
                errors.push(status.not_supported(&["True", "False", "Unknown"]));
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

/// Validates the name, which must be `<version>.<group>`, also as a generated name's prefix.
pub(crate) fn api_service_name(site: &Site<'_, '_>, errors: &mut Errors) {
    let wanted = format!("{}.{}", text(site.root, "/spec/version"), text(site.root, "/spec/group"));
    let name = site.at;
    if name.text() != wanted && !name.is_empty() && names::path_segment_name(name.text()).is_empty() {
        errors.push(name.invalid(format!("must be `spec.version+\".\"+spec.group`: {}", quote(&wanted))));
    }
}

/// Validates that this server, which needs no certificate, has none.
pub(crate) fn no_bundle(bundle: &At<'_>, errors: &mut Errors) {
    if !bundle.is_empty() {
        let size = format!("{} bytes", bundle.text().trim_end_matches('=').len() * 3 / 4);
        errors.push(FieldError::invalid(&bundle.path, size, "local APIServices may not have a caBundle"));
    }
}

pub(crate) fn service_port(port: &At<'_>, errors: &mut Errors) {
    let messages = names::port_number(port.number().unwrap_or_default());
    if !messages.is_empty() {
        errors.push(port.invalid(format!("port is not valid: {}", messages.join(", "))));
    }
}
