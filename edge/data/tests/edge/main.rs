//! Tests of the edge over real sockets on loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod balancing;
mod changes;
mod fixture;
mod http;
mod policies;
mod security;
mod streams;
mod tls;
mod upgrade;
