//! Warnings about annotations of Ingresses, which the API server gives to their authors.

use corten_apiserver::Adviser;
use corten_gateway::{annotations, resolve};
use corten_meta::Value;

/// Warns the authors of Ingresses of annotations that have no effect.
#[derive(Debug)]
pub struct IngressAdviser;

impl Adviser for IngressAdviser {
    fn warnings(&self, group: &str, plural: &str, object: &Value) -> Vec<String> {
        match (group, plural) {
            ("networking.k8s.io", "ingresses") => annotations::warnings(object, resolve::CLASS),
            _ => Vec::new(),
        }
    }
}
