//! The tools of the controllers' tests: a model cluster, the controllers' roles, and a simulated API server.

pub mod model;
pub mod rights;
pub mod simulation;
