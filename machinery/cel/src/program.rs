//! An expression that was compiled, ready to be evaluated as often as one likes.

use crate::ast::Expr;
use crate::check::Notes;
use crate::error::Error;
use crate::eval::evaluate;
use crate::meter::{Meter, PER_CALL_LIMIT};
use crate::types::Type;
use crate::value::Value;

/// Where an evaluation finds its variables.
pub trait Activation<'a> {
    fn variable(&self, name: &str) -> Option<Value<'a>>;
}

/// Variables in a list; few enough to be searched.
impl<'a> Activation<'a> for &[(&str, Value<'a>)] {
    fn variable(&self, name: &str) -> Option<Value<'a>> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }
}

impl<'a, const N: usize> Activation<'a> for [(&str, Value<'a>); N] {
    fn variable(&self, name: &str) -> Option<Value<'a>> {
        self.as_slice().variable(name)
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    text: String,
    pub(crate) expr: Expr,
    pub(crate) notes: Notes,
}

/// What an evaluation gave, and what it cost.
pub struct Outcome<'a> {
    pub value: Result<Value<'a>, Error>,
    pub cost: u64,
}

impl Program {
    pub(crate) fn new(text: &str, expr: Expr, notes: Notes) -> Program {
        Program { text: text.to_owned(), expr, notes }
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The type of its values.
    pub fn output(&self) -> &Type {
        self.notes.type_of(&self.expr)
    }

    /// Whether it speaks of a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.notes.uses(variable)
    }

    /// Evaluates within the limit of one call.
    pub fn eval<'a>(&self, activation: &dyn Activation<'a>) -> Outcome<'a> {
        self.eval_within(activation, PER_CALL_LIMIT)
    }

    /// Evaluates within a limit of cost.
    pub fn eval_within<'a>(&self, activation: &dyn Activation<'a>, limit: u64) -> Outcome<'a> {
        let mut meter = Meter::new(limit);
        let value = evaluate(&self.expr, &self.notes, activation, &mut meter);
        Outcome { value, cost: meter.cost }
    }
}
