//! A cluster that runs for years: its certificates, its addresses, and its supervisor.

#![allow(clippy::unwrap_used)]

mod addresses;
mod certificates;
mod machines;
mod supervision;
