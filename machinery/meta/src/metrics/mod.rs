//! The metrics of components: families of series by label, written in the Prometheus text format.
//!
//! Counting must be nearly free: a component that counts often keeps its [`Series`], which consists of atomics. Label
//! values must come from a bounded set, never from a client.

mod exposition;
mod health_checks;
mod registry;

pub use exposition::{Exposition, number};
pub use health_checks::HealthChecks;
pub use registry::{Family, Kind, Registry, Series, exponential};
