//! Match conditions: expressions that must all hold for a webhook to be asked. One false one decides, whatever went
//! wrong with others; otherwise errors are the failure policy's to judge.

use corten_cel::{Activation, CompileError, Env, MATCH_CONDITIONS_BUDGET, PER_CALL_LIMIT, Program, Type, Value};

use crate::metrics::expressions::{compiling, evaluating};

/// A condition that could be compiled, or why it could not.
pub type Condition = Result<Program, String>;

/// Compiles a condition.
pub fn compile(env: &Env, expression: &str) -> Condition {
    compiling(|| env.compile(expression, &[Type::Bool])).map_err(|e| match e {
        CompileError::Output(..) => e.to_string(),
        other => format!("compilation failed: {other}"),
    })
}

/// Whether all conditions hold; the errors, if some could not be evaluated and none is false.
pub fn all_hold<'c, 'a>(
    conditions: impl Iterator<Item = &'c Condition>,
    variables: &dyn Activation<'a>,
) -> Result<bool, Vec<String>> {
    let (mut budget, mut errors) = (MATCH_CONDITIONS_BUDGET, Vec::new());
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
