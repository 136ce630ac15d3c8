//! What components count about themselves: families of series by label, written in the Prometheus text format.
//!
//! Counting must cost next to nothing: who counts often holds on to its [`Series`], which is made of atomic numbers.
//! Labels must come from a bounded set, never from what a client made up.

mod exposition;
mod health_checks;
mod registry;

pub use exposition::{Exposition, number};
pub use health_checks::HealthChecks;
pub use registry::{Family, Kind, Registry, Series, exponential};
