//! Simulated nodes: kubelets without containers.
//!
//! A simulated node is a Node object with capacity and conditions, a Lease that is renewed every ten seconds, and pods
//! that become Running, fail, complete and stop after settable times. To the control plane it is a node like any other:
//! everything goes through the client that real kubelets use. So users learn how many nodes and pods a control plane
//! carries before they buy machines, and tests have clusters that no machine could hold.
//!
//! Reading order: `pod` and `node` are pure and decide; `fleet` keeps the nodes alive; `kubelets` drives the pods;
//! `workload` and `load` are the users of the cluster; `recorder` measures every request; `report` prints.
//!
//! Invariant: only objects with the label `corten.dev/simulated` are deleted, and only Nodes of this run.

mod config;
mod error;
mod fleet;
mod histogram;
mod kubelets;
mod load;
mod node;
mod pod;
mod recorder;
mod report;
mod simulation;
mod slots;
mod startup;
mod workload;

pub use config::{Config, Load, PodTimes, Watch};
pub use error::Error;
pub use report::{Call, Report, ServerUse, Startup};
pub use simulation::{Environment, Usage, run, run_nodes};
