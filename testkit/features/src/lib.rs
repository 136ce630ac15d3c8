//! Holds no code. Every package depends on this one for its tests, so that a test of one package enables the features of
//! crates of others that the tests of the whole workspace enable, and finds them built. Ordinary builds do not depend on it.
//!
//! `cargo tree --package PACKAGE --edges normal,build,dev --format '{p} {f}'` shows what a package enables alone.
