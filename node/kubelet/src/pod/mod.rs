//! One pod: its spec, what the runtime shows of it, and the small things that every other room reads or wakes it by.

pub mod downward_api;
pub mod labels;
pub mod observed;
pub mod phase;
pub mod resources;
pub mod source;
pub mod spec;
pub mod terminations;
pub mod verdict;
pub mod view;
pub mod waiting;
pub mod waker;
