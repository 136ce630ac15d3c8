//! The control half of the cluster's front door: Gateway API and Ingress.
//!
//! Objects are resolved by one pure function ([`resolve::resolve`]) to a routing configuration, statuses and Services.
//! The leader writes statuses and Services ([`control`]); every data node serves the configuration ([`data`]).

pub mod annotations;
pub mod control;
pub mod crds;
pub mod data;
pub mod demand;
pub mod explain;
pub mod import;
pub mod issuer;
pub mod key_sets;
pub mod objects;
mod path_regex;
pub mod policy_spec;
mod reference;
pub mod resolve;
pub mod status;
pub mod trace;
mod world;

#[cfg(test)]
mod tests;
