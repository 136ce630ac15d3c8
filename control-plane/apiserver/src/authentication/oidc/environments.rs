//! The variables of the expressions that an AuthenticationConfiguration holds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_cel::{Env, Type};

/// What expressions about claims may speak of.
pub static CLAIMS: LazyLock<Env> = LazyLock::new(|| Env::new().variable("claims", Type::map(Type::String, Type::Dyn)));

/// What rules about the user may speak of.
pub static USER: LazyLock<Env> = LazyLock::new(|| {
    let texts = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    let fields: BTreeMap<String, Type> = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    Env::new().message("kubernetes.UserInfo", fields).variable("user", Type::named("kubernetes.UserInfo"))
});
