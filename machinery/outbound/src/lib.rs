//! Requests to services outside of the cluster, such as a cloud's API or a bucket.
//!
//! - [`https`]: HTTP/1.1 with or without TLS, one connection a request, with deadlines and limits.
//! - [`sign`]: AWS Signature Version 4, and the credentials that sign.
//! - [`xml`]: the documents that AWS's APIs answer with.
//!
//! Must never: read flags, files or the environment, or repeat a request by itself.

pub mod https;
pub mod sign;
pub mod xml;
