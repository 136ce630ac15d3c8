//! The verbs on resources. Each handles every kind; none names one.

pub mod apply;
pub mod create;
pub mod delete;
pub mod get;
pub mod guaranteed_update;
pub mod list;
pub mod options;
pub mod patch;
pub mod update;
pub mod watch;
