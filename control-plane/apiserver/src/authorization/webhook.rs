//! The authorization webhook: a server that decides by SubjectAccessReview, and whose answers are cached.
//!
//! Match conditions filter the requests that it gets. Its failure policy decides when it does not answer, and that
//! decision is not cached.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_access::Attributes;
use corten_cel::conditions::{Condition, all_hold};
use corten_cel::{Env, Type, Value as Cel};
use corten_meta::field_selector::FieldRequirement;
use corten_meta::labels::{Operator, Requirement};
use corten_meta::{FieldSelector, Selector, Value};
use serde_json::json;

use super::{Decision, Verdict};
use crate::metrics::{
    AUTHORIZATION_CONDITION_ERRORS, AUTHORIZATION_CONDITION_EXCLUSIONS, AUTHORIZATION_CONDITION_SECONDS,
    AUTHORIZATION_DECISIONS, AUTHORIZATION_WEBHOOK, AUTHORIZATION_WEBHOOK_FAIL_OPEN, AUTHORIZATION_WEBHOOK_SECONDS,
    Metrics,
};
use crate::outbound::Caller;

/// The maximum number of cached answers, and the maximum length of a cached review.
const MAX_CACHED: usize = 8192;
const MAX_REVIEW_LENGTH: usize = 10_000;

/// The environment of match conditions.
pub static ENV: LazyLock<Env> = LazyLock::new(|| {
    let fields = |fields: &[(&str, Type)]| -> BTreeMap<String, Type> {
        fields.iter().map(|(name, of)| ((*name).to_owned(), of.clone())).collect()
    };
    let string = || Type::String;
    let strings = || Type::list(Type::String);
    let named = |name: &str| Type::named(&format!("kubernetes.{name}"));
    let requirement = || fields(&[("key", string()), ("operator", string()), ("values", strings())]);
    let selector =
        |requirement: &str| fields(&[("rawSelector", string()), ("requirements", Type::list(named(requirement)))]);
    Env::new()
        .message("kubernetes.FieldSelectorRequirement", requirement())
        .message("kubernetes.LabelSelectorRequirement", requirement())
        .message("kubernetes.FieldSelectorAttributes", selector("FieldSelectorRequirement"))
        .message("kubernetes.LabelSelectorAttributes", selector("LabelSelectorRequirement"))
        .message(
            "kubernetes.ResourceAttributes",
            fields(&[
                ("namespace", string()),
                ("verb", string()),
                ("group", string()),
                ("version", string()),
                ("resource", string()),
                ("subresource", string()),
                ("name", string()),
                ("fieldSelector", named("FieldSelectorAttributes")),
                ("labelSelector", named("LabelSelectorAttributes")),
            ]),
        )
        .message("kubernetes.NonResourceAttributes", fields(&[("path", string()), ("verb", string())]))
        .message(
            "kubernetes.SubjectAccessReviewSpec",
            fields(&[
                ("resourceAttributes", named("ResourceAttributes")),
                ("nonResourceAttributes", named("NonResourceAttributes")),
                ("user", string()),
                ("groups", strings()),
                ("extra", Type::map(Type::String, strings())),
                ("uid", string()),
            ]),
        )
        .variable("request", named("SubjectAccessReviewSpec"))
});

/// The lifetimes of cached answers; zero disables the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub authorized: Duration,
    pub unauthorized: Duration,
    pub timeout: Duration,
}

/// The webhook's server and settings.
pub struct Webhook {
    pub name: String,
    pub caller: Caller,
    pub times: Times,
    /// The version of the review: `v1` or `v1beta1`.
    pub version: &'static str,
    /// The decision after an error: Deny or NoOpinion.
    pub on_error: Decision,
    pub conditions: Vec<Condition>,
    pub cached: Mutex<HashMap<String, (Instant, Verdict)>>,
}

impl Webhook {
    /// Returns the decision of the server.
    pub async fn review(&self, metrics: &Metrics, a: &Attributes<'_>) -> Verdict {
        let verdict = self.decide(metrics, a).await;
        let decided = match verdict.decision {
            Decision::Allow => "allowed",
            Decision::Deny => "denied",
            Decision::NoOpinion => return verdict,
        };
        metrics.add(&AUTHORIZATION_DECISIONS, &[decided, &self.name, "Webhook"]);
        verdict
    }

    async fn decide(&self, metrics: &Metrics, a: &Attributes<'_>) -> Verdict {
        let spec = spec(a);
        match self.conditions_hold(metrics, &spec) {
            Ok(true) => {}
            Ok(false) => return Verdict::new(Decision::NoOpinion, ""),
            Err(errors) => return self.failed(&errors.join(", ")),
        }
        let review_key = spec.to_string();
        if let Some(verdict) = self.known(&review_key) {
            return verdict;
        }
        let began = Instant::now();
        let answer = self.ask(&spec).await;
        let labels = [self.name.as_str(), if answer.is_ok() { "success" } else { "error" }];
        metrics.add(&AUTHORIZATION_WEBHOOK, &labels);
        metrics.took(&AUTHORIZATION_WEBHOOK_SECONDS, &labels, began.elapsed());
        match answer {
            Ok(verdict) => {
                self.keep(review_key, &verdict);
                verdict
            }
            Err(why) => {
                if self.on_error == Decision::NoOpinion {
                    metrics.add(&AUTHORIZATION_WEBHOOK_FAIL_OPEN, &labels);
                }
                self.failed(&why)
            }
        }
    }

    fn conditions_hold(&self, metrics: &Metrics, spec: &Value) -> Result<bool, Vec<String>> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        let began = Instant::now();
        let held = all_hold(self.conditions.iter(), &[("request", Cel::json(spec))]);
        let labels = [self.name.as_str(), "Webhook"];
        metrics.took(&AUTHORIZATION_CONDITION_SECONDS, &labels, began.elapsed());
        match &held {
            Ok(true) => {}
            Ok(false) => metrics.add(&AUTHORIZATION_CONDITION_EXCLUSIONS, &labels),
            Err(_) => metrics.add(&AUTHORIZATION_CONDITION_ERRORS, &labels),
        }
        held
    }

    fn failed(&self, why: &str) -> Verdict {
        tracing::error!(webhook = self.name, error = why, "Failed to make webhook authorizer request");
        Verdict::new(self.on_error, "")
    }

    async fn ask(&self, spec: &Value) -> Result<Verdict, String> {
        let mut spec = spec.clone();
        // The older version has another field for the groups.
        if self.version == "v1beta1"
            && let Some(fields) = spec.as_object_mut()
            && let Some(groups) = fields.remove("groups")
        {
            fields.insert("group".to_owned(), groups);
        }
        let review = json!({ "apiVersion": format!("authorization.k8s.io/{}", self.version),
                             "kind": "SubjectAccessReview", "metadata": {}, "spec": spec, "status": { "allowed": false } });
        let answer = self.caller.ask(review.to_string().into(), self.times.timeout).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|e| e.to_string())?;
        if !answer["status"].is_object() {
            return Err("the answer has no status".to_owned());
        }
        Ok(verdict(&answer["status"]))
    }

    fn known(&self, review_key: &str) -> Option<Verdict> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.get(review_key).filter(|(until, _)| Instant::now() < *until).map(|(_, verdict)| verdict.clone())
    }

    fn keep(&self, review_key: String, verdict: &Verdict) {
        let lasts = match verdict.decision {
            Decision::Allow => self.times.authorized,
            _ => self.times.unauthorized,
        };
        if lasts.is_zero() || review_key.len() > MAX_REVIEW_LENGTH {
            return;
        }
        let now = Instant::now();
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= MAX_CACHED {
            cached.retain(|_, (until, _)| now < *until);
        }
        if cached.len() < MAX_CACHED {
            cached.insert(review_key, (now + lasts, verdict.clone()));
        }
    }
}

/// Reads the status of a review. A status that both allows and denies is a denial.
pub(crate) fn verdict(status: &Value) -> Verdict {
    let reason = status["reason"].as_str().unwrap_or_default();
    let decision = match (status["denied"] == true, status["allowed"] == true) {
        (true, _) => Decision::Deny,
        (false, true) => Decision::Allow,
        (false, false) => Decision::NoOpinion,
    };
    Verdict::new(decision, reason)
}

/// Returns the spec of the SubjectAccessReview.
fn spec(a: &Attributes<'_>) -> Value {
    let mut spec = json!({ "user": a.user.name, "groups": a.user.groups });
    if !a.user.uid.is_empty() {
        spec["uid"] = a.user.uid.clone().into();
    }
    if !a.user.extra.is_empty() {
        spec["extra"] = json!(a.user.extra);
    }
    if !a.is_resource {
        spec["nonResourceAttributes"] = json!({ "path": a.path, "verb": a.verb });
        return spec;
    }
    let mut resource = json!({
        "namespace": a.namespace, "verb": a.verb, "group": a.group, "version": a.version,
        "resource": a.resource, "subresource": a.subresource, "name": a.name,
    });
    // An unparsable selector is left out: the review is then for the wider request.
    let fields = FieldSelector::parse(a.field_selector).unwrap_or_default();
    let requirement = |r: &FieldRequirement| json!({ "key": r.field, "operator": if r.equals { "In" } else { "NotIn" }, "values": [r.value] });
    let fields: Vec<Value> = fields.requirements().iter().map(requirement).collect();
    let labels = Selector::parse(a.label_selector).unwrap_or_else(|_| Selector::everything());
    let labels: Vec<Value> = labels.requirements().iter().filter_map(label_requirement).collect();
    for (name, requirements) in [("fieldSelector", fields), ("labelSelector", labels)] {
        if !requirements.is_empty() {
            resource[name] = json!({ "requirements": requirements });
        }
    }
    spec["resourceAttributes"] = resource;
    spec
}

/// Converts a requirement on labels to the review's format, which has no comparisons of numbers.
fn label_requirement(requirement: &Requirement) -> Option<Value> {
    let operator = match requirement.operator() {
        Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
        Operator::NotEquals | Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::GreaterThan | Operator::LessThan => return None,
    };
    let mut shown = json!({ "key": requirement.key(), "operator": operator });
    if !requirement.values().is_empty() {
        shown["values"] = json!(requirement.values());
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_access::User;
    use corten_cel::conditions::compile;

    #[test]
    fn a_review_has_all_attributes() {
        let user = User::new("jane", &["dev"]);
        let list = Attributes {
            resource: "pods",
            version: "v1",
            namespace: "n",
            field_selector: "spec.nodeName=a,status.phase!=Failed",
            label_selector: "app in (x,y),!old",
            ..Attributes::resource(&user, "list")
        };
        let review_spec = spec(&list);
        assert_eq!((&review_spec["user"], &review_spec["groups"][0]), (&json!("jane"), &json!("dev")));
        let resource = &review_spec["resourceAttributes"];
        assert_eq!(
            resource["fieldSelector"]["requirements"],
            json!([{ "key": "spec.nodeName", "operator": "In", "values": ["a"] },
                   { "key": "status.phase", "operator": "NotIn", "values": ["Failed"] }])
        );
        assert_eq!(
            resource["labelSelector"]["requirements"],
            json!([{ "key": "app", "operator": "In", "values": ["x", "y"] }, { "key": "old", "operator": "DoesNotExist" }])
        );
        let condition = |expression: &str| compile(&ENV, expression);
        let holds = |expression: &str, spec: &Value| {
            let variables = [("request", Cel::json(spec))];
            all_hold([&condition(expression)].into_iter(), &variables)
        };
        for (expression, expected) in [
            ("has(request.resourceAttributes)", Ok(true)),
            ("has(request.nonResourceAttributes)", Ok(false)),
            ("request.resourceAttributes.namespace == 'n' && request.user.startsWith('ja')", Ok(true)),
            ("request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName')", Ok(true)),
            ("!('system:masters' in request.groups)", Ok(true)),
        ] {
            assert_eq!(holds(expression, &review_spec), expected, "{expression}");
        }
        assert!(condition("request.nonsense == 1").is_err());
        assert!(condition("request.user").is_err());
        let path = Attributes { is_resource: false, path: "/metrics", ..Attributes::resource(&user, "get") };
        assert_eq!(spec(&path)["nonResourceAttributes"], json!({ "path": "/metrics", "verb": "get" }));
    }

    #[test]
    fn allowed_and_denied_together_is_a_denial() {
        for (status, decision) in [
            (json!({ "allowed": true }), Decision::Allow),
            (json!({ "allowed": false }), Decision::NoOpinion),
            (json!({ "allowed": false, "denied": true }), Decision::Deny),
            (json!({ "allowed": true, "denied": true }), Decision::Deny),
            (json!({}), Decision::NoOpinion),
        ] {
            assert_eq!(verdict(&status).decision, decision, "{status}");
        }
    }
}
