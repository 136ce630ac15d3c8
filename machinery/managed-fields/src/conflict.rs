//! Conflicts of an apply, in upstream's words.

use corten_meta::quote::quote;
use corten_meta::{Cause, Status};

use super::managers::{Identity, Operation};
use super::set::{Element, show};

/// A path that another manager owns and this apply would change.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    pub with: Identity,
    pub path: Vec<Element>,
}

/// Returns the 409 of an apply.
pub fn conflict_status(conflicts: &[Conflict]) -> Status {
    let causes = conflicts.iter().map(|conflict| Cause {
        reason: "FieldManagerConflict".to_owned(),
        message: format!("conflict with {}", show_manager(&conflict.with)),
        field: show(&conflict.path),
    });
    Status::apply_conflict(causes.collect(), &message(conflicts))
}

fn message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        let manager = show_manager(&one.with);
        let path = show(&one.path);
        return format!("Apply failed with 1 conflict: conflict with {manager}: {path}");
    }
    let mut lines = Vec::new();
    let mut current = None;
    for conflict in conflicts {
        if current != Some(&conflict.with) {
            lines.push(format!("conflicts with {}:", show_manager(&conflict.with)));
            current = Some(&conflict.with);
        }
        lines.push(format!("- {}", show(&conflict.path)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

fn show_manager(identity: &Identity) -> String {
    let mut text = quote(&identity.manager);
    if !identity.subresource.is_empty() {
        text = format!("{text} with subresource {}", quote(&identity.subresource));
    }
    match identity.operation {
        Operation::Update => format!("{text} using {}", identity.api_version),
        Operation::Apply => text,
    }
}
