//! The RBAC roles of the controllers, for tests: no plan may contain a request that the API server would deny.
//!
//! The roles are the server's bootstrap roles. A service account without such a role belongs to a controller of our
//! own, whose role is part of the cluster's manifests; it is not checked here.

use std::collections::HashMap;
use std::sync::LazyLock;

use corten_api::k8s_openapi::api::core::v1::Pod;

use crate::runtime::{Action, Plan, ResourceType};

const POLICY: &str = include_str!("../../../apiserver/src/authorization/bootstrap_policy.tbl");

/// Rules by controller: verbs, groups and resources, each separated by commas.
type Rules = HashMap<&'static str, Vec<[&'static str; 3]>>;

static ROLES: LazyLock<Rules> = LazyLock::new(|| {
    let (mut roles, mut current) = (Rules::new(), None);
    for line in POLICY.lines() {
        if let Some(rule) = line.strip_prefix("  ") {
            let words: Vec<&'static str> = rule.split(' ').collect();
            if let (Some(name), [verbs, groups, resources, ..]) = (current, words.as_slice()) {
                roles.entry(name).or_default().push([verbs, groups, resources]);
            }
            continue;
        }
        let name = line.strip_prefix("clusterrole system:controller:").and_then(|rest| rest.split(' ').next());
        current = name.filter(|name| !name.is_empty());
    }
    roles
});

/// Panics if the role of the controller does not permit an action of the plan.
pub fn assert_permitted(controller: &str, plan: &Plan) {
    let Some(rules) = ROLES.get(controller) else { return };
    for (verb, resource, subresource) in plan.actions.iter().filter_map(asked) {
        let group = if resource.group.is_empty() { "core" } else { resource.group };
        let named = match subresource {
            Some(subresource) => format!("{}/{subresource}", resource.plural),
            None => resource.plural.to_owned(),
        };
        let lists = |list: &str, one: &str| list.split(',').any(|listed| listed == one || listed == "*");
        let permits = |[verbs, groups, resources]: &[&str; 3]| {
            lists(verbs, verb) && lists(groups, group) && lists(resources, &named)
        };
        assert!(rules.iter().any(permits), "{controller} may not {verb} {group} {named}");
    }
}

/// Returns the verb, resource and subresource of an action.
fn asked(action: &Action) -> Option<(&'static str, ResourceType, Option<&'static str>)> {
    match action {
        Action::Create { resource, .. } => Some(("create", *resource, None)),
        Action::Update { resource, .. } => Some(("update", *resource, None)),
        Action::UpdateStatus { resource, .. } => Some(("update", *resource, Some("status"))),
        Action::Patch { resource, subresource, .. } => Some(("patch", *resource, *subresource)),
        Action::Delete { resource, .. } => Some(("delete", *resource, None)),
        Action::Absent { resource, .. } => Some(("get", *resource, None)),
        Action::Unused { .. } => Some(("list", ResourceType::of::<Pod>(), None)),
        Action::RemoveLocalVolume { .. }
        | Action::RemoveDirectory { .. }
        | Action::Event(_)
        | Action::Relay { .. }
        | Action::AskScale(_) => None,
    }
}

#[test]
#[should_panic(expected = "job-controller may not update core pods")]
fn what_a_role_does_not_permit_is_found_out() {
    let pod = testkit_fixture::typed::<Pod>("pod p");
    assert_permitted("job-controller", &Plan::from(Action::patch(&pod, serde_json::json!({}))));
    assert_permitted("job-controller", &Plan::from(Action::update(&pod)));
}
