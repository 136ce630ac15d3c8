//! The verbs on resources. Each sees an erased kind; none knows which one it is.

pub mod apply;
pub mod create;
pub mod decide;
pub mod delete;
pub mod get;
pub mod list;
pub mod options;
pub mod patch;
pub mod update;
pub mod watch;
