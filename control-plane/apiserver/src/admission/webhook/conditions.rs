//! The match conditions of a webhook: expressions that must all hold for it to be called.

use corten_meta::Status;

use super::matching::Invocation;
use crate::admission::Attributes;

/// Whether all conditions hold. One that cannot be evaluated is the failure policy's to decide.
pub async fn matches_conditions(invocation: &Invocation<'_>, a: &Attributes<'_>) -> Result<bool, Status> {
    let hook = invocation.hook;
    if hook.fail_open {
        return Ok(false);
    }
    let names: Vec<&str> = hook.conditions.iter().map(|(name, _)| name.as_str()).collect();
    Err(a.forbidden(format!("match conditions {names:?} of webhook {:?} cannot be evaluated", hook.name)))
}
