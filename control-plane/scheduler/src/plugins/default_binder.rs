//! DefaultBinder: binds by the pod's `binding` subresource, which `outcome` does. A profile without it and without an
//! extender that binds cannot schedule pods, and is rejected.

use crate::framework::{Plugin, Point};

pub struct DefaultBinder;

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Bind]
    }
}
