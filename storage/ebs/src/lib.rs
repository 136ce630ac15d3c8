//! The CSI driver `ebs.csi.aws.com`: volumes of AWS's Elastic Block Store, with the names, parameters, tags and topology of
//! AWS's own driver, so that classes and volumes work with either.
//!
//! The controller's half calls EC2 (`cloud`, `volumes`, `attachments`, `snapshots`); the node's half finds the devices of
//! attached volumes, and formats and mounts them (`devices`, `staging`). Each serves CSI like any other driver and knows
//! nothing of Kubernetes' API.
//!
//! *Invariant: the driver keeps no state. All of it is in EC2, found by IDs, by the tag of the name, and by the client
//! token: a driver that is killed after any call continues, and leaves nothing behind.*

mod attachments;
mod cloud;
mod controller;
mod devices;
mod identity;
mod instance;
mod node;
mod parameters;
mod serve;
mod snapshots;
mod staging;
mod tags;
mod topology;
mod volumes;
mod waiting;

pub use cloud::Cloud;
pub use devices::Roots;
pub use identity::NAME;
pub use instance::Instance;
pub use node::NodeHalf;
pub use serve::{Config, in_process, run};
