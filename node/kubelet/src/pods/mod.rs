//! The pods of the node. `manager` follows the API and the runtime and keeps one `worker` per pod; a worker
//! looks (`observed`), decides (`plan`), acts (`act`), and reports (`status`, `publisher`).

mod act;
pub mod manager;
pub mod observed;
pub mod plan;
mod publisher;
mod services;
pub mod spec;
pub mod status;
mod stop;
mod termination_message;
pub mod view;
pub mod waker;
mod worker;

pub use services::Services;

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod status_tests;
