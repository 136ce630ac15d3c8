//! Admission policies: rules about writes in CEL, kept in the cluster and evaluated in this process.
//!
//! A policy says what; a binding says where, and with which parameters. The steps of both kinds of policy: match the
//! policy, match each binding, find the parameters, evaluate. An error on the way is the failure policy's to decide.
//!
//! Invariant: a write of a policy, a binding or a webhook configuration is never judged by a policy, so that a wrong
//! one can always be taken away.

mod compile;
mod definition;
mod expressions;
mod matching;
mod mutating;
mod params;
pub mod scope;
mod status;
mod type_checking;
mod validating;

pub use expressions::Expressions;
pub use mutating::MutatingAdmissionPolicy;
pub use status::run as follow_policies;
pub use validating::ValidatingAdmissionPolicy;

use corten_cel::{MATCH_CONDITIONS_BUDGET, Value as Cel};
use corten_meta::quote::quote;

use self::definition::Policy;
use self::scope::Scope;
use super::attributes::Attributes;

/// Policies and their bindings, and questions about who somebody is and what one may do: without an
/// answer to them little else would work.
fn is_exempt(a: &Attributes<'_>) -> bool {
    let kind = &a.target.resource.kind;
    let is_question = matches!(kind.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io");
    let is_policy = kind.group == definition::GROUP && kind.kind.contains("AdmissionPolicy");
    is_policy || is_question && kind.plural.ends_with("reviews")
}

/// Whether all match conditions of a policy hold; the error is a sentence.
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
            // One that does not hold decides, whatever went wrong with others.
            Ok(_) => return Ok(false),
            Err(error) => failed = failed.or(Some(format!("matchCondition {}: {error}", quote(name)))),
        }
    }
    failed.map_or(Ok(true), Err)
}
