//! Does nothing: a package without a build script has no build dependencies, and so no features of them.

fn main() {}
