//! Event.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Event", "events")
        .short(&["ev"])
        .table("Last Seen, Type, Reason, Object, Message; Subobject, Source, First Seen, Count, Name")
}
