//! The webhooks of all configurations of a kind, decoded once for each state of the cache.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use corten_cel::conditions::Condition;
use corten_meta::{Selector, Value};

use super::conditions;
use crate::client_config::ClientConfig;
use crate::door::Objects;
use crate::rules::Rule;

pub const GROUP: &str = "admissionregistration.k8s.io";

pub struct Webhook {
    /// The name of its configuration.
    pub configuration: String,
    pub name: String,
    /// The id of the webhook, unique within its kind.
    pub id: String,
    pub client: Result<ClientConfig, String>,
    pub rules: Vec<Rule>,
    /// Whether requests for other versions of the same resource match, too.
    pub equivalent: bool,
    pub namespaces: Result<Selector, String>,
    pub objects: Result<Selector, String>,
    /// Whether a write passes when the webhook cannot be called.
    pub fail_open: bool,
    pub timeout: Duration,
    /// Whether it may be called in a dry run.
    pub dry_run: bool,
    /// The first version of AdmissionReview that both the webhook and this server know.
    pub review_version: Option<&'static str>,
    /// Whether it is called again after later changes of the object.
    pub reinvoke: bool,
    /// Whether it may change the object; only such webhooks have a reinvocation policy.
    pub mutates: bool,
    /// The match conditions, which must hold for it to be called.
    pub conditions: Vec<Condition>,
}

impl Webhook {
    fn from_value(configuration: &str, index: usize, hook: &Value) -> Webhook {
        let string = |key: &str| hook[key].as_str().unwrap_or_default();
        let list = |key: &str| hook[key].as_array().cloned().unwrap_or_default();
        let selector = |key: &str| match &hook[key] {
            Value::Null => Ok(Selector::everything()),
            selector => Selector::from_label_selector(selector).map_err(|e| e.to_string()),
        };
        let versions = list("admissionReviewVersions");
        let spoken = versions.iter().filter_map(Value::as_str).find_map(|version| match version {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        });
        Webhook {
            configuration: configuration.to_owned(),
            name: string("name").to_owned(),
            id: format!("{configuration}/{}/{index}", string("name")),
            client: ClientConfig::from_value(&hook["clientConfig"]),
            rules: list("rules").iter().map(Rule::from_value).collect(),
            equivalent: string("matchPolicy") != "Exact",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            fail_open: string("failurePolicy") == "Ignore",
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10)),
            dry_run: matches!(string("sideEffects"), "None" | "NoneOnDryRun"),
            review_version: spoken,
            reinvoke: string("reinvocationPolicy") == "IfNeeded",
            mutates: !string("reinvocationPolicy").is_empty(),
            conditions: conditions::read(hook),
        }
    }
}

/// All webhooks of one kind of configuration.
pub struct Configurations {
    plural: &'static str,
    decoded: Mutex<Option<(u64, Arc<[Webhook]>)>>,
}

impl Configurations {
    pub fn new(plural: &'static str) -> Configurations {
        Configurations { plural, decoded: Mutex::default() }
    }

    /// Returns the current webhooks, in the order in which they are called.
    pub fn current(&self, objects: &dyn Objects) -> Arc<[Webhook]> {
        let mut decoded = self.decoded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let revision = objects.revision(GROUP, self.plural);
        if let Some((known, hooks)) = &*decoded
            && Some(*known) == revision
        {
            return Arc::clone(hooks);
        }
        let Some(snapshot) = objects.snapshot(GROUP, self.plural) else { return Arc::default() };
        // The order of the names is the order of the configurations.
        let hooks = snapshot.objects.iter().flat_map(|(name, object)| {
            let webhooks = object.value()["webhooks"].as_array().cloned().unwrap_or_default();
            let one = |(index, hook): (usize, &Value)| Webhook::from_value(name, index, hook);
            webhooks.iter().enumerate().map(one).collect::<Vec<_>>()
        });
        let hooks: Arc<[Webhook]> = hooks.collect();
        *decoded = Some((snapshot.revision, Arc::clone(&hooks)));
        hooks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_webhook_is_read() {
        let hook = Webhook::from_value(
            "c",
            2,
            &json!({
                "name": "a.b.c", "clientConfig": { "url": "https://h/x" }, "failurePolicy": "Ignore",
                "matchPolicy": "Exact", "sideEffects": "Some", "timeoutSeconds": 3, "reinvocationPolicy": "IfNeeded",
                "admissionReviewVersions": ["v2", "v1beta1", "v1"],
                "objectSelector": { "matchLabels": { "a": "b" } },
                "matchConditions": [{ "name": "n", "expression": "true" }],
            }),
        );
        assert_eq!((hook.id.as_str(), hook.review_version), ("c/a.b.c/2", Some("v1beta1")));
        assert!(hook.fail_open && hook.reinvoke && !hook.equivalent && !hook.dry_run);
        assert!(hook.namespaces.unwrap().is_empty() && !hook.objects.unwrap().is_empty());
        assert_eq!(hook.timeout, Duration::from_secs(3));
        assert!(matches!(hook.conditions.as_slice(), [Ok(_)]));
    }
}
