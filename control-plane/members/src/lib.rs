//! etcd members: the process of one member, its place among the others, and its state.
//!
//! A server of a cluster of servers runs an etcd member beside its API server. This package finds the binary ([`Binary`]),
//! runs it and starts it again ([`Supervisor`]), decides how a machine becomes a member ([`decide`]) and does it
//! ([`join`]), removes learners that never came up ([`learners`]), makes a survivor a cluster of its own
//! ([`recover()`]), keeps small values that servers share ([`values`]), and reports the state of all members ([`report`]).
//!
//! Invariant: a machine becomes a voter only after it was a learner that caught up, so that a machine that joins never
//! costs the quorum. Must never: delete data of a member; data that a cluster no longer wants is set aside.

mod binary;
mod client;
pub mod decide;
mod error;
pub mod join;
pub mod learners;
mod log;
mod process;
mod recover;
pub mod report;
mod settings;
pub mod state;
mod supervisor;
mod tls;
pub mod values;
mod wal;

pub use binary::{Binary, Version};
pub use client::{Alarm, List, Member, Members, Status};
pub use error::Error;
pub use recover::recover;
pub use settings::{CertificateFiles, Config, Start};
pub use state::State;
pub use supervisor::{Restarts, Supervisor};
pub use tls::Credentials;
