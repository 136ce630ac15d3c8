//! Admission policies: rules about writes in CEL, stored in the cluster and evaluated in this process.
//!
//! A policy has the rules; a binding has the resources that they apply to, and the parameters. Both kinds of policy
//! take the same steps: match the policy, match each binding, find the parameters, evaluate. The failure policy decides
//! about an error of any step.
//!
//! Invariant: a write of a policy, a binding or a webhook configuration is never validated by a policy, so that a wrong
//! policy can always be deleted.

mod compile;
mod definition;
mod expressions;
mod matching;
mod mutating;
mod params;
mod scope;
mod type_checking;
mod validating;

pub use expressions::Expressions;
pub use mutating::MutatingAdmissionPolicy;
pub use type_checking::warnings as type_warnings;
pub use validating::ValidatingAdmissionPolicy;

use corten_cel::{MATCH_CONDITIONS_BUDGET, Value as Cel};
use corten_meta::quote::quote;

use self::definition::Policy;
use self::scope::Scope;
use super::attributes::Attributes;

/// Reports whether a write is exempt: policies and their bindings, and reviews of authentication and authorization,
/// without which little else would work.
fn is_exempt(a: &Attributes<'_>) -> bool {
    let kind = a.target.resource.kind();
    let is_question = matches!(kind.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io");
    let is_policy = kind.group == definition::GROUP && kind.kind.contains("AdmissionPolicy");
    is_policy || is_question && kind.plural.ends_with("reviews")
}

/// Reports whether all match conditions of a policy hold; the error is a sentence.
fn conditions_hold(policy: &Policy, scope: &Scope<'_>) -> Result<bool, String> {
    let mut budget = MATCH_CONDITIONS_BUDGET;
    let mut failed = None;
    for (name, compiled) in &policy.conditions {
        let value = match compiled {
            Ok(program) => scope.eval(program, &mut budget).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        match value {
            Ok(Cel::Bool(true)) => {}
            // A condition that does not hold decides, even if others fail with an error.
            Ok(_) => return Ok(false),
            Err(error) => failed = failed.or(Some(format!("matchCondition {}: {error}", quote(name)))),
        }
    }
    failed.map_or(Ok(true), Err)
}
