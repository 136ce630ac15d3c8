//! tonic as generated clients and servers see it: the same names, but a unary call is compiled once.
//!
//! tonic's `Grpc` is generic over the messages, so a binary with a hundred methods holds a hundred copies of framing,
//! limits, trailers and body types. Here a message is encoded and decoded at the edge, and all unary calls share one
//! tonic that moves bytes. A package of generated code depends on this one under the name `tonic`; everything that is
//! not replaced here is tonic's own, so its users keep tonic's types. Streams are few and stay typed.

pub use tonic::*;

mod message;

/// tonic's client, with unary calls of bytes.
pub mod client {
    pub use tonic::client::GrpcService;

    pub use crate::call::Grpc;
}

/// tonic's server, with unary calls of bytes.
pub mod server {
    pub use tonic::server::{NamedService, ServerStreamingService, StreamingService, UnaryService};

    pub use crate::serve::Grpc;
}

mod call;
mod serve;
