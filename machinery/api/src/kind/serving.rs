//! The properties by which requests for a kind are served, outside the write path. Built-in kinds have upstream's Go
//! types and paths of their own; custom resources are documents, and come and go.
//!
//! A handler reads the property that it depends on. It never asks where a kind comes from.

use super::Kind;

/// The properties of a kind's requests and responses.
#[derive(Debug)]
pub struct Serving {
    /// Whether its paths are registered at the start, in a group that belongs to the server. The paths of other kinds
    /// are added and removed: the verb alone finds them, and any other path below is a plain 404.
    pub is_registered: bool,
    /// Whether its fields have the numbers of Protobuf.
    pub has_field_numbers: bool,
    /// Whether its lists have the merge keys of strategic merge patches.
    pub has_merge_keys: bool,
    /// Whether upstream converts its versions by functions, which may move fields from one part to another.
    pub has_conversions: bool,
    /// Whether stored objects have the defaults of the storage version; others get them when they are read.
    pub is_stored_with_defaults: bool,
    /// Whether every stored object fits the type that applies merge by, except for list items without their keys.
    pub fits_its_type: bool,
    /// The Go type of its objects in messages, if it is not its own.
    pub go_type: Option<&'static str>,
    /// Whether the items of a list have apiVersion and kind.
    pub has_typed_items: bool,
    /// Whether the metadata of a list has `continue` also if it is empty.
    pub has_empty_continue: bool,
    /// Whether a Table without objects has the rows null.
    pub has_null_rows: bool,
    /// Whether aggregated discovery repeats its group and version.
    pub repeats_version: bool,
    pub scale: ScaleServing,
}

/// The properties of a kind's scale.
#[derive(Debug)]
pub struct ScaleServing {
    /// Whether a write of the scale validates it, and compares its uid with the object's.
    pub is_validated: bool,
    /// Whether a scale without resourceVersion removes the object's, so that the write is unconditional.
    pub clears_version: bool,
    /// Whether every object has replicas, by default.
    pub has_default: bool,
    /// Whether an apply may change the scale: upstream cannot convert the scale of a custom resource.
    pub is_convertible: bool,
}

const BUILT_IN: Serving = Serving {
    is_registered: true,
    has_field_numbers: true,
    has_merge_keys: true,
    has_conversions: true,
    is_stored_with_defaults: true,
    fits_its_type: true,
    go_type: None,
    has_typed_items: false,
    has_empty_continue: false,
    has_null_rows: false,
    repeats_version: false,
    scale: ScaleServing { is_validated: true, clears_version: true, has_default: true, is_convertible: true },
};

const CUSTOM: Serving = Serving {
    is_registered: false,
    has_field_numbers: false,
    has_merge_keys: false,
    has_conversions: false,
    is_stored_with_defaults: false,
    fits_its_type: false,
    go_type: Some("unstructured.Unstructured"),
    has_typed_items: true,
    has_empty_continue: true,
    has_null_rows: true,
    repeats_version: true,
    scale: ScaleServing { is_validated: false, clears_version: false, has_default: false, is_convertible: false },
};

impl Kind {
    /// Returns the properties by which requests for the kind are served.
    pub fn serving(&self) -> &'static Serving {
        if self.is_custom() { &CUSTOM } else { &BUILT_IN }
    }
}
