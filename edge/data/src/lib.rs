//! The data half of the front door: it takes connections from clients and sends their requests to pods.
//!
//! [`Edge::apply`] takes over a routing configuration, [`Edge::set_endpoints`] the endpoints of a backend. Neither touches
//! a request in flight: a request keeps the table that it began with, a listener that stays keeps its socket, and an
//! endpoint that leaves ends its requests.
//!
//! Invariants: nothing that a client sends is kept without a bound; forwarding headers and the PROXY protocol are believed
//! from trusted proxies alone; a request is sent a second time only if that is safe.

mod access_log;
mod backend;
mod client;
mod clock;
mod connection;
mod edge;
mod filters;
pub mod fuzz;
mod handover;
mod http;
mod lazy_timer;
mod listener;
mod listener_state;
mod metrics;
mod policy;
mod proxy_protocol;
mod quiet;
mod random;
mod request_body;
mod response;
mod shared;
mod stream;
mod table;
mod tcp;
mod tls;
mod udp;

pub use access_log::{AccessLog, LogFormat};
pub use edge::{Edge, ListenerError, Options};
pub use handover::{receive_listeners, send_listeners};
