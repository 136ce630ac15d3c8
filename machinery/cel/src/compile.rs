//! Compiles an expression in an environment: parses it, checks it and its constants, and estimates its cost.

use crate::ast::{Expr, ExprKind, Literal};
use crate::check::{Constant, Notes, check};
use crate::env::Env;
use crate::error::Error;
use crate::estimate::{self, CostEstimate};
use crate::eval::evaluate;
use crate::library::regex;
use crate::messages;
use crate::meter::{Meter, PER_CALL_LIMIT};
use crate::parser;
use crate::program::Program;
use crate::source::{Issue, Issues};
use crate::types::{Type, type_name};

/// The error of an expression that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("{0}")]
    Issues(Issues),
    /// A constant part of it can never be evaluated.
    #[error("{0}")]
    Instantiation(Error),
    /// The value has another type: the wanted types, and the type.
    #[error("{0} but got {1}")]
    Output(String, String),
}

impl Env {
    /// Compiles an expression whose value must be of one of these types; of any type if there are none.
    pub fn compile(&self, text: &str, wanted: &[Type]) -> Result<Program, CompileError> {
        self.compile_where(text, wanted, |_| true)
    }

    /// Compiles an expression whose value must be of one type, and not of its wrapper.
    pub fn compile_never_null(&self, text: &str, wanted: &Type) -> Result<Program, CompileError> {
        self.compile_where(text, std::slice::from_ref(wanted), |found| !matches!(found, Type::Wrapper(_)))
    }

    fn compile_where(&self, text: &str, wanted: &[Type], fits: fn(&Type) -> bool) -> Result<Program, CompileError> {
        let (expr, notes) = self.check(text).map_err(CompileError::Issues)?;
        let found = notes.type_of(&expr).clone();
        let fits = fits(&found) && wanted.iter().any(|wanted| is_output(wanted, &found));
        if !wanted.is_empty() && !fits {
            return Err(CompileError::Output(output_error(wanted), type_name(&found)));
        }
        check_constants(&expr, &notes).map_err(CompileError::Instantiation)?;
        Ok(Program::new(text, expr, notes))
    }

    /// Returns the cost range of an expression.
    pub fn estimate(&self, program: &Program) -> CostEstimate {
        estimate::cost(self, &program.expr, &program.notes)
    }

    fn check(&self, text: &str) -> Result<(Expr, Notes), Issues> {
        let expr = parser::parse(text, self.binds)?;
        let (notes, mut issues): (Notes, Vec<Issue>) = check(self, &expr);
        issues.iter_mut().for_each(|issue| show_leading_dot(text, issue));
        if issues.is_empty() { Ok((expr, notes)) } else { Err(Issues::new(text, issues)) }
    }
}

/// Finds errors before evaluation: evaluates the conversions of literals once, compiles the patterns that are literals,
/// and checks the types that are only names.
fn check_constants(expr: &Expr, notes: &Notes) -> Result<(), Error> {
    match &expr.kind {
        ExprKind::Call { function, target: Some(_), args } if matches!(&**function, "find" | "findAll") => {
            if let Some(ExprKind::Literal(Literal::String(pattern))) = args.first().map(|pattern| &pattern.kind) {
                regex::compile(pattern).map_err(|error| Error::failed(error.to_string()))?;
            }
        }
        ExprKind::Ident(_) | ExprKind::Select { .. } => match notes.constant(expr) {
            Some(Constant::Type(name)) if !is_value(name) => {
                return Err(Error::failed(format!("reference to undefined type: {name}")));
            }
            Some(_) => return Ok(()),
            None => {}
        },
        _ => {}
    }
    if matches!(expr.kind, ExprKind::Call { .. }) && expr.is_constant() {
        evaluate(expr, notes, &[], &mut Meter::new(PER_CALL_LIMIT))?;
    }
    expr.children().into_iter().try_for_each(|child| check_constants(child, notes))
}

/// Reports whether the name of a type is also a value. That of a message is one only if the message has no other
/// representation.
fn is_value(name: &str) -> bool {
    let spelled_out = !matches!(name, "timestamp" | "duration");
    Type::by_name(name).is_some_and(|_| spelled_out)
        || messages::named(name).is_some_and(|known| known.of == Type::named(name))
}

/// Adds the leading dot of a name to an error about it.
fn show_leading_dot(text: &str, issue: &mut Issue) {
    let Some(at) = issue.offset.and_then(|offset| (offset as usize).checked_sub(1)) else { return };
    let Some(name) = issue.message.strip_prefix("undeclared reference to '").and_then(|rest| rest.split('\'').next())
    else {
        return;
    };
    let dotted = format!(".{name}");
    if text.chars().skip(at).take(dotted.chars().count()).eq(dotted.chars()) {
        issue.message = issue.message.replacen(name, &dotted, 1);
    }
}

/// Reports whether a result is of a wanted type; a wanted dyn accepts all.
fn is_output(wanted: &Type, found: &Type) -> bool {
    match (wanted, found) {
        (Type::Dyn, _) => true,
        (Type::List(wanted), Type::List(found)) => is_output(wanted, found),
        (wanted, found) => wanted == found,
    }
}

fn output_error(wanted: &[Type]) -> String {
    match wanted {
        [one] => format!("must evaluate to {}", type_name(one)),
        many => format!("must evaluate to one of [{}]", many.iter().map(type_name).collect::<Vec<_>>().join(" ")),
    }
}
