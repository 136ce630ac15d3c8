//! The group `autoscaling`, one file per kind.

use crate::kind::Kind;

mod annotations;
mod horizontalpodautoscaler_v1;
mod horizontalpodautoscaler_v2;
mod scale;
pub(crate) mod validation;

pub use scale::scale_kind;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![horizontalpodautoscaler_v2::kind(), horizontalpodautoscaler_v1::kind()]
}
