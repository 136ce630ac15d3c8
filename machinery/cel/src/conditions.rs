//! Match conditions: CEL expressions that must all be true for a webhook to be called. One false condition decides,
//! also if others fail to evaluate; otherwise the failure policy decides about the errors.

use corten_meta::{FieldError, Path};

use crate::durations::{compiling, evaluating};
use crate::{Activation, CompileError, Env, MATCH_CONDITIONS_BUDGET, PER_CALL_LIMIT, Program, Type, Value};

/// A compiled condition, or the error of its compilation.
pub type Condition = Result<Program, String>;

/// Compiles a condition.
pub fn compile(env: &Env, expression: &str) -> Condition {
    compiling(|| env.compile(expression, &[Type::Bool])).map_err(|error| problem(&error))
}

/// The start of the message of an expression that compiles and yet can never be evaluated. Upstream reports it as an
/// internal error.
const UNUSABLE: &str = "program instantiation failed";

/// Returns the field error of an expression that does not compile.
pub fn refusal(path: &Path, expression: &str, problem: &str) -> FieldError {
    if problem.starts_with(UNUSABLE) {
        FieldError::internal(path, problem.to_owned())
    } else {
        FieldError::invalid(path, expression, problem)
    }
}

/// Returns the message of a compile error.
pub fn problem(error: &CompileError) -> String {
    match error {
        CompileError::Issues(issues) => format!("compilation failed: {issues}"),
        CompileError::Instantiation(error) => format!("{UNUSABLE}: {error}"),
        CompileError::Output(..) => error.to_string(),
    }
}

/// Returns whether all conditions are true, or the errors if some could not be evaluated and none is false.
pub fn all_hold<'c, 'a>(
    conditions: impl Iterator<Item = &'c Condition>,
    variables: &dyn Activation<'a>,
) -> Result<bool, Vec<String>> {
    let mut budget = MATCH_CONDITIONS_BUDGET;
    let mut errors = Vec::new();
    for condition in conditions {
        let program = match condition {
            Ok(program) => program,
            Err(e) => {
                errors.push(format!("compilation error: {e}"));
                continue;
            }
        };
        let outcome = evaluating(|| program.eval_within(variables, budget.min(PER_CALL_LIMIT)));
        budget = budget.saturating_sub(outcome.cost);
        match outcome.value {
            Ok(Value::Bool(false)) => return Ok(false),
            Ok(Value::Bool(true)) => {}
            Ok(_) => errors.push(format!("expression '{}' did not evaluate to a bool", program.text())),
            Err(e) => errors.push(format!("expression '{}' resulted in error: {e}", program.text())),
        }
    }
    if errors.is_empty() { Ok(true) } else { Err(errors) }
}
