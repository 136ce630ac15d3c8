//! CRI server: images, containers, shims, streams
