//! One pod: its spec, its state in the runtime, and the small parts by which every other module reads or wakes it.

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
pub mod wakers;
