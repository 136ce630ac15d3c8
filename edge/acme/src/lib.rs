//! Certificates of Gateways and Ingresses by ACME (RFC 8555).
//!
//! An AcmeIssuer names an authority; a Gateway or Ingress names the issuer by an annotation. One process of the cluster
//! leads, and orders a certificate for each Secret that they refer to. The answers to challenges go into a Secret that
//! every node serves ([`corten_gateway::resolve::Challenges`]), so the authority may ask any of them.
//!
//! Invariants: everything that an order needs is stored before the authority is asked, so another leader goes on with it;
//! a Secret that this package did not make is never changed; a failed order waits longer each time, and for as long as the
//! authority asks.

mod answers;
mod error;
mod held;
pub mod jws;
mod order;
pub mod plan;
pub mod protocol;
mod run;
mod store;
pub mod wanted;

pub use error::Error;
pub use run::{Config, run};
