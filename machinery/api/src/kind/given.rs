//! Objects as their authors gave them: upstream tells an empty list or map from none where ours has dropped it.

use corten_meta::Value;

use super::Kind;

impl Kind {
    /// An object as its author gave it: with the empty lists and maps that vanished, outside of `spared`.
    pub fn as_given(&self, object: &Value, given: Value, spared: &[&str]) -> Value {
        let mut object = self.as_sent(object, given, spared);
        self.drop_gated(&mut object);
        object
    }

    /// The same with what belongs to features that are switched off: as it is compared for who owns what.
    pub fn as_sent(&self, object: &Value, mut given: Value, spared: &[&str]) -> Value {
        spared.iter().filter_map(|field| given.as_object_mut()?.remove(*field)).for_each(drop);
        let mut object = object.clone();
        crate::schema::recall_empty(&self.schema, &given, &mut object);
        object
    }
}
