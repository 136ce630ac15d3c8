//! DefaultBinder: binds by the pod's `binding` subresource. What it stands for is done in `outcome`; a profile without
//! it (and without an extender that binds) cannot place pods, and is refused.

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
