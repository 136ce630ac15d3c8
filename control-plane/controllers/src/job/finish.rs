//! The end of a Job: enough successes, too many failures, the active deadline, or a rule of the pod failure policy.

use corten_api::k8s_openapi::api::batch::v1::{JobCondition, PodFailurePolicyRule};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Pass;
use super::indexes::Indexes;
use crate::metrics;
use crate::runtime::{Action, PodRow, decode};
use crate::workload::condition::{self, count};
use crate::workload::pods;

const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
const FAILURE_TARGET: &str = "FailureTarget";

/// The outcome of a Job: decided now, final when its last pod has terminated.
pub(super) struct Ending {
    failed: bool,
    reason: String,
    message: String,
}

impl Ending {
    fn failure(reason: &str, message: impl Into<String>) -> Option<Ending> {
        Some(Ending { failed: true, reason: reason.to_owned(), message: message.into() })
    }

    fn success(reason: &str, message: impl Into<String>) -> Option<Ending> {
        Some(Ending { failed: false, reason: reason.to_owned(), message: message.into() })
    }
}

impl Pass<'_> {
    /// Decides the outcome. An earlier decision stays; otherwise failures are checked before successes.
    pub(super) fn outcome(&self) -> Option<Ending> {
        self.decided().or_else(|| self.fails()).or_else(|| self.succeeds())
    }

    pub(super) fn decided(&self) -> Option<Ending> {
        let holds =
            |kind: &str| condition::find(&self.status.conditions, kind).filter(|condition| condition.status == "True");
        let ending = |condition: &JobCondition, failed| Ending {
            failed,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        };
        holds(FAILURE_TARGET).map(|c| ending(c, true)).or_else(|| holds(SUCCESS_CRITERIA_MET).map(|c| ending(c, false)))
    }

    fn fails(&self) -> Option<Ending> {
        if let Some(message) = self.unforgivable() {
            return Ending::failure("PodFailurePolicy", message);
        }
        if self.is_past_backoff_limit() {
            return Ending::failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if let (Some(deadline), Some(started)) = (self.spec.active_deadline_seconds, &self.status.start_time)
            && !self.spec.suspend.unwrap_or(false)
            && self.now.duration_since(started.0).as_secs() >= deadline
        {
            return Ending::failure("DeadlineExceeded", "Job was active longer than specified deadline");
        }
        if self.is_indexed() && self.spec.backoff_limit_per_index.is_some() {
            let failed = self.failed_indexes();
            if self.spec.max_failed_indexes.is_some_and(|most| failed.len() > most) {
                return Ending::failure(
                    "MaxFailedIndexesExceeded",
                    "Job has exceeded the specified maximal number of failed indexes",
                );
            }
            let ended = failed.len().saturating_add(self.completed().len());
            if failed.len() > 0 && ended >= self.spec.completions.unwrap_or(0) {
                return Ending::failure("FailedIndexes", "Job has failed indexes");
            }
        }
        None
    }

    fn succeeds(&self) -> Option<Ending> {
        if let Some(rule) = self.met_success_rule() {
            return Ending::success("SuccessPolicy", format!("Matched rules at index {rule}"));
        }
        let done = match self.spec.completions {
            Some(completions) => self.successes() >= completions,
            // A work queue is complete when one pod has succeeded and the others have terminated.
            None => self.successes() > 0 && self.active().next().is_none(),
        };
        if done { Ending::success("CompletionsReached", "Reached expected number of succeeded pods") } else { None }
    }

    fn is_past_backoff_limit(&self) -> bool {
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failures() > limit {
            return true;
        }
        let restarts_in_place =
            self.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("OnFailure");
        let running = self.active().filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"));
        let total = running.map(|pod| pod.facts.all_restarts).fold(0, i32::saturating_add);
        restarts_in_place && if limit == 0 { total > 0 } else { total >= limit }
    }

    /// Returns the first rule of the pod failure policy that a failed pod matches.
    fn rule_for<'s>(&'s self, pod: &Pod) -> Option<(usize, &'s PodFailurePolicyRule)> {
        let rules = &self.spec.pod_failure_policy.as_ref()?.rules;
        rules.iter().enumerate().find(|(_, rule)| meets(rule, pod))
    }

    /// Returns the action of that rule. The pod is decoded only if there are rules.
    pub(super) fn action_for(&self, pod: &PodRow) -> Option<&str> {
        self.spec.pod_failure_policy.as_ref()?;
        self.rule_for(&decode(&pod.object)?).map(|(_, rule)| rule.action.as_str())
    }

    pub(super) fn is_ignored(&self, pod: &PodRow) -> bool {
        self.action_for(pod) == Some("Ignore")
    }

    fn unforgivable(&self) -> Option<String> {
        self.spec.pod_failure_policy.as_ref()?;
        let mut failed: Vec<&PodRow> = self.pods.iter().filter(|pod| pods::phase(pod) == "Failed").collect();
        failed.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        failed.into_iter().find_map(|row| {
            let (name, pod) = (row.object.key(), &decode::<Pod>(&row.object)?);
            let (index, rule) = self.rule_for(pod).filter(|(_, rule)| rule.action == "FailJob")?;
            let detail = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
                (Some(codes), _) => {
                    let (container, code) = failing_container(pod, codes.container_name.as_deref(), &codes.operator, &codes.values)?;
                    format!("Container {container} for pod {name} failed with exit code {code} matching FailJob rule at index {index}")
                }
                (None, Some(patterns)) => {
                    let kind = patterns.iter().find(|pattern| pods::condition(pod, &pattern.type_).is_some()).map(|p| p.type_.clone())?;
                    format!("Pod {name} has condition {kind} matching FailJob rule at index {index}")
                }
                (None, None) => return None,
            };
            Some(detail)
        })
    }

    fn met_success_rule(&self) -> Option<usize> {
        let rules = &self.spec.success_policy.as_ref().filter(|_| self.is_indexed())?.rules;
        let completed = self.completed();
        rules.iter().position(|rule| {
            let wanted: Option<Indexes> = rule.succeeded_indexes.as_deref().map(Indexes::parse);
            let met = wanted.as_ref().map_or(completed.len(), |wanted| completed.common(wanted).len());
            let needed = rule.succeeded_count.or(wanted.as_ref().map(Indexes::len)).unwrap_or(i32::MAX);
            met >= needed
        })
    }

    /// Writes the decision and, once the last pod has terminated and is counted, the final condition.
    pub(super) fn end(&mut self, ending: Ending) {
        let interim = if ending.failed { FAILURE_TARGET } else { SUCCESS_CRITERIA_MET };
        let held = !self.last_failed().is_empty();
        self.set_condition(interim, "True", &ending.reason, &ending.message);
        let lists = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let uncounted = lists.succeeded.into_iter().chain(lists.failed).flatten().next().is_some();
        if held || uncounted || self.active().next().is_some() || self.terminating() > 0 {
            return;
        }
        let last = if ending.failed { "Failed" } else { "Complete" };
        self.set_condition(last, "True", &ending.reason, &ending.message);
        let labels =
            [self.mode(), if ending.failed { "failed" } else { "succeeded" }.into(), ending.reason.as_str().into()];
        self.plan.count(&metrics::JOBS_FINISHED, labels, 1.0);
        self.status.active = count(0);
        if ending.failed {
            self.plan.push(Action::warning(self.job, &ending.reason, ending.message));
        } else {
            // The clock may have been set back since the start.
            let started = self.status.start_time.as_ref().map_or(self.now, |time| time.0);
            self.status.completion_time = Some(Time(self.now.max(started)));
            self.plan.push(Action::normal(self.job, "Completed", "Job completed"));
        }
    }
}

fn meets(rule: &PodFailurePolicyRule, pod: &Pod) -> bool {
    if let Some(codes) = &rule.on_exit_codes {
        return failing_container(pod, codes.container_name.as_deref(), &codes.operator, &codes.values).is_some();
    }
    rule.on_pod_conditions.iter().flatten().any(|pattern| {
        let status = pattern.status.as_deref().unwrap_or("True");
        pods::condition(pod, &pattern.type_).is_some_and(|condition| condition.status == status)
    })
}

/// Returns the first container that failed with an exit code that the requirement matches.
fn failing_container(pod: &Pod, only: Option<&str>, operator: &str, values: &[i32]) -> Option<(String, i32)> {
    let status = pod.status.clone()?;
    let all = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
    all.filter(|container| only.is_none_or(|name| name == container.name)).find_map(|container| {
        let code = container.state?.terminated?.exit_code;
        let named = values.contains(&code);
        let met = code != 0 && if operator == "In" { named } else { !named };
        met.then_some((container.name, code))
    })
}
