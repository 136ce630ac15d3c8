//! The pods of the node. `manager` follows the API and the runtime and keeps one `worker` per pod; a worker
//! has the pod taken (`admit`, `resize`: what the node can give is decided in `admission`, held in `allocation`),
//! looks (`observed`), decides (`plan`), acts (`act`), and reports (`status`, `publisher`).

mod act;
mod actuate;
pub(crate) mod admission;
mod admit;
mod allocation;
pub mod manager;
mod mirror;
pub mod observed;
pub mod orders;
pub mod plan;
mod preemption;
mod publisher;
mod resize;
mod restart_all;
mod runtime_news;
mod services;
pub mod spec;
pub mod static_pods;
pub mod status;
mod stop;
mod termination_message;
pub mod view;
pub mod waker;
mod worker;

pub use allocation::Allocations;
pub use services::Services;

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod status_tests;
