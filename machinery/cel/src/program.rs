//! A compiled expression, which can be evaluated any number of times.

use crate::ast::{Expr, ExprKind, Literal};
use crate::check::Notes;
use crate::error::Error;
use crate::eval::{Activation, evaluate};
use crate::meter::{Meter, PER_CALL_LIMIT};
use crate::types::Type;
use crate::value::Value;

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    text: String,
    pub(crate) expr: Expr,
    pub(crate) notes: Notes,
}

/// The result of an evaluation, and its cost.
pub struct Outcome<'a> {
    pub value: Result<Value<'a>, Error>,
    pub cost: u64,
}

impl Program {
    pub(crate) fn new(text: &str, expr: Expr, notes: Notes) -> Program {
        Program { text: text.to_owned(), expr, notes }
    }

    /// Returns the source of the expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the type of its values.
    pub fn output(&self) -> &Type {
        self.notes.type_of(&self.expr)
    }

    /// Reports whether it uses a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.notes.uses(variable)
    }

    /// Reports whether it selects a field of a variable anywhere: `variable.field` or `variable.?field`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        fn is(expr: &Expr, variable: &str, field: &str) -> bool {
            let of = |operand: &Expr| matches!(&operand.kind, ExprKind::Ident(name) if &**name == variable);
            let found = match &expr.kind {
                ExprKind::Select { operand, field: own, .. } => &**own == field && of(operand),
                ExprKind::Call { function, target: None, args } if &**function == "_?._" => match args.as_slice() {
                    [operand, Expr { kind: ExprKind::Literal(Literal::String(own)), .. }] => {
                        &**own == field && of(operand)
                    }
                    _ => false,
                },
                _ => false,
            };
            found || expr.children().into_iter().any(|child| is(child, variable, field))
        }
        is(&self.expr, variable, field)
    }

    /// Evaluates within the cost limit of one evaluation.
    pub fn eval<'a>(&self, activation: &dyn Activation<'a>) -> Outcome<'a> {
        self.eval_within(activation, PER_CALL_LIMIT)
    }

    /// Evaluates within a cost limit.
    pub fn eval_within<'a>(&self, activation: &dyn Activation<'a>, limit: u64) -> Outcome<'a> {
        let mut meter = Meter::new(limit);
        let value = evaluate(&self.expr, &self.notes, activation, &mut meter);
        Outcome { value, cost: meter.cost }
    }
}
