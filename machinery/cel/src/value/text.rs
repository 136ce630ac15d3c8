//! A string that is either borrowed from an object or made by the expression.

use std::ops::Deref;
use std::sync::Arc;

#[derive(Clone)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Owned(Arc<str>),
}

impl Text<'_> {
    /// Returns a string that outlives the object.
    pub fn shared(&self) -> Arc<str> {
        match self {
            Text::Borrowed(text) => Arc::from(*text),
            Text::Owned(text) => Arc::clone(text),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }
}
