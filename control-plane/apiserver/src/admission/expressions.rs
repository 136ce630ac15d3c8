//! What expressions of admission may speak of: the object before and after, the request, and who may do what.
//!
//! Types and names are upstream's. Whoever evaluates hands in JSON that lives as long as the evaluation.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_cel::library::authorizer::Authorization;
use corten_cel::{Authorizer, Check, Decision, Env, Type, Value};

use crate::admission::Attributes;
use crate::authentication::User;
use crate::authorization::{self, authorize};

/// The environment of match conditions.
pub static ADMISSION: LazyLock<Env> = LazyLock::new(|| {
    let text = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Type::String)).collect::<BTreeMap<_, _>>();
    let mut user = text(&["username", "uid"]);
    user.insert("groups".to_owned(), Type::list(Type::String));
    user.insert("extra".to_owned(), Type::map(Type::String, Type::list(Type::String)));
    let mut request = text(&["subResource", "requestSubResource", "name", "namespace", "operation"]);
    let of = |name: &str| Type::Struct(format!("kubernetes.{name}").as_str().into());
    for (field, kind) in [
        ("kind", of("GroupVersionKind")),
        ("requestKind", of("GroupVersionKind")),
        ("resource", of("GroupVersionResource")),
        ("requestResource", of("GroupVersionResource")),
        ("userInfo", of("UserInfo")),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ] {
        request.insert(field.to_owned(), kind);
    }
    Env::new()
        .message("kubernetes.GroupVersionKind", text(&["group", "version", "kind"]))
        .message("kubernetes.GroupVersionResource", text(&["group", "version", "resource"]))
        .message("kubernetes.UserInfo", user)
        .message("kubernetes.AdmissionRequest", request)
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .variable("request", of("AdmissionRequest"))
        .variable("authorizer", Type::named("kubernetes.authorization.Authorizer"))
        .variable("authorizer.requestResource", Type::named("kubernetes.authorization.ResourceCheck"))
});

/// Answers what expressions ask about rights.
pub struct Rights<'a>(pub &'a Attributes<'a>);

impl Authorizer for Rights<'_> {
    fn authorize(&self, check: &Check) -> Decision {
        let target = self.0.target;
        let account = check.service_account.as_ref().map(|(namespace, name)| User::service_account(namespace, name));
        let asked = authorization::Attributes {
            user: account.as_ref().unwrap_or(&target.context.user),
            verb: &check.verb,
            is_resource: check.path.is_none(),
            group: &check.group,
            resource: &check.resource,
            subresource: &check.subresource,
            namespace: &check.namespace,
            name: &check.name,
            path: check.path.as_deref().unwrap_or_default(),
        };
        match authorize(target.server, &asked) {
            Ok(reason) => Decision { allowed: true, reason, error: None },
            Err(reason) => Decision { allowed: false, reason, error: None },
        }
    }
}

/// The variables of one request.
pub fn variables<'a>(
    rights: &'a Rights<'a>,
    object: &'a corten_meta::Value,
    old: &'a corten_meta::Value,
    request: &'a corten_meta::Value,
) -> [(&'static str, Value<'a>); 5] {
    let a = rights.0;
    let kind = &a.target.resource.kind;
    let check = Check {
        group: kind.group.clone(),
        resource: kind.plural.clone(),
        subresource: a.subresource().to_owned(),
        namespace: a.target.namespace.to_owned(),
        name: a.name().to_owned(),
        ..Check::default()
    };
    [
        ("object", Value::json(object)),
        ("oldObject", Value::json(old)),
        ("request", Value::json(request)),
        ("authorizer", Authorization::authorizer(rights)),
        ("authorizer.requestResource", Authorization::resource(rights, check)),
    ]
}
