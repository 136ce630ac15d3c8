//! APIService.

use corten_meta::field::{FieldError, Path};
use corten_meta::quote::quote;
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, list, name, number, text};
use crate::check::{At, Errors};
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind, NameRule};

struct ApiService;

/// Returns the declaration.
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

    /// Validates the object; its name must be `<version>.<group>`, also as a generated name's prefix.
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let wanted = format!("{}.{}", text(object, "/spec/version"), text(object, "/spec/group"));
        for field in ["generateName", "name"] {
            let name = text(object, &format!("/metadata/{field}"));
            if name != wanted && !name.is_empty() && names::path_segment_name(name).is_empty() {
                let detail = format!("must be `spec.version+\".\"+spec.group`: {}", quote(&wanted));
                errors.push(FieldError::invalid(&Path::root("metadata").child(field), name, detail));
            }
        }
        let spec = At::object(object).get("spec");
        let group = spec.get("group");
        let version = spec.get("version");
        let service = spec.get("service");
        if group.is_empty() && version.text() != "v1" {
            errors.push(group.required("only v1 may have an empty group and it better be legacy kube"));
        }
        group.follows(&mut errors, names::dns1123_subdomain);
        version.follows_also_empty(&mut errors, names::dns1035_label);
        for (field, max) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
            let value = number(object, &format!("/spec/{field}"));
            if value <= 0 || value > max {
                let path = Path::root("spec").child(field);
                errors.push(FieldError::invalid(&path, value, format!("must be positive and less than {max}")));
            }
        }
        validate_backend(&spec, &service, &mut errors);
        errors
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

/// Validates the backend: this server, which needs no certificate, or a service that has a CA bundle or skips
/// verification.
fn validate_backend(spec: &At<'_>, service: &At<'_>, errors: &mut Errors) {
    let bundle = spec.get("caBundle");
    let insecure = spec.get("insecureSkipTLSVerify");
    if !service.is_object() {
        if !bundle.is_empty() {
            let size = format!("{} bytes", bundle.text().trim_end_matches('=').len() * 3 / 4);
            errors.push(FieldError::invalid(&bundle.path, size, "local APIServices may not have a caBundle"));
        }
        if insecure.is_true() {
            errors.push(insecure.invalid("local APIServices may not have insecureSkipTLSVerify"));
        }
        return;
    }
    service.get("namespace").must(errors);
    service.get("name").must(errors);
    let port = service.get("port");
    let messages = names::port_number(port.number().unwrap_or_default());
    if !messages.is_empty() {
        errors.push(port.invalid(format!("port is not valid: {}", messages.join(", "))));
    }
    if insecure.is_true() && !bundle.is_empty() {
        errors.push(insecure.invalid("may not be true if caBundle is present"));
    }
}
