//! Compiles the expressions of a policy.

use std::collections::BTreeMap;

use corten_cel::{Env, Program, Type};
use corten_meta::Value;

use corten_cel::conditions::problem;
use corten_cel::durations::compiling;

/// A program, or the reason why its expression does not compile.
pub type Compiled = Result<Program, String>;

/// The type of `variables`.
pub const VARIABLES: &str = "kubernetes.variables";

/// Compiles an expression that must be of one of these types.
pub fn compile(env: &Env, expression: &str, wanted: &[Type]) -> Compiled {
    compiling(|| env.compile(expression, wanted)).map_err(|error| problem(&error))
}

/// Compiles the variables of a policy in their order: each may refer to those before it.
pub fn compile_variables(env: &mut Env, variables: &[Value]) -> Vec<(String, Compiled)> {
    *env = std::mem::take(env).variable("variables", Type::named(VARIABLES)).message(VARIABLES, BTreeMap::new());
    let mut compiled = Vec::new();
    for variable in variables {
        let string = |key: &str| variable[key].as_str().unwrap_or_default();
        let program = compile(env, string("expression"), &[]);
        let of = program.as_ref().map_or(Type::Dyn, |program| program.output().remembered());
        // A variable without an expression is declared invalid elsewhere, and is not added.
        if !string("expression").trim().is_empty() {
            env.add_field(VARIABLES, string("name"), of);
        }
        compiled.push((string("name").to_owned(), program));
    }
    compiled
}
