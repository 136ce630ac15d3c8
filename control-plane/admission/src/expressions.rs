//! The CEL environment of admission: the object before and after the write, the request, its namespace and the
//! authorizer. Types and names are upstream's, declared once for match conditions and policies.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use corten_access::{self as access, User};
use corten_cel::library::authorizer::Authorization;
use corten_cel::{Authorizer, Check, Decision, Env, Type, Value};

use crate::attributes::Attributes;
use crate::door::Core;
use crate::door::Resource;

/// The environment of admission, without `params` and `variables`.
static BASE: LazyLock<Env> = LazyLock::new(|| {
    let string = || Type::String;
    let fields = |fields: &[(&str, Type)]| -> BTreeMap<String, Type> {
        fields.iter().map(|(name, of)| ((*name).to_owned(), of.clone())).collect()
    };
    let strings = Type::list(Type::String);
    let labels = Type::map(Type::String, Type::String);
    let kind = Type::named("kubernetes.GroupVersionKind");
    let resource = Type::named("kubernetes.GroupVersionResource");
    Env::new()
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .variable("request", Type::named("kubernetes.AdmissionRequest"))
        .message(
            "kubernetes.GroupVersionKind",
            fields(&[("group", string()), ("version", string()), ("kind", string())]),
        )
        .message(
            "kubernetes.GroupVersionResource",
            fields(&[("group", string()), ("version", string()), ("resource", string())]),
        )
        .message(
            "kubernetes.UserInfo",
            fields(&[
                ("username", string()),
                ("uid", string()),
                ("groups", strings.clone()),
                ("extra", Type::map(Type::String, strings.clone())),
            ]),
        )
        .message(
            "kubernetes.AdmissionRequest",
            fields(&[
                ("kind", kind.clone()),
                ("resource", resource.clone()),
                ("subResource", string()),
                ("requestKind", kind),
                ("requestResource", resource),
                ("requestSubResource", string()),
                ("name", string()),
                ("namespace", string()),
                ("operation", string()),
                ("userInfo", Type::named("kubernetes.UserInfo")),
                ("dryRun", Type::Bool),
                ("options", Type::Dyn),
            ]),
        )
        .variable("namespaceObject", Type::named("kubernetes.Namespace"))
        .message(
            "kubernetes.NamespaceMetadata",
            fields(&[
                ("name", string()),
                ("generateName", string()),
                ("namespace", string()),
                ("labels", labels.clone()),
                ("annotations", labels),
                ("UID", string()),
                ("creationTimestamp", Type::Timestamp),
                ("deletionGracePeriodSeconds", Type::Int),
                ("deletionTimestamp", Type::Timestamp),
                ("generation", Type::Int),
                ("resourceVersion", string()),
                ("finalizers", strings.clone()),
            ]),
        )
        .message("kubernetes.NamespaceSpec", fields(&[("finalizers", strings)]))
        .message("kubernetes.NamespaceStatus", fields(&[("phase", string())]))
        .message(
            "kubernetes.Namespace",
            fields(&[
                ("metadata", Type::named("kubernetes.NamespaceMetadata")),
                ("spec", Type::named("kubernetes.NamespaceSpec")),
                ("status", Type::named("kubernetes.NamespaceStatus")),
            ]),
        )
});

/// Returns the environment of one kind of expression.
pub fn env(params: bool, authorizer: bool) -> Env {
    let mut env = BASE.clone();
    if params {
        env = env.variable("params", Type::Dyn);
    }
    if authorizer {
        env = env
            .variable("authorizer", Type::named("kubernetes.authorization.Authorizer"))
            .variable("authorizer.requestResource", Type::named("kubernetes.authorization.ResourceCheck"));
    }
    env
}

/// The authorizer of expressions, for the user of the request.
///
/// Expressions are evaluated without waiting. A check that only an authorization webhook can answer is recorded and
/// fails with an error; `settled` then asks the webhook and evaluates once more, until every check has its decision.
pub struct Rights<'a> {
    core: Core<'a>,
    user: &'a User,
    /// The check of the request itself.
    request: Check,
    decisions: Mutex<HashMap<Check, Option<Decision>>>,
}

/// The maximum number of rounds: each decision may lead to another check.
const MAX_ROUNDS: usize = 16;

impl<'a> Rights<'a> {
    pub fn new(a: &Attributes<'a>, resource: &dyn Resource) -> Rights<'a> {
        let kind = resource.kind();
        let request = Check {
            group: kind.group.clone(),
            resource: kind.plural.clone(),
            subresource: a.subresource().to_owned(),
            namespace: a.target.namespace.to_owned(),
            name: a.name().to_owned(),
            ..Check::default()
        };
        Rights { core: a.target.core, user: a.target.context.user(), request, decisions: Mutex::default() }
    }

    /// Returns the variables `authorizer` and `authorizer.requestResource`.
    pub fn variables<'r>(&'r self) -> [(&'static str, Value<'r>); 2] {
        [
            ("authorizer", Authorization::authorizer(self)),
            ("authorizer.requestResource", Authorization::resource(self, self.request.clone())),
        ]
    }

    /// Evaluates until every check has its decision.
    pub async fn settled<T>(&self, evaluate: impl Fn() -> T) -> T {
        for _ in 0..MAX_ROUNDS {
            let value = evaluate();
            let open: Vec<Check> = {
                let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
                decisions.iter().filter(|(_, answer)| answer.is_none()).map(|(check, _)| check.clone()).collect()
            };
            if open.is_empty() {
                return value;
            }
            for check in open {
                let account = account(&check);
                let answer =
                    self.core.authorizer.authorize(&attributes_of(account.as_ref().unwrap_or(self.user), &check)).await;
                let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
                decisions.insert(check, Some(decision(answer)));
            }
        }
        evaluate()
    }
}

fn account(check: &Check) -> Option<User> {
    check.service_account.as_ref().map(|(namespace, name)| User::service_account(namespace, name))
}

fn attributes_of<'a>(user: &'a User, check: &'a Check) -> access::Attributes<'a> {
    let base = access::Attributes::resource(user, &check.verb);
    match &check.path {
        Some(path) => access::Attributes { is_resource: false, path, ..base },
        None => access::Attributes {
            group: &check.group,
            version: "*",
            resource: &check.resource,
            subresource: &check.subresource,
            namespace: &check.namespace,
            name: &check.name,
            field_selector: &check.field_selector,
            label_selector: &check.label_selector,
            ..base
        },
    }
}

fn decision(answer: Result<String, String>) -> Decision {
    match answer {
        Ok(reason) => Decision { allowed: true, reason, error: None },
        Err(reason) => Decision { allowed: false, reason, error: None },
    }
}

impl Authorizer for Rights<'_> {
    fn authorize(&self, check: &Check) -> Decision {
        let account = account(check);
        let attributes = attributes_of(account.as_ref().unwrap_or(self.user), check);
        if let Some(answer) = self.core.authorizer.authorize_now(&attributes) {
            return decision(answer);
        }
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = decisions.entry(check.clone()).or_default();
        let open = || Decision { error: Some("the authorizer has not answered".to_owned()), ..Decision::default() };
        answer.clone().unwrap_or_else(open)
    }
}
