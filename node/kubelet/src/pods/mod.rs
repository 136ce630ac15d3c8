//! The pods of the node. `manager` follows the API and the runtime and keeps one `worker` per pod. A worker admits the
//! pod (`admit`, `resize`: `admission` decides, `allocation` holds the resources), observes (`observed`), decides
//! (`plan`), acts (`act`), and reports (`status`, `publisher`).

mod act;
mod actuate;
mod admit;
mod allocated;
pub mod manager;
mod mirror;
pub mod plan;
mod publisher;
mod resize;
mod restart_all;
mod runtime_changes;
pub mod static_pods;
pub mod status;
mod stop;
mod termination_message;
mod worker;

#[cfg(test)]
mod tests;
