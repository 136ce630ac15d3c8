//! Ownership of fields: `metadata.managedFields` and server-side apply.
//!
//! A set of paths (`set.rs`) is the fields that a manager owns. The schema (`types.rs`) defines paths: which lists are
//! associative, which maps and lists are atomic. Four functions follow it: `compare` finds the paths that a change
//! wrote or removed, `extract` the paths of an object, `merge` joins a configuration with the live object, `remove`
//! removes paths. `managers.rs` encodes `managedFields`, and `rules.rs` has the rules: which manager gains and loses
//! paths by an update or an apply, and which applies conflict. `objects.rs` reads and writes them in objects.
//!
//! Everything here is pure: no clock, no store, no request. Nothing here names a kind.

mod compare;
mod conflict;
mod extract;
mod lists;
mod managers;
mod merge;
mod objects;
mod reconcile;
mod remove;
mod rules;
mod set;
mod types;

pub use compare::compare;
pub use conflict::conflict_status;
pub use extract::{FormError, Misfit, check, error_message, extract, mismatches_type};
pub use lists::take_lists;
pub use managers::{Entry, Fields, Identity, Managers, Operation, is_reset};
pub use merge::merge;
pub use objects::{
    OneVersion, apply_status, keep_managers, keep_times, managed_fields, managers_of, own_created, own_status,
    same_but_managers, set_managers, take_managed_fields, type_of,
};
pub use rules::{Application, Refusal, Versions, apply, update};
pub use set::{Element, Filter, Set};
pub use types::{Type, before_first, zero};

#[cfg(test)]
mod tests;
