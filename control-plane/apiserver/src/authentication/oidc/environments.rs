//! The variables of the expressions that an AuthenticationConfiguration holds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_cel::{Env, Type};

/// The environment of expressions about claims.
pub static CLAIMS: LazyLock<Env> = LazyLock::new(|| Env::new().variable("claims", Type::map(Type::String, Type::Dyn)));

/// The environment of rules about the user.
pub static USER: LazyLock<Env> = LazyLock::new(|| {
    let strings = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", strings()),
        ("extra", Type::map(Type::String, strings())),
    ];
    let fields: BTreeMap<String, Type> = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    Env::new().message("kubernetes.UserInfo", fields).variable("user", Type::named("kubernetes.UserInfo"))
});
