//! The whole control plane in one seeded, single-threaded world: the API server with its store, the controllers, the
//! scheduler and simulated kubelets, the same code that clusters run.
//!
//! One number decides everything: what users do, which requests and answers are lost, which processes die, when the disk
//! fails and the clock jumps. The same number gives the same history, byte by byte.
//!
//! - [`host`] is the machine: time passes only when every task waits, and random bytes follow from the seed.
//! - [`network`] carries requests, loses them and their answers, and breaks watches.
//! - [`world`] starts, kills and starts again.
//! - [`users`] create, change and delete workloads, and remember what was acknowledged.
//! - [`promises`] follows the store itself, and reports what no fault may break; [`watcher`] compares with it what a
//!   watch through the faulty network shows; [`rest`] is the state that the cluster reaches once the faults stop.
//! - [`run`] is the course of one seed.

pub mod host;
pub mod network;
pub mod promises;
pub mod rest;
pub mod run;
pub mod users;
pub mod watcher;
pub mod world;
