//! Shows how a change travels through the cluster: which component wrote what, and when.
//!
//! A trace is a list of [`Step`]s. [`history`] reads them from the times that objects and Events carry; a [`Tracer`] finds
//! them live, by the difference between two states of an object. Both follow owners: from a Deployment to its ReplicaSets,
//! pods and Events, and to the EndpointSlices that name the pods. The tracer is a client like any other, and costs nothing
//! while it does not run.
//!
//! Reading order: `difference` and `history` make steps, `related` decides which objects belong to a trace, `tracer` joins
//! them; `live` watches; `picture` and `spans` print.

mod difference;
mod history;
mod live;
mod picture;
mod related;
mod settled;
mod spans;
mod step;
#[cfg(test)]
mod tests;
mod tracer;

pub use history::history;
pub use live::{Watched, follow, read};
pub use picture::svg;
pub use settled::is_settled;
pub use spans::spans;
pub use step::{Actor, Step, table_header};
pub use tracer::{Root, Tracer};
