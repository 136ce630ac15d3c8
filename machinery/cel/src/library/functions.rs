//! The overloads of all libraries, parsed once, when the first expression is compiled.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::tables;
use crate::declare::{Overload, read};

/// All overloads, and those of each function.
pub struct Functions {
    pub overloads: Vec<Overload>,
    by_name: HashMap<&'static str, Vec<usize>>,
}

impl Functions {
    /// Returns the overloads of a function, in the order in which they are tried.
    pub fn named(&self, name: &str) -> Option<&[usize]> {
        self.by_name.get(name).map(Vec::as_slice)
    }
}

pub static FUNCTIONS: LazyLock<Functions> = LazyLock::new(|| {
    let mut functions = Functions { overloads: Vec::new(), by_name: HashMap::new() };
    for (id, signature, run) in tables() {
        let Some(overload) = read(id, signature, run) else {
            // The first test that compiles anything finds an invalid table.
            debug_assert!(false, "the signature {signature} of {id} cannot be read");
            continue;
        };
        functions.by_name.entry(overload.function).or_default().push(functions.overloads.len());
        functions.overloads.push(overload);
    }
    functions
});
