//! Admission webhooks: the user's servers that change or refuse writes.
//!
//! Mutating webhooks are called one after the other, by the names of their configurations and in the order written
//! there; when one changes the object, earlier ones with the reinvocation policy IfNeeded are called once more (see
//! `Reinvocation`). Validating webhooks are called concurrently. Both take the same steps: match, convert, call, read
//! the answer.
//!
//! Invariant: a write of a webhook configuration or an admission policy is never sent to a webhook, so that a broken
//! webhook can always be deleted.

mod call;
mod conditions;
mod configuration;
mod invocation;
pub mod matching;
pub mod review;

use std::time::Instant;

use corten_managed_fields::keep_managers;
use corten_meta::quote::quote;
use corten_meta::{FieldError, Status, Value};
use futures::future::{BoxFuture, join_all};

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::{Indifferent, Plugin};
use crate::metrics::{WEBHOOK_FAIL_OPEN, WEBHOOK_REJECTIONS, WEBHOOK_REQUESTS, WEBHOOK_SECONDS};
use call::{Failure, call};
use configuration::{Configurations, Webhook};
use invocation::Invocation;
use matching::invocation;

/// The kinds that configure admission themselves.
const EXEMPT: &[&str] = &[
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

fn is_exempt(a: &Attributes<'_>) -> bool {
    let kind = a.target.resource.kind();
    kind.group == configuration::GROUP && EXEMPT.contains(&kind.kind.as_str())
}

/// The name of the mutating plugin, by which its second round is kept.
const PLUGIN: &str = "MutatingAdmissionWebhook";

/// The plugin of MutatingWebhookConfigurations.
pub struct MutatingAdmissionWebhook(Configurations);

impl MutatingAdmissionWebhook {
    pub fn new() -> MutatingAdmissionWebhook {
        MutatingAdmissionWebhook(Configurations::new("mutatingwebhookconfigurations"))
    }
}

impl Plugin for MutatingAdmissionWebhook {
    /// Validates webhook configurations, which are never sent to a webhook.
    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        let kind = a.target.resource.kind();
        let is_configuration = kind.group == configuration::GROUP && kind.plural.ends_with("webhookconfigurations");
        if is_configuration && a.operation != Operation::Delete { conditions::errors(a) } else { Vec::new() }
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let hooks = self.0.current(a.target.core.objects);
        if hooks.is_empty() || is_exempt(a) {
            return Box::pin(Indifferent);
        }
        Box::pin(async move {
            a.reinvocation.begin(PLUGIN, &a.object);
            for (index, hook) in hooks.iter().enumerate() {
                mutate(a, hook, index).await?;
            }
            a.reinvocation.end(PLUGIN, &a.object);
            Ok(())
        })
    }
}

/// Calls a mutating webhook, if it matches the write, and applies its patch.
async fn mutate(a: &mut Attributes<'_>, hook: &Webhook, index: usize) -> Result<(), Status> {
    let Some(invocation) = invocation(hook, a).await? else { return Ok(()) };
    if a.reinvocation.again && !a.reinvocation.may_call_again(PLUGIN, &hook.id) {
        return Ok(());
    }
    let began = Instant::now();
    let called = ask(a, &invocation).await;
    count(a, hook, "admit", began, called.as_ref().err());
    let round = u8::from(a.reinvocation.again);
    let key = |what: &str| format!("{what}mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
    let changed = match called {
        Ok(None) => false,
        Ok(Some(patch)) => apply(a, &invocation, &patch).await?,
        Err(Failure::Refused(status)) => return Err(status),
        Err(Failure::Call(why)) if hook.fail_open => {
            tracing::warn!(webhook = hook.name, why, "a webhook could not be called; going on without it");
            a.target.context.annotate(&key("failed-open."), &hook.name);
            a.reinvocation.called(PLUGIN, hook.reinvoke.then_some(&hook.id), false);
            return Ok(());
        }
        Err(Failure::Call(why)) => return Err(failed(hook, &why)),
    };
    let note = serde_json::json!({ "configuration": hook.configuration, "webhook": hook.name, "mutated": changed });
    a.target.context.annotate(&key(""), &note.to_string());
    a.reinvocation.called(PLUGIN, hook.reinvoke.then_some(&hook.id), changed);
    Ok(())
}

/// Sends the write to a mutating webhook and returns its patch.
async fn ask(a: &Attributes<'_>, invocation: &Invocation<'_>) -> Result<Option<Value>, Failure> {
    let response = call(a, invocation, true).await?;
    match response.patch {
        Some(patch) if a.object.is_null() || a.operation == Operation::Connect => {
            let operations = patch.as_array().map_or(0, Vec::len);
            if operations == 0 {
                return Ok(None);
            }
            Err(Failure::Refused(Status::internal(format!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                quote(&invocation.hook.name)
            ))))
        }
        patch => Ok(patch),
    }
}

/// Applies a patch in the version that the webhook saw; reports whether it changed the object.
async fn apply(a: &mut Attributes<'_>, invocation: &Invocation<'_>, patch: &Value) -> Result<bool, Status> {
    if patch.as_array().is_none_or(Vec::is_empty) {
        return Ok(false);
    }
    let shown = invocation.show(a, &a.object).await?;
    let mut patched = shown.clone();
    corten_meta::patch::json_patch(&mut patched, patch).map_err(Status::internal)?;
    let mut object = invocation.read(a, patched).await?;
    if let Some(warning) = keep_managers(&mut object, &a.object) {
        a.target.context.warn(warning);
    }
    let changed = object != *a.object;
    *a.object = object;
    Ok(changed)
}

/// The plugin of ValidatingWebhookConfigurations.
pub struct ValidatingAdmissionWebhook(Configurations);

impl ValidatingAdmissionWebhook {
    pub fn new() -> ValidatingAdmissionWebhook {
        ValidatingAdmissionWebhook(Configurations::new("validatingwebhookconfigurations"))
    }
}

impl Plugin for ValidatingAdmissionWebhook {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let hooks = self.0.current(a.target.core.objects);
        if hooks.is_empty() || is_exempt(a) {
            return Box::pin(Indifferent);
        }
        Box::pin(async move {
            let mut invocations = Vec::new();
            for hook in hooks.iter() {
                invocations.extend(invocation(hook, a).await?);
            }
            let calls = invocations.iter().enumerate().map(|(index, one)| call_validating(a, one, index));
            join_all(calls).await.into_iter().collect()
        })
    }
}

async fn call_validating(a: &Attributes<'_>, invocation: &Invocation<'_>, index: usize) -> Result<(), Status> {
    let hook = invocation.hook;
    let began = Instant::now();
    let called = call(a, invocation, false).await;
    count(a, hook, "validating", began, called.as_ref().err());
    match called {
        Ok(_) => Ok(()),
        Err(Failure::Refused(status)) => Err(status),
        Err(Failure::Call(why)) if hook.fail_open => {
            tracing::warn!(webhook = hook.name, why, "a webhook could not be called; going on without it");
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            a.target.context.annotate(&key, &hook.name);
            Ok(())
        }
        Err(Failure::Call(why)) => Err(failed(hook, &why)),
    }
}

/// Counts a call of a webhook, by its result.
fn count(a: &Attributes<'_>, hook: &Webhook, step: &str, began: Instant, failure: Option<&Failure>) {
    let metrics = &a.target.core.metrics;
    let operation = a.operation.word();
    let (code, error) = match failure {
        None => ("200".to_owned(), None),
        Some(Failure::Refused(status)) => (status.code.to_string(), Some("no_error")),
        Some(Failure::Call(_)) => ("500".to_owned(), Some("calling_webhook_error")),
    };
    let passed_over = hook.fail_open && matches!(failure, Some(Failure::Call(_)));
    let rejected = if failure.is_some() && !passed_over { "true" } else { "false" };
    metrics.series(&WEBHOOK_REQUESTS, &[&code, &hook.name, operation, rejected, step]).add(1.0);
    metrics.series(&WEBHOOK_SECONDS, &[&hook.name, operation, rejected, step]).observe(began.elapsed().as_secs_f64());
    if passed_over {
        metrics.series(&WEBHOOK_FAIL_OPEN, &[&hook.name, step]).add(1.0);
    } else if let Some(error) = error {
        metrics.series(&WEBHOOK_REJECTIONS, &[error, &hook.name, operation, &code, step]).add(1.0);
    }
}

fn failed(hook: &Webhook, why: &str) -> Status {
    Status::internal(format!("failed calling webhook {}: {why}", quote(&hook.name)))
}
