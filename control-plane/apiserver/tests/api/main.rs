//! The API server, tested by requests. One program, so that it is linked once.

// In a test, a panic is the report.
#![allow(clippy::unwrap_used)]

mod admission;
mod attacks;
mod audit;
mod authorization;
mod cases;
mod cluster;
mod consistency;
mod conversion;
mod custom_resources;
mod definitions;
mod deletions;
mod emulation;
mod encryption;
mod flow_control;
mod front_proxy;
mod golden;
mod hook;
mod limits;
mod metric_sources;
mod metrics;
mod network;
mod oidc;
mod policy_reach;
mod projections;
mod proxy;
mod resources;
mod spans;
mod watch_stress;
mod webhooks;
mod websocket;

use testkit::server;
