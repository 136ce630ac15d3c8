//! The check of messages: their construction and their fields.

use std::sync::Arc;

use super::Checker;
use crate::ast::{Expr, Field};
use crate::messages;
use crate::source::Issue;
use crate::types::{Type, bare_name};

impl Checker<'_> {
    /// Returns the type of a selected field of a message.
    pub(super) fn message_field(&mut self, expr: &Expr, message: &str, field: &str) -> Type {
        self.field_of(message, field).unwrap_or_else(|why| {
            self.report(expr, why);
            Type::Error
        })
    }

    /// Returns the type of a field, or an error.
    fn field_of(&self, message: &str, field: &str) -> Result<Type, String> {
        let Some(fields) = self.env.fields_of(message) else {
            return match message {
                "map" => Ok(Type::Any),
                message if self.env.may_make(message) => Ok(Type::Dyn),
                message if messages::SCALARS.contains(&message) => Err(format!("undefined field '{field}'")),
                message => Err(format!("unexpected failed resolution of '{message}'")),
            };
        };
        // A reserved word may also be written without escapes.
        let found = fields.get(field).or_else(|| fields.get(&format!("__{field}__")));
        found.cloned().ok_or_else(|| format!("undefined field '{field}'"))
    }

    pub(super) fn check_message(&mut self, expr: &Expr, name: &str, fields: &[Field]) {
        let Some((found, _)) = self.named(name) else {
            self.set(expr, Type::Error);
            return self.undeclared(expr, name);
        };
        let (made, message) = self.made(expr, name, found);
        self.set(expr, made);
        for field in fields {
            self.check(&field.value);
            let found = self.unwrapped(&field.value, field.optional);
            let wanted = self.field_of(&message, &field.name).unwrap_or_else(|message| {
                self.issues.push(Issue { offset: Some(field.offset), message });
                Type::Error
            });
            self.check_nested_name(&message, field, &found);
            if !self.types.is_assignable(&wanted, &found) {
                let message = format!(
                    "expected type of field '{}' is '{wanted}' but provided type is '{}'",
                    field.name,
                    self.types.resolve(&found, true)
                );
                self.issues.push(Issue { offset: Some(field.offset), message });
            }
        }
    }

    /// Returns the type of a constructed message, and the name of the message that has its fields.
    fn made(&mut self, expr: &Expr, name: &str, found: Type) -> (Type, Arc<str>) {
        let why = match &found {
            Type::Error => None,
            Type::Type(of) if self.env.message_type(name).is_some() => return ((**of).clone(), name.into()),
            Type::Type(of) => match messages::of_type(of) {
                Some(message) => return ((**of).clone(), message.into()),
                None => Some(format!("'{}' is not a message type", bare_name(of))),
            },
            other => Some(format!("'{}' is not a type", bare_name(other))),
        };
        why.into_iter().for_each(|why| self.report(expr, why));
        (Type::Error, name.into())
    }

    /// Checks that a nested message is named after its field.
    fn check_nested_name(&mut self, message: &str, field: &Field, found: &Type) {
        let (Type::Struct(inner), true) = (found, message == "Object" || message.starts_with("Object.")) else {
            return;
        };
        let wanted = format!("{message}.{}", field.name);
        if **inner != *wanted && self.env.may_make(inner) {
            let message =
                format!("expected type of field '{}' is '{wanted}' but provided type is '{inner}'", field.name);
            self.issues.push(Issue { offset: Some(field.offset), message });
        }
    }
}
