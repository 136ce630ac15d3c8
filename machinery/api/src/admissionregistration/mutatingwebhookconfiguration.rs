//! MutatingWebhookConfiguration.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::webhook;
use crate::kind::{Behaviour, Kind};

struct MutatingWebhookConfiguration;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
        .cluster()
        .category("api-extensions")
        .generation()
        .counts_empty()
        .conditional_update()
        .table("Name, Webhooks:integer, Age")
        .behaviour(MutatingWebhookConfiguration)
}

impl Behaviour for MutatingWebhookConfiguration {
    fn rules(&self) -> &'static str {
        ".admissionregistration.v1.MutatingWebhookConfiguration"
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        super::reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        webhook::default_webhooks(object, true);
    }

    fn validate_present(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        crate::rules::validate(self.rules(), object, Some(old))
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        webhook::cells(object, now)
    }
}
