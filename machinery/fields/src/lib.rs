//! Who owns which field of an object: `metadata.managedFields` and server-side apply.
//!
//! A set of paths (`set.rs`) is what a manager owns. The schema (`types.rs`) says what a path is: which lists are
//! maps by key, which maps and lists are owned as one. Four walks follow it: `compare` finds what a change touched,
//! `extract` what an object says, `merge` joins a configuration with the live object, `remove` takes paths out.
//! `managers.rs` is the form on the wire, and `ownership.rs` the rules: who gains and loses paths by an update or
//! an apply, and which applies are in conflict.
//!
//! Everything here is pure: no clock, no store, no request. Nothing here names a kind.

mod compare;
mod conflict;
mod extract;
mod lists;
mod managers;
mod merge;
mod ownership;
mod reconcile;
mod remove;
mod set;
mod types;

pub use compare::compare;
pub use conflict::conflict_status;
pub use extract::{FormError, Misfit, check, extract, is_unclear, told};
pub use lists::take_lists;
pub use managers::{Entry, Fields, Identity, Managers, Operation, is_reset};
pub use merge::merge;
pub use ownership::{Refusal, Versions, apply, update};
pub use set::{Element, Filter, Set};
pub use types::{Type, before_first, zero};

#[cfg(test)]
mod tests;
