//! Objects as their authors sent them: upstream distinguishes values that our decoding normalizes (see
//! [`crate::schema::recall`]).

use std::borrow::Cow;

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::{Kind, update};
use crate::emulation;
use crate::schema::{Recall, recall};

impl Kind {
    /// Returns an object as its author sent it, as rules see it, outside of `spared`. `old` is the stored object.
    pub fn for_validation(&self, object: &Value, sent: Value, spared: &[&str], old: Option<&Value>) -> Value {
        let mut object = self.recalled(object, sent, spared, Recall::ForValidation);
        self.drop_gated(&mut object, old);
        object
    }

    /// Returns an object as its author sent it, with fields of disabled features and with the original spelling of
    /// quantities: the form in which field ownership is compared.
    pub fn as_sent(&self, object: &Value, sent: Value, spared: &[&str]) -> Value {
        self.recalled(object, sent, spared, Recall::Sent)
    }

    /// Returns a new object with the original times and quantities, for rules to which empty values are absent.
    pub fn exact<'a>(&self, new: &'a Value, sent: &Value) -> Cow<'a, Value> {
        if std::ptr::eq(new, sent) {
            return Cow::Borrowed(new);
        }
        let mut object = new.clone();
        recall(&self.schema, sent, &mut object, Recall::Exact);
        Cow::Owned(object)
    }

    /// Validates as [`Kind::validate_update`] does, with the new object as its author sent it.
    pub fn validate_sent_update(&self, new: &Value, sent: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = update::validate(self, &self.exact(new, sent), sent, old);
        errors.extend(emulation::validate(self.emulated, &self.kind, new, Some(old)));
        self.shown(errors)
    }

    /// Validates as [`Kind::validate_status_update`] does, with the new object as its author sent it.
    pub fn validate_sent_status_update(&self, new: &Value, sent: &Value, old: &Value) -> Vec<FieldError> {
        let new = &*self.exact(new, sent);
        let rule = |object: &Value| self.behaviour.validate_status_update(object, old);
        let own = update::as_shown(rule(new), || rule(sent));
        let before = || [self.behaviour.validate_new(old), rule(old)].concat();
        let own = self.unforgiven(own, [new, old], before);
        self.shown(update::validate_status(self, new, old, &own))
    }

    /// Returns the errors of a write that are not forgiven; `before` finds those of the old object.
    pub(crate) fn unforgiven(
        &self,
        errors: Vec<FieldError>,
        objects: [&Value; 2],
        before: impl Fn() -> Vec<FieldError>,
    ) -> Vec<FieldError> {
        match self.is_custom() {
            true => errors,
            false => crate::ratchet::unforgiven(&self.kind, errors, objects, before),
        }
    }

    fn recalled(&self, object: &Value, mut sent: Value, spared: &[&str], what: Recall) -> Value {
        spared.iter().filter_map(|field| sent.as_object_mut()?.remove(*field)).for_each(drop);
        let mut object = object.clone();
        recall(&self.schema, &sent, &mut object, what);
        object
    }
}
