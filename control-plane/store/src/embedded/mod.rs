//! The embedded engine: all data in memory, every change in a log on disk before it is visible.

mod config;

pub use config::{Clock, Config, MonotonicClock, Retain};
