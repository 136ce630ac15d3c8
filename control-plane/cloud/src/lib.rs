//! The cloud controller manager: initializes nodes, removes those whose instance is gone, and makes the load balancers
//! and routes of a cloud, through the small interface [`provider::Provider`].
//!
//! Each controller decides by a pure function (`controllers/`); `execute` alone calls the cloud and writes to the API.
//! The clouds themselves are folders of `providers/`. The process may end after any call: the next one continues, and leaves nothing behind.

pub mod controllers;
mod execute;
mod manager;
mod nodes;
mod objects;
pub mod provider;
pub mod providers;
#[cfg(test)]
mod tests;

pub use manager::{CONTROLLERS, Config, Election, LostLease, run};
