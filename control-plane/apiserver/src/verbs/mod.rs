//! The verbs on resources. Each sees an erased kind; none knows which one it is.

pub mod apart;
pub mod apply;
pub mod create;
pub mod decide;
pub mod delete;
pub mod get;
pub mod list;
pub mod options;
pub mod owners;
pub mod ownership;
pub mod patch;
mod scope;
pub mod update;
pub mod watch;

pub use scope::Scope;
