//! What a selector of devices can speak of. One place for those who judge a selector and those who select by it.

use std::collections::BTreeMap;

use crate::{Env, Type};

/// The environment with `device`: its driver, and by domain its attributes and capacities.
pub fn environment() -> Env {
    const DEVICE: &str = "kubernetes.DRADevice";
    let of_domain = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    let fields = BTreeMap::from([
        ("driver".to_owned(), Type::String),
        ("attributes".to_owned(), of_domain(Type::Dyn)),
        ("capacity".to_owned(), of_domain(Type::named("kubernetes.Quantity"))),
        ("allowMultipleAllocations".to_owned(), Type::Bool),
    ]);
    Env::new().message(DEVICE, fields).variable("device", Type::named(DEVICE))
}
