//! A cluster that runs for years: its certificates, its addresses, its supervisor, and what it shows of itself.

#![allow(clippy::unwrap_used)]

mod addresses;
mod alerts;
mod certificates;
mod machines;
mod monitoring;
mod supervision;
