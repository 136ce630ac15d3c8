//! The metrics of components: families of series by label, written in the Prometheus text format.
//!
//! Counting must be nearly free: a component that counts often keeps its [`Series`], which consists of atomics. Label
//! values must come from a bounded set, never from a client.

mod exposition;
mod families;
mod health_checks;
mod histogram;
mod registry;

pub use exposition::Exposition;
pub use families::{Family, Kind, exponential};
pub use health_checks::{FAMILIES, HealthChecks};
pub use histogram::Histogram;
pub use registry::{Registry, Series};

pub use crate::families;
