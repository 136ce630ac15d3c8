//! DefaultBinder: binds by the pod's `binding` subresource, which `outcome` does. A profile without it and without an
//! extender that binds cannot schedule pods, and is rejected.

use crate::framework::Plugin;

pub struct DefaultBinder;

impl Plugin for DefaultBinder {}
