//! The Common Expression Language (CEL) of Kubernetes: one engine for the rules of custom resources, admission
//! policies, match conditions and authentication mappings.
//!
//! [`Env`] declares the variables of an expression; [`Env::compile`] parses and checks it and returns a [`Program`];
//! [`Program::eval`] evaluates it over values that are views into JSON. Types, costs, limits and error messages are
//! those of Kubernetes v1.36. Everything here is pure: no I/O, and no clock but in [`durations`]. Compiling and
//! evaluating any expression on any object ends soon, in bounded memory, without a panic.

mod ast;
mod check;
mod compile;
pub mod conditions;
mod declare;
pub mod device;
pub mod durations;
mod env;
mod error;
pub mod escape;
mod estimate;
mod eval;
mod lexer;
pub mod library;
mod macros;
mod messages;
mod meter;
mod nodes;
mod parser;
mod program;
pub mod schema;
mod source;
mod types;
mod unify;
pub mod value;

pub use compile::CompileError;
pub use env::Env;
pub use error::Error;
pub use estimate::CostEstimate;
pub use eval::Activation;
pub use meter::PER_CALL_LIMIT;
pub use program::{Outcome, Program};
pub use source::Issues;
pub use types::Type;
pub use value::Value;
pub use value::authorization::{Authorizer, Check, Decision};

/// The cost limit of the rules of one custom resource, or of one policy binding, together for one request.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// The cost limit of the match conditions of one webhook or binding, together for one request.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// The longest message that a message expression may make.
pub const MAX_MESSAGE_BYTES: usize = 5 * 1024;
