//! A fuzz target for every decoder of untrusted bytes, and the parts of a coverage-guided fuzzer.
//!
//! The list [`targets::TARGETS`] has two users. The test `tests/targets.rs` runs a fixed number of inputs of each
//! target on every test run, the same on every machine. The binary (`cargo xtask fuzz`) mutates inputs for a given
//! time, keeps each input that reaches new code, and writes down those that fail.
//!
//! An input fails if it panics, if it takes more memory or processor time than the bounds of `guard`, or if a property
//! that its target asserts does not hold. A target must never reach the network, the host's files or another process.

pub mod corpus;
pub mod coverage;
pub mod guard;
pub mod memory;
pub mod mutate;
pub mod random;
pub mod targets;

/// One decoder, or one entry point through which untrusted bytes reach several.
pub struct Target {
    /// The name on the command line and of the folders with its inputs.
    pub name: &'static str,
    /// The valid inputs to begin with. Their words are the dictionary of the mutations.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Runs one input. Panics if a property does not hold.
    pub run: fn(&[u8]),
}
