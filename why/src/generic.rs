//! Objects of any kind, custom ones too: their conditions and the warnings about them.

use corten_meta::Value;

use crate::Finding;
use crate::events::Warning;
use crate::objects::{items, text};

/// Words in the type of a condition that is bad when it is True.
const BAD_WHEN_TRUE: &[&str] = &[
    "Pressure",
    "Unavailable",
    "Fail",
    "Error",
    "Degraded",
    "Stalled",
    "Problem",
    "Deadlock",
    "Denied",
    "Limited",
    "Conflict",
    "NonStructural",
    "Terminating",
];

/// Explains an object by its conditions, or else by its newest warning.
pub fn explain(object: &Value, warnings: &[Warning]) -> Vec<Finding> {
    let wrong = items(object, "/status/conditions").filter(|one| is_wrong(one));
    let mut findings: Vec<Finding> = wrong.map(finding).collect();
    if findings.is_empty() {
        let newest = warnings.first();
        findings.extend(newest.map(|one| Finding::new(format!("{}.", one.reason)).because(&one.message)));
    }
    findings
}

/// Reports whether a condition is not as it should be.
pub fn is_wrong(condition: &Value) -> bool {
    let kind = text(condition, "/type");
    let is_inverse = BAD_WHEN_TRUE.iter().any(|word| kind.contains(word));
    match text(condition, "/status") {
        "True" => is_inverse,
        "False" => !is_inverse,
        _ => !is_inverse,
    }
}

fn finding(condition: &Value) -> Finding {
    let kind = text(condition, "/type");
    let status = text(condition, "/status");
    let reason = text(condition, "/reason");
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    Finding::new(format!("Its condition {kind} is {status}{reason}.")).because(text(condition, "/message"))
}
