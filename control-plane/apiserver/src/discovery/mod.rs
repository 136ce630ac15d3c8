//! Discovery and OpenAPI: the documents by which clients learn what the server serves.

mod groups;
mod openapi;
mod published;
mod remote;

pub use published::Published;
pub use remote::{RemoteDocuments, RemoteVersion};
