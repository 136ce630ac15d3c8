//! The tools of the controllers' tests: a model cluster, scripts that run on it, the controllers' roles, and a simulated API server.

pub mod model;
pub mod rights;
pub mod script;
pub mod simulation;
