//! Publishes the cluster's certificate authority as the ConfigMap `kube-root-ca.crt` in every namespace, for pods to
//! trust.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Count, Label, Plan, View, Watch};
use crate::workload::namespaces::live_namespace;

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIPTION_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

pub struct RootCaPublisher {
    pub root_ca: String,
}

pub struct Observed {
    namespace: String,
    current: Option<ConfigMap>,
}

impl Controller for RootCaPublisher {
    type Observed = Observed;

    const NAME: &'static str = "root-ca-cert-publisher";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Namespace>(), Watch::mapped::<ConfigMap>(of_config_map)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let namespace = live_namespace(view, key)?;
        let current = view.typed(&Key { namespace: namespace.clone(), name: NAME.to_owned() });
        Some(Observed { namespace, current })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = self.publish(observed);
        let code = Label::Result("200", "500");
        plan.count(&metrics::ROOT_CA_SYNCS, [code.clone()], 1.0);
        plan.counts.push(Count::took(&metrics::ROOT_CA_SECONDS, [code]));
        plan
    }
}

impl RootCaPublisher {
    fn publish(&self, observed: &Observed) -> Plan {
        let data = Some(BTreeMap::from([("ca.crt".to_owned(), self.root_ca.clone())]));
        let annotations = BTreeMap::from([(DESCRIPTION.to_owned(), DESCRIPTION_TEXT.to_owned())]);
        let Some(current) = &observed.current else {
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(observed.namespace.clone()),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            };
            return Plan::from(Action::create(&ConfigMap { metadata, data, ..ConfigMap::default() }));
        };
        let described = current.metadata.annotations.as_ref().and_then(|all| all.get(DESCRIPTION)).is_some();
        if current.data == data && described {
            return Plan::nothing();
        }
        let mut updated = current.clone();
        updated.data = data;
        updated.metadata.annotations.get_or_insert_default().extend(annotations);
        Plan::from(Action::update(&updated))
    }
}

fn of_config_map(_: &dyn View, change: &Change) -> Vec<Key> {
    match change.key.name == NAME {
        true => vec![Key { namespace: String::new(), name: change.key.namespace.clone() }],
        false => Vec::new(),
    }
}
