//! Compiling the expressions of a policy.

use std::collections::BTreeMap;

use corten_cel::{Env, Program, Type};
use corten_meta::Value;

use crate::conditions::problem;
use crate::metrics::expressions::compiling;

/// A program, or why its expression could not be compiled.
pub type Compiled = Result<Program, String>;

/// The type of `variables`.
pub const VARIABLES: &str = "kubernetes.variables";

/// Compiles an expression that must be of one of these types.
pub fn compile(env: &Env, expression: &str, wanted: &[Type]) -> Compiled {
    compiling(|| env.compile(expression, wanted)).map_err(|error| problem(&error))
}

/// Compiles the variables of a policy one after the other: each may speak of those before it.
pub fn compile_variables(env: &mut Env, given: &[Value]) -> Vec<(String, Compiled)> {
    *env = std::mem::take(env).variable("variables", Type::named(VARIABLES)).message(VARIABLES, BTreeMap::new());
    let mut compiled = Vec::new();
    for variable in given {
        let text = |key: &str| variable[key].as_str().unwrap_or_default();
        let program = compile(env, text("expression"), &[]);
        let of = program.as_ref().map_or(Type::Dyn, |program| program.output().remembered());
        // One without an expression is told to be, and there is none.
        if !text("expression").trim().is_empty() {
            env.add_field(VARIABLES, text("name"), of);
        }
        compiled.push((text("name").to_owned(), program));
    }
    compiled
}
