//! For tests alone: fixtures, images, an in-process API server, namespaces as nodes
