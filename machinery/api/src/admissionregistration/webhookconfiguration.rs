//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::webhook::default_webhooks;
use super::{GROUP, reserved_name};
use crate::kind::{Behaviour, Kind};

/// A configuration of webhooks that may change objects, or only validate them.
struct WebhookConfiguration {
    rules: &'static str,
    mutating: bool,
}

/// Returns the declaration of the mutating kind.
pub fn mutating() -> Kind {
    let rules = ".admissionregistration.v1.MutatingWebhookConfiguration";
    kind("MutatingWebhookConfiguration", WebhookConfiguration { rules, mutating: true })
}

/// Returns the declaration of the validating kind.
pub fn validating() -> Kind {
    let rules = ".admissionregistration.v1.ValidatingWebhookConfiguration";
    kind("ValidatingWebhookConfiguration", WebhookConfiguration { rules, mutating: false })
}

fn kind(kind: &str, behaviour: WebhookConfiguration) -> Kind {
    Kind::new(GROUP, "v1", kind, &format!("{}s", kind.to_lowercase()))
        .cluster()
        .category("api-extensions")
        .generation()
        .counts_empty()
        .conditional_update()
        .table("Name, Webhooks:integer=count(/webhooks), Age")
        .behaviour(behaviour)
}

impl Behaviour for WebhookConfiguration {
    fn rules(&self) -> &'static str {
        self.rules
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_webhooks(object, self.mutating);
    }

    fn validate_present(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        crate::rules::validate(self.rules, object, Some(old))
    }
}
