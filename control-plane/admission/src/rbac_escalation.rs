//! RBAC escalation: a user cannot grant permissions beyond the user's own without the verb `escalate` or `bind`.

use corten_access::{self as access, Rule};
use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

const GROUP: &str = "rbac.authorization.k8s.io";

pub struct RbacEscalation;

impl Plugin for RbacEscalation {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let kind = a.target.resource.kind();
            if a.operation == Operation::Delete || a.target.context.user().is_in("system:masters") {
                return Ok(());
            }
            match kind.plural.as_str() {
                "roles" | "clusterroles" => check_role(a).await,
                _ => check_binding(a).await,
            }
        })
    }
}

async fn check_role(a: &Attributes<'_>) -> Result<(), Status> {
    let unchanged = a.old.as_deref().is_some_and(|old| {
        old["rules"] == a.object["rules"] && old.get("aggregationRule") == a.object.get("aggregationRule")
    });
    if unchanged || may(a, "escalate", &a.target.resource.kind().plural, corten_meta::name(&a.object)).await {
        return Ok(());
    }
    let wanted: Vec<Rule> = a.object["rules"].as_array().into_iter().flatten().map(Rule::from_value).collect();
    if a.object.get("aggregationRule").is_some_and(|r| !r.is_null()) {
        let all = || vec!["*".to_owned()];
        let everything = Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() };
        check_covered(a, &[everything])?;
    }
    check_covered(a, &wanted)
}

async fn check_binding(a: &Attributes<'_>) -> Result<(), Status> {
    let unchanged = a
        .old
        .as_deref()
        .is_some_and(|old| old["roleRef"] == a.object["roleRef"] && old["subjects"] == a.object["subjects"]);
    let string = |key: &str| a.object["roleRef"][key].as_str().unwrap_or_default();
    let kind = string("kind");
    let name = string("name");
    let plural = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
    if unchanged || may(a, "bind", plural, name).await {
        return Ok(());
    }
    let Some(rules) = a.target.core.authorizer.role(kind, a.target.namespace, name) else {
        let resource = corten_meta::GroupResource { group: GROUP.to_owned(), resource: plural.to_owned() };
        return Err(Status::not_found(&resource, name));
    };
    check_covered(a, &rules)
}

async fn may(a: &Attributes<'_>, verb: &str, plural: &str, name: &str) -> bool {
    let attributes = access::Attributes {
        group: GROUP,
        resource: plural,
        namespace: a.target.namespace,
        name,
        ..access::Attributes::resource(a.target.context.user(), verb)
    };
    a.target.core.authorizer.authorize(&attributes).await.is_ok()
}

fn check_covered(a: &Attributes<'_>, wanted: &[Rule]) -> Result<(), Status> {
    let user = a.target.context.user();
    let owned = a.target.core.authorizer.rules_for(user, a.target.namespace);
    let missing: Vec<String> = wanted
        .iter()
        .flat_map(Rule::atoms)
        .filter(|atom| !owned.iter().any(|rule| rule.covers_atom(atom)))
        .map(|atom| describe(&atom.to_value()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(quote).collect();
    Err(a.forbidden(format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        quote(&user.name),
        groups.join(" "),
        missing.join("\n")
    )))
}

/// Formats a rule as upstream prints it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
fn describe(rule: &Value) -> String {
    let names = [
        ("apiGroups", "APIGroups"),
        ("resources", "Resources"),
        ("resourceNames", "ResourceNames"),
        ("nonResourceURLs", "NonResourceURLs"),
        ("verbs", "Verbs"),
    ];
    let parts: Vec<String> =
        names.iter().filter_map(|(field, shown)| rule.get(*field).map(|list| format!("{shown}:{list}"))).collect();
    format!("{{{}}}", parts.join(", "))
}
