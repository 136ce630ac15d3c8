//! The Common Expression Language as Kubernetes speaks it: one engine for the rules of custom resources, admission
//! policies, match conditions and authentication mappings.
//!
//! [`Env`] declares what an expression may speak of; [`Env::compile`] reads and checks it and gives a [`Program`];
//! [`Program::eval`] evaluates it over values that are views into JSON. Types, costs, limits and error texts are
//! those of Kubernetes v1.36. Everything here is pure: no clock, no I/O. Whatever an expression or an object holds,
//! compiling and evaluating it ends soon, in bounded memory, without a panic.

mod ast;
mod check;
mod declare;
pub mod device;
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
mod packed;
mod parser;
mod program;
pub mod schema;
mod source;
mod syntax;
mod types;
mod unify;
pub mod value;

pub use env::{CompileError, Env};
pub use error::Error;
pub use estimate::CostEstimate;
pub use library::authorizer::{Authorizer, Check, Decision};
pub use meter::PER_CALL_LIMIT;
pub use program::{Activation, Outcome, Program};
pub use source::Issues;
pub use types::Type;
pub use value::Value;

/// What the rules of one custom resource, or one policy binding, may cost together for one request.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// What the match conditions of one webhook or binding may cost together for one request.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// The longest message that a message expression may make.
pub const MAX_MESSAGE_BYTES: usize = 5 * 1024;
