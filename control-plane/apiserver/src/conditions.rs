//! Match conditions: expressions that must all hold for a webhook to be asked. One false one decides, whatever went
//! wrong with others; otherwise errors are the failure policy's to judge.

use corten_cel::{Activation, CompileError, Env, MATCH_CONDITIONS_BUDGET, PER_CALL_LIMIT, Program, Type, Value};
use corten_meta::{FieldError, Path};

use crate::metrics::expressions::{compiling, evaluating};

/// A condition that could be compiled, or why it could not.
pub type Condition = Result<Program, String>;

/// Compiles a condition.
pub fn compile(env: &Env, expression: &str) -> Condition {
    compiling(|| env.compile(expression, &[Type::Bool])).map_err(|error| problem(&error))
}

/// How it is told that an expression compiles and yet can never be evaluated, which upstream takes for its own fault.
const UNUSABLE: &str = "program instantiation failed";

/// What a client is told of an expression that is refused.
pub fn refusal(path: &Path, expression: &str, problem: &str) -> FieldError {
    if problem.starts_with(UNUSABLE) {
        FieldError::internal(path, problem.to_owned())
    } else {
        FieldError::invalid(path, expression, problem)
    }
}

/// Why an expression is refused.
pub fn problem(error: &CompileError) -> String {
    match error {
        CompileError::Issues(issues) => format!("compilation failed: {issues}"),
        CompileError::Instantiation(error) => format!("{UNUSABLE}: {error}"),
        CompileError::Output(..) => error.to_string(),
    }
}

/// Whether all conditions hold; the errors, if some could not be evaluated and none is false.
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
            Ok(_) => errors.push(format!("expression '{}' is no truth value", program.text())),
            Err(e) => errors.push(format!("expression '{}' resulted in error: {e}", program.text())),
        }
    }
    if errors.is_empty() { Ok(true) } else { Err(errors) }
}
