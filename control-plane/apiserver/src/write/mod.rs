//! The one way into the store: create, update, patch, apply, status and subresources all take it.
//!
//! normalise → default → own fields → admit → validate → encode → commit
//!
//! [`create_object`] takes these steps for a new object, [`Change::carry_out`] for one that exists. Differences between
//! kinds are rules of the kind, never a branch on its name.

mod change;
mod commit;
mod create;
pub mod field_ownership;
mod generation;
mod location;
pub mod normalise;
pub mod owner_references;
mod part;
mod precondition;
mod scope;
mod template_labels;
mod untouched;
mod validate;

pub use change::{ATTEMPTS, Change, Transform, Updated, View, is_finalized, spec_finalizers};
pub use create::create_object;
pub use location::{check_location, check_name, check_namespace, unnamed};
pub use part::Part;
pub use precondition::{not_the_same, server_busy};
pub use scope::Scope;
pub use untouched::CONCERNED;
