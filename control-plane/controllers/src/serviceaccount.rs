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

    const NAME: &'static str = "service-account-controller";

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
