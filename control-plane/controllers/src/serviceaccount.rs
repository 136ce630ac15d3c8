//! Creates the `default` ServiceAccount in every namespace, so that every pod has an identity.

use corten_api::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch};
use crate::workload::namespaces::live_namespace;

pub struct ServiceAccountController;

pub struct Observed {
    namespace: String,
}

impl Controller for ServiceAccountController {
    type Observed = Observed;

    fn name(&self) -> &'static str {
        "service-account-controller"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Namespace>(), Watch::mapped::<ServiceAccount>(namespace_of_deleted)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let namespace = live_namespace(view, key)?;
        let account = Key { namespace: namespace.clone(), name: "default".to_owned() };
        match view.get(ResourceType::of::<ServiceAccount>(), &account) {
            Some(_) => None,
            None => Some(Observed { namespace }),
        }
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let metadata = ObjectMeta {
            name: Some("default".to_owned()),
            namespace: Some(observed.namespace.clone()),
            ..ObjectMeta::default()
        };
        Plan::from(Action::create(&ServiceAccount { metadata, ..ServiceAccount::default() }))
    }
}

/// Returns the namespace of a deleted object.
pub fn namespace_of_deleted(_: &dyn View, change: &Change) -> Vec<Key> {
    match change.new {
        None => vec![Key { namespace: String::new(), name: change.key.namespace.clone() }],
        Some(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::{Model, converges};
    use serde_json::json;

    #[test]
    fn a_namespace_gets_its_default_account_and_no_second_one() {
        let mut model = Model::default();
        model.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}));
        let written = converges(&ServiceAccountController, &mut model, "", "a");
        assert_eq!(written, 1);
        assert_eq!(model.names("ServiceAccount"), ["default"]);
    }

    #[test]
    fn a_namespace_on_its_way_out_gets_none() {
        let mut model = Model::default();
        let metadata = json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        model.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        assert_eq!(converges(&ServiceAccountController, &mut model, "", "a"), 0);
    }
}
