//! Namespace.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;
use serde_json::json;

use crate::cells::{list, text};
use crate::defaulting::{default_at, put};
use crate::kind::objectmeta::finalizer_errors;
use crate::kind::{Behaviour, Kind, NameRule, Role};

struct Namespace;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Namespace", "namespaces")
        .cluster()
        .short(&["ns"])
        .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
        .sub("finalize", Role::Finalize, &["update"], ("", "", "Namespace"))
        .status()
        .name_rule(NameRule::Label)
        .selectable(&["status.phase"])
        .table("Name, Status=/status/phase, Age")
        .returns_deleted()
        .marked_by_time()
        .behaviour(Namespace)
}

impl Behaviour for Namespace {
    fn default(&self, object: &mut Value) {
        let name = text(object, "/metadata/name").to_string();
        if !name.is_empty() {
            default_at(object, "/metadata/labels", json!({}));
            put(object, "/metadata/labels/kubernetes.io~1metadata.name", name);
        }
        default_at(object, "/status/phase", "Active");
    }

    /// Makes a new namespace active, with a finalizer until its content is deleted.
    fn prepare_create(&self, object: &mut Value) {
        put(object, "/status", json!({"phase": "Active"}));
        let mut finalizers = list(object, "/spec/finalizers").to_vec();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push("kubernetes".into());
        }
        default_at(object, "/spec", json!({}));
        put(object, "/spec/finalizers", finalizers);
    }

    /// Keeps the finalizers of the spec, which change only through the finalize subresource.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        default_at(new, "/spec", json!({}));
        match old.pointer("/spec/finalizers") {
            Some(finalizers) => put(new, "/spec/finalizers", finalizers.clone()),
            None => {
                crate::defaulting::remove(new, "/spec/finalizers");
            }
        }
    }

    fn prepare_delete(&self, object: &mut Value, _now: Timestamp) {
        default_at(object, "/status", json!({}));
        put(object, "/status/phase", "Terminating");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let path = Path::root("spec").child("finalizers");
        let finalizers = list(object, "/spec/finalizers").iter().filter_map(Value::as_str);
        finalizers.flat_map(|f| finalizer_errors(f, &path)).collect()
    }

    fn validate_part_update(&self, _role: Role, new: &Value, _old: &Value) -> Vec<FieldError> {
        let path = Path::root("spec").child("finalizers");
        let finalizers = list(new, "/spec/finalizers").iter().filter_map(Value::as_str).enumerate();
        finalizers.flat_map(|(at, f)| finalizer_errors(f, &path.index(at))).collect()
    }

    /// Validates that the phase is Terminating exactly if the namespace is being deleted.
    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        let deleted = !text(new, "/metadata/deletionTimestamp").is_empty();
        let (wanted, empty) = if deleted { ("Terminating", "not empty") } else { ("Active", "empty") };
        let phase = text(new, "/status/phase");
        let path = Path::root("status").child("Phase");
        let detail = format!("may only be '{wanted}' if `deletionTimestamp` is {empty}");
        if phase == wanted { Vec::new() } else { vec![FieldError::invalid(&path, phase, detail)] }
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        (field == "status.phase").then(|| text(object, "/status/phase").to_string())
    }
}
