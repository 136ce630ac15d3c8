//! The environment of an expression: variables with their types, the fields of messages, and the messages that it may
//! construct.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, ExprKind, Literal};
use crate::check::{Constant, Notes, check};
use crate::error::Error;
use crate::estimate::{self, CostEstimate};
use crate::eval::evaluate;
use crate::library::regex;
use crate::messages;
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
    /// The only variable whose size is declared, unless the declaration applies to all.
    sized: Option<&'static str>,
    /// The names of messages that an expression may construct; a name includes those below it in dots.
    made: Vec<&'static str>,
    /// Whether `cel.bind` is a macro.
    binds: bool,
}

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
    pub fn new() -> Env {
        Env::default()
    }

    /// Declares a variable of a type.
    #[must_use]
    pub fn variable(mut self, name: &str, of: Type) -> Env {
        self.variables.insert(name.into(), of);
        self
    }

    /// Declares a message type and its fields.
    #[must_use]
    pub fn message(mut self, name: &str, fields: BTreeMap<String, Type>) -> Env {
        self.messages.insert(name.into(), fields);
        self
    }

    /// Declares a variable by a schema.
    #[must_use]
    pub fn declared(mut self, name: &str, decl: &Decl) -> Env {
        decl.objects(&mut self.messages);
        self.variable(name, decl.cel_type())
    }

    /// Sets the declaration that sizes are estimated by, for all variables.
    #[must_use]
    pub fn sized_by(mut self, decl: Arc<Decl>) -> Env {
        self.sizes = Some(decl);
        self
    }

    /// Sets the declaration that sizes are estimated by, for one variable.
    #[must_use]
    pub fn sized_alone(mut self, variable: &'static str, decl: Arc<Decl>) -> Env {
        self.sized = Some(variable);
        self.sized_by(decl)
    }

    /// Lets expressions construct messages of this name, and of names below it, with any fields.
    #[must_use]
    pub fn making(mut self, name: &'static str) -> Env {
        self.made.push(name);
        self
    }

    /// Lets expressions bind a name by `cel.bind`.
    #[must_use]
    pub fn binding(mut self) -> Env {
        self.binds = true;
        self
    }

    /// Adds a field to a declared message type.
    pub fn add_field(&mut self, message: &str, field: &str, of: Type) {
        self.messages.entry(message.into()).or_default().insert(field.to_owned(), of);
    }

    pub(crate) fn variable_type(&self, name: &str) -> Option<&Type> {
        self.variables.get(name)
    }

    pub(crate) fn fields_of(&self, message: &str) -> Option<&BTreeMap<String, Type>> {
        self.messages.get(message).or_else(|| messages::named(message).map(|known| &known.fields))
    }

    /// Returns the type of the messages of a name, if there are any.
    pub(crate) fn message_type(&self, name: &str) -> Option<Type> {
        let declared = self.messages.contains_key(name) || self.may_make(name);
        if declared { Some(Type::named(name)) } else { messages::named(name).map(|known| known.of.clone()) }
    }

    /// Reports whether an expression may construct this message.
    pub(crate) fn may_make(&self, name: &str) -> bool {
        self.made.iter().any(|made| {
            name.strip_prefix(made).is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && *made == "Object"))
        })
    }

    /// Reports whether expressions may call a function; those of patches are only for expressions that construct
    /// patches.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        !name.starts_with("jsonpatch.") || self.may_make("JSONPatch")
    }

    /// Returns the declaration by which the sizes of a variable are estimated.
    pub(crate) fn sizes(&self, variable: &str) -> Option<&Decl> {
        self.sizes.as_deref().filter(|_| self.sized.is_none_or(|sized| sized == variable))
    }

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
            return Err(CompileError::Output(wrong_output(wanted), type_name(&found)));
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

fn wrong_output(wanted: &[Type]) -> String {
    match wanted {
        [one] => format!("must evaluate to {}", type_name(one)),
        many => format!("must evaluate to one of [{}]", many.iter().map(type_name).collect::<Vec<_>>().join(" ")),
    }
}

/// Returns a type's full name, which differs from the checker's.
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

/// Returns the name of a type without its parameters.
pub(crate) fn bare_name(of: &Type) -> String {
    match of {
        Type::List(_) => "list".to_owned(),
        Type::Map(..) => "map".to_owned(),
        Type::Opaque(name, _) => name.to_string(),
        Type::Type(_) => "type".to_owned(),
        other => type_name(other),
    }
}
