//! The console: a web page that speaks the Kubernetes API with the user's credential.
//!
//! It has no power of its own. Its files (`web/`) are static; the browser sends every request with the user's token.
//! [`Pages`] answers the files and is shown by the API server below `/console/`. A [`Question`] of a page, why an object is not
//! as it should be and how it came to be, is answered with the rights of its user. [`Gateway`] shows the same files on a
//! loopback address, passes other requests on to the API server as they are, and exchanges a one-time code for a token.
//!
//! It must never add a credential to a request that it passes on.

mod codes;
mod gateway;
mod pages;
mod questions;

pub use codes::Codes;
pub use gateway::{Error, Gateway};
pub use pages::{OpenId, PREFIX, Pages};
pub use questions::{Explainer, ObjectName, Question, QuestionKind, refusal, response};
