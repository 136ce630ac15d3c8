//! CustomResourceDefinitions as tables: [`Table`] reads the kinds of an API from a compact text, and [`install`] brings
//! them into a cluster.
//!
//! The texts are ours, written from the APIs that they describe. They hold no descriptions of fields.

mod install;
mod table;

pub use install::{covers, install, provides};
pub use table::Table;
