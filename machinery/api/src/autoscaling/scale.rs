//! Scale: the object of every `scale` subresource.
//!
//! It is not a resource, so it is not in the registry: only its schema and its row are declared here.

use std::sync::OnceLock;

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, name, number};
use crate::kind::{Behaviour, Column, Kind};
use crate::validation::nonnegative;

struct Scale;

/// Returns the declaration of a scale.
pub fn scale_kind() -> &'static Kind {
    static KIND: OnceLock<Kind> = OnceLock::new();
    KIND.get_or_init(|| {
        let column = |(name, kind)| Column::new(name, kind);
        let columns = [("Name", "string"), ("Desired", "integer"), ("Available", "integer"), ("Age", "string")];
        Kind::new("autoscaling", "v1", "Scale", "scales").columns(columns.map(column).to_vec()).behaviour(Scale)
    })
}

impl Behaviour for Scale {
    fn validate(&self, scale: &Value) -> Vec<FieldError> {
        nonnegative(&scale["spec"]["replicas"], &Path::root("spec").child("replicas")).into_iter().collect()
    }

    fn cells(&self, scale: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(scale),
            number(scale, "/spec/replicas").into(),
            number(scale, "/status/replicas").into(),
            age(scale, now),
        ]
    }
}
