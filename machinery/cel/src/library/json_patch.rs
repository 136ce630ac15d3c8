//! The library of JSON patches.

use super::text;
use crate::declare::Line;
use crate::value::Value;

pub const TABLE: &[Line] = &[("string_jsonpatch_escapeKey_string", "jsonpatch.escapeKey(string) -> string", |_, a| {
    Ok(Value::string(text(a, 0)?.replace('~', "~0").replace('/', "~1")))
})];
