//! Aggregated ClusterRoles: their rules are the union of the ClusterRoles that their selectors match.

use corten_api::Typed;
use corten_api::k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Plan, View, Watch, key_of};
use crate::workload::owner::selector;

pub struct ClusterRoleAggregationController;

pub struct Observed {
    role: ClusterRole,
    all: Vec<ClusterRole>,
}

impl Controller for ClusterRoleAggregationController {
    type Observed = Observed;

    const NAME: &'static str = "clusterrole-aggregation-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<ClusterRole>(of_role)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let role: ClusterRole = view.typed(key).filter(|role: &ClusterRole| role.aggregation_rule.is_some())?;
        let mut all: Vec<ClusterRole> = view.all("");
        all.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        Some(Observed { role, all })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let role = &observed.role;
        let rules = union(role, &observed.all);
        if role.rules.as_deref().unwrap_or_default() == rules {
            return Plan::nothing();
        }
        let mut updated = role.clone();
        updated.rules = Some(rules);
        Plan::from(Action::update(&updated))
    }
}

/// Every aggregated role: any role may be a part of any of them.
fn of_role(view: &dyn View, _: &Change) -> Vec<Key> {
    let all: Vec<ClusterRole> = view.all("");
    all.iter().filter(|role| role.aggregation_rule.is_some()).map(key_of).collect()
}

fn union(role: &ClusterRole, all: &[ClusterRole]) -> Vec<PolicyRule> {
    let selectors = role.aggregation_rule.as_ref().and_then(|rule| rule.cluster_role_selectors.as_ref());
    let none = Default::default();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for wanted in selectors.into_iter().flatten().map(selector) {
        let chosen = all.iter().filter(|other| {
            other.name() != role.name() && wanted.matches(other.metadata.labels.as_ref().unwrap_or(&none))
        });
        for rule in chosen.flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}
