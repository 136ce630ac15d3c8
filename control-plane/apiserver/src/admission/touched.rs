//! The object of a write, which remembers whether anybody could have changed it: one that nobody touched since it was
//! completed with its defaults need not be completed again.

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

    /// Whether somebody had it to change.
    pub fn is_touched(&self) -> bool {
        self.touched
    }

    /// For the server itself, which knows whether what it writes needs defaults.
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
