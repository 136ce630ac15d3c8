//! Discovery and OpenAPI: the documents about the resources that the server serves.

mod groups;
mod openapi;
mod published;
mod remote;

pub use published::Published;
pub use remote::{RemoteDocuments, RemoteVersion};
