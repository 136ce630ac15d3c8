//! The object of a write, which remembers whether a plugin could have changed it: an untouched object already has its
//! defaults and need not be defaulted again.

use std::ops::{Deref, DerefMut};

use corten_meta::Value;

pub struct Touched {
    value: Value,
    touched: bool,
}

impl Touched {
    pub fn new(value: Value) -> Touched {
        Touched { value, touched: false }
    }

    /// Reports whether a plugin borrowed the object mutably.
    pub fn is_touched(&self) -> bool {
        self.touched
    }

    /// Returns the object for changes of the server itself, which knows whether they need defaults.
    pub fn complete(&mut self) -> &mut Value {
        &mut self.value
    }

    pub fn into_inner(self) -> Value {
        self.value
    }
}

impl Deref for Touched {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl DerefMut for Touched {
    fn deref_mut(&mut self) -> &mut Value {
        self.touched = true;
        &mut self.value
    }
}
