//! What an expression may speak of: variables with their types, the fields of messages, and which types it may make.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, ExprKind, Literal};
use crate::check::{Notes, check};
use crate::error::Error;
use crate::estimate::{self, CostEstimate};
use crate::eval::evaluate;
use crate::library::regex;
use crate::meter::{Meter, PER_CALL_LIMIT};
use crate::parser;
use crate::program::Program;
use crate::schema::Decl;
use crate::source::{Issue, Issues};
use crate::types::Type;

/// Declares the variables of an expression.
#[derive(Debug, Clone, Default)]
pub struct Env {
    variables: BTreeMap<Arc<str>, Type>,
    messages: BTreeMap<Arc<str>, BTreeMap<String, Type>>,
    sizes: Option<Arc<Decl>>,
    /// The names of messages that an expression may make; those below them in dots are theirs.
    made: Vec<&'static str>,
    /// Whether `cel.bind` is a macro.
    binds: bool,
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("{0}")]
    Issues(Issues),
    /// A part of it that is known can never be evaluated.
    #[error("{0}")]
    Instantiation(Error),
    /// It compiles, but to a value of another type: what was wanted, and the type.
    #[error("{0} but got {1}")]
    Output(String, String),
}

impl Env {
    pub fn new() -> Env {
        Env::default()
    }

    /// A variable of a type.
    #[must_use]
    pub fn variable(mut self, name: &str, of: Type) -> Env {
        self.variables.insert(name.into(), of);
        self
    }

    /// A message type and its fields.
    #[must_use]
    pub fn message(mut self, name: &str, fields: BTreeMap<String, Type>) -> Env {
        self.messages.insert(name.into(), fields);
        self
    }

    /// A variable that is declared by a schema.
    #[must_use]
    pub fn declared(mut self, name: &str, decl: &Decl) -> Env {
        decl.objects(&mut self.messages);
        self.variable(name, decl.cel_type())
    }

    /// The declaration by which sizes are estimated: that of every variable whose size matters.
    #[must_use]
    pub fn sized_by(mut self, decl: Arc<Decl>) -> Env {
        self.sizes = Some(decl);
        self
    }

    /// Lets expressions make messages of this name, and of names below it, with any fields.
    #[must_use]
    pub fn making(mut self, name: &'static str) -> Env {
        self.made.push(name);
        self
    }

    /// Lets expressions name a value by `cel.bind`.
    #[must_use]
    pub fn binding(mut self) -> Env {
        self.binds = true;
        self
    }

    /// Adds a field to a message type that is there.
    pub fn add_field(&mut self, message: &str, field: &str, of: Type) {
        self.messages.entry(message.into()).or_default().insert(field.to_owned(), of);
    }

    pub(crate) fn variable_type(&self, name: &str) -> Option<&Type> {
        self.variables.get(name)
    }

    pub(crate) fn fields_of(&self, message: &str) -> Option<&BTreeMap<String, Type>> {
        self.messages.get(message)
    }

    /// Whether an expression may make this message.
    pub(crate) fn may_make(&self, name: &str) -> bool {
        self.made.iter().any(|made| {
            name.strip_prefix(made).is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && *made == "Object"))
        })
    }

    /// Whether expressions know a function; what serves patches is for those who make them.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        !name.starts_with("jsonpatch.") || self.may_make("JSONPatch")
    }

    pub(crate) fn sizes(&self) -> Option<&Decl> {
        self.sizes.as_deref()
    }

    /// Reads and checks an expression whose value must be of one of these types; any will do if there are none.
    pub fn compile(&self, text: &str, wanted: &[Type]) -> Result<Program, CompileError> {
        let (expr, notes) = self.check(text).map_err(CompileError::Issues)?;
        let found = notes.type_of(&expr).clone();
        if !wanted.is_empty() && !wanted.iter().any(|wanted| is_output(wanted, &found)) {
            return Err(CompileError::Output(wrong_output(wanted), type_name(&found)));
        }
        check_constants(&expr, &notes).map_err(CompileError::Instantiation)?;
        Ok(Program::new(text, expr, notes))
    }

    /// The range of what an expression can cost.
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

/// A name that was written with a dot before it is told with the dot.
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

/// Evaluates the conversions of literals once and reads the patterns that are literals, so that those which fail are
/// found before there is a value.
fn check_constants(expr: &Expr, notes: &Notes) -> Result<(), Error> {
    if let ExprKind::Call { function, target: Some(_), args } = &expr.kind
        && matches!(&**function, "find" | "findAll")
        && let Some(ExprKind::Literal(Literal::String(pattern))) = args.first().map(|pattern| &pattern.kind)
    {
        regex::compile(pattern).map_err(|error| Error::failed(error.to_string()))?;
    }
    if matches!(expr.kind, ExprKind::Call { .. }) && expr.is_constant() {
        evaluate(expr, notes, &[], &mut Meter::new(PER_CALL_LIMIT))?;
    }
    expr.children().into_iter().try_for_each(|child| check_constants(child, notes))
}

/// Whether a result is of a wanted type; a wanted dyn takes all.
fn is_output(wanted: &Type, found: &Type) -> bool {
    match (wanted, found) {
        (Type::Dyn, _) => true,
        (Type::List(wanted), Type::List(found)) => is_output(wanted, found),
        (wanted, found) => wanted == found,
    }
}

fn wrong_output(wanted: &[Type]) -> String {
    match wanted {
        [one] => format!("must evaluate to {}", type_name(one)),
        many => format!("must evaluate to one of [{}]", many.iter().map(type_name).collect::<Vec<_>>().join(" ")),
    }
}

/// A type by its full name, which is not how the checker calls it.
pub(crate) fn type_name(of: &Type) -> String {
    match of {
        Type::Null => "null_type".to_owned(),
        Type::Any => "google.protobuf.Any".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::List(item) => format!("list({})", type_name(item)),
        Type::Map(key, value) => format!("map({}, {})", type_name(key), type_name(value)),
        Type::Opaque(name, inner) if !inner.is_empty() => {
            format!("{name}({})", inner.iter().map(type_name).collect::<Vec<_>>().join(", "))
        }
        Type::Type(of) => format!("type({})", type_name(of)),
        other => other.to_string(),
    }
}
