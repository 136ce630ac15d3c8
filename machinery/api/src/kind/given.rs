//! Objects as their authors gave them: upstream tells apart what ours has made the same (see [`crate::schema::recall`]).

use std::borrow::Cow;

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::Kind;
use crate::schema::{Recall, recall};

impl Kind {
    /// An object as its author gave it, as rules see it, outside of `spared`.
    pub fn as_given(&self, object: &Value, given: Value, spared: &[&str]) -> Value {
        let mut object = self.recalled(object, given, spared, Recall::Given);
        self.drop_gated(&mut object);
        object
    }

    /// The same with what belongs to features that are switched off, and with every amount as it was written: as it is
    /// compared for who owns what.
    pub fn as_sent(&self, object: &Value, given: Value, spared: &[&str]) -> Value {
        self.recalled(object, given, spared, Recall::Sent)
    }

    /// A new object with the times and amounts of the one that was given, for rules to which what is empty is absent.
    pub fn exact<'a>(&self, new: &'a Value, given: &Value) -> Cow<'a, Value> {
        if std::ptr::eq(new, given) {
            return Cow::Borrowed(new);
        }
        let mut object = new.clone();
        recall(&self.schema, given, &mut object, Recall::Exact);
        Cow::Owned(object)
    }

    /// [`Kind::validate_update`] with the new object as its author gave it.
    pub fn validate_given_update(&self, new: &Value, given: &Value, old: &Value) -> Vec<FieldError> {
        self.shown(crate::update::validate(self, &self.exact(new, given), given, old))
    }

    /// [`Kind::validate_status_update`] with the new object as its author gave it.
    pub fn validate_given_status_update(&self, new: &Value, given: &Value, old: &Value) -> Vec<FieldError> {
        let new = &*self.exact(new, given);
        let rule = |object: &Value| self.behaviour.validate_status_update(object, old);
        let own = crate::update::as_shown(rule(new), || rule(given));
        let before = || [self.behaviour.validate_new(old), rule(old)].concat();
        let own = self.unforgiven(own, [new, old], before);
        self.shown(crate::update::validate_status(self, new, old, &own))
    }

    /// The errors of a write that are held against it; `before` finds those of the object as it stands.
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

    fn recalled(&self, object: &Value, mut given: Value, spared: &[&str], what: Recall) -> Value {
        spared.iter().filter_map(|field| given.as_object_mut()?.remove(*field)).for_each(drop);
        let mut object = object.clone();
        recall(&self.schema, &given, &mut object, what);
        object
    }
}
