//! The environment of an expression: variables with their types, the fields of messages, and the messages that it may
//! construct.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::messages;
use crate::schema::Decl;
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
    pub(crate) binds: bool,
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
}
