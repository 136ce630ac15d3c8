//! The ResourceQuota controller: updates the usage in each quota's status as soon as it changes.
//!
//! Admission charges creations and deletions in the same commit; changes in between, such as a pod that terminates,
//! show here. Admission never relies on this status, so a stale one allows and denies nothing wrongly.

use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::ResourceQuota;
use corten_api::quota::{
    Counted, ExtendedResources, ResourceList, changes_scope, concerns, extended_resources, in_use, resource_list, usage,
};
use corten_client::{Cache, Caches, Change, Client, Error, Resource, WorkQueue};
use corten_meta::{Key, Object, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::runtime::discovery::Discovered;
use crate::runtime::monitors::{Listener, Monitors};
use crate::runtime::workqueue::run_workers;

const WORKERS: usize = 4;

pub struct ResourceQuotaController {
    quotas: Arc<Cache>,
    client: Client,
    queue: WorkQueue<Key>,
}

impl ResourceQuotaController {
    pub fn new(caches: &Caches, client: Client, queue: WorkQueue<Key>) -> ResourceQuotaController {
        ResourceQuotaController { quotas: caches.of::<ResourceQuota>(), client, queue }
    }

    /// Enqueues the quotas of a namespace when the usage of one of its objects changes, and a quota when it changes.
    pub fn listener(&self) -> Listener {
        let (quotas, queue) = (self.quotas.clone(), self.queue.clone());
        Box::new(move |_: &Monitors, found: &Discovered, change: &Change| {
            let (group, plural) = (found.resource.group.as_str(), found.resource.plural.as_str());
            if (group, plural) == ("", "resourcequotas") && change.new.is_some() {
                queue.add(change.key.clone());
            }
            let concerned = quotas.list(&change.key.namespace);
            if change.key.namespace.is_empty() || concerned.is_empty() || !changes_usage(group, plural, change) {
                return;
            }
            for quota in concerned.iter().filter(|quota| concerns(&hard(&quota.value()), group, plural)) {
                queue.add(quota.key());
            }
        })
    }

    pub async fn run(self, monitors: Arc<Monitors>, shutdown: CancellationToken) {
        let (queue, this) = (self.queue.clone(), Arc::new(self));
        let handle = move |key: Key| {
            let (this, monitors) = (this.clone(), monitors.clone());
            async move { this.recalculate(&key, &monitors).await.map(|()| None) }
        };
        run_workers("resourcequota-controller", queue, WORKERS, shutdown, handle).await;
    }

    async fn recalculate(&self, key: &Key, monitors: &Monitors) -> Result<(), Error> {
        let Some(quota) = self.quotas.get(key) else { return Ok(()) };
        let value = quota.value();
        let limits = hard(&value);
        let content = monitors.in_namespace(&key.namespace, |of| concerns(&limits, &of.group, &of.plural));
        let classes = monitors.of_cluster("resource.k8s.io", "deviceclasses");
        let extended = extended_resources(classes.iter().map(|class| class.value()));
        let Some(updated) = with_status(value, &extended, &content) else { return Ok(()) };
        match self.client.dynamic(&Resource::of::<ResourceQuota>()).update_status(&updated).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

fn hard(quota: &Value) -> ResourceList {
    resource_list(quota.pointer("/spec/hard"))
}

/// Reports whether an update changes the counted usage. Most do not; parsing both versions is cheaper than counting
/// everything again.
fn changes_usage(group: &str, plural: &str, change: &Change) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    let measured = group.is_empty() && matches!(plural, "pods" | "services" | "persistentvolumeclaims");
    if !measured {
        return false;
    }
    let old = old.value();
    let new = new.value();
    usage(group, plural, &old) != usage(group, plural, &new) || changes_scope(plural, &old, &new)
}

/// Returns the quota with its usage computed from the content; none if its status is up to date.
fn with_status(
    mut quota: Value,
    extended: &ExtendedResources,
    content: &[(Resource, Vec<Arc<Object>>)],
) -> Option<Value> {
    let mut objects = Vec::new();
    for (Resource { group, plural, .. }, listed) in content {
        objects.extend(listed.iter().map(|object| Counted { group, plural, object: object.value() }));
    }
    let used = in_use(&quota, extended, &objects);
    let reported = |pointer: &str| resource_list(quota.pointer(pointer));
    if reported("/status/hard") == hard(&quota) && reported("/status/used") == used && !quota["status"].is_null() {
        return None;
    }
    let used: serde_json::Map<String, Value> = used.iter().map(|(n, a)| (n.clone(), a.to_string().into())).collect();
    let hard = quota.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    quota["status"] = json!({ "hard": hard, "used": used });
    Some(quota)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit_fixture as fixture;

    const NONE: ExtendedResources = ExtendedResources::new();

    fn object(line: &str) -> Arc<Object> {
        Arc::new(Object::from_value(&fixture::object(line), 1).unwrap())
    }

    fn pods(lines: &[String]) -> (Resource, Vec<Arc<Object>>) {
        (Resource::new("", "v1", "pods", true), lines.iter().map(|line| object(line)).collect())
    }

    #[test]
    fn usage_is_written_once_and_follows_the_objects() {
        let quota = fixture::object("quota q hard={pods: 2, count/widgets.example.com: 1}");
        let widgets = Resource::new("example.com", "v1", "widgets", true);
        let content = vec![
            pods(&["pod a".to_owned(), "pod b Succeeded".to_owned()]),
            (widgets, vec![object("example.com/v1/Widget w")]),
        ];
        let with_use = with_status(quota, &NONE, &content).unwrap();
        assert_eq!(with_use["status"]["used"], json!({"pods": "1", "count/widgets.example.com": "1"}));
        assert_eq!(with_use["status"]["hard"], with_use["spec"]["hard"]);
        assert_eq!(with_status(with_use.clone(), &NONE, &content), None, "the same use is no news");
        let reversed: Vec<_> = content.iter().rev().cloned().collect();
        assert_eq!(with_status(with_use.clone(), &NONE, &reversed), None, "the order of lists does not matter");
        assert_eq!(
            with_status(with_use, &NONE, &content[..1]).unwrap()["status"]["used"]["count/widgets.example.com"],
            "0"
        );
    }

    #[test]
    fn only_changes_of_the_use_are_counted_again() {
        for (old, new, expected) in [
            (None, Some("pod p Running"), true),
            (Some("pod p Running"), Some("pod p Running ready=5"), false),
            (Some("pod p Running"), Some("pod p Succeeded"), true),
            (Some("pod p Running"), Some("pod p Running activeDeadlineSeconds=3600"), true),
            (Some("pod p Running"), None, true),
        ] {
            let change = Change { key: Key::new("default", "p"), old: old.map(object), new: new.map(object) };
            assert_eq!(changes_usage("", "pods", &change), expected, "{old:?} {new:?}");
        }
    }

    proptest::proptest! {
        /// The order of objects does not matter, and a second update changes nothing.
        #[test]
        fn the_use_is_the_same_in_any_order_and_settles(
            phases in proptest::collection::vec(0usize..4, 0..8), turned in 0usize..8,
        ) {
            let quota =
                fixture::object("quota q hard={pods: 2, requests.cpu: 1, limits.memory: 1Gi, count/pods: 9}");
            let line = |(number, phase): (usize, &usize)| {
                let phase = ["Pending", "Running", "Succeeded", "Failed"][*phase];
                format!("pod p{number} {phase} request.cpu=100m limit.memory=64Mi")
            };
            let lines: Vec<String> = phases.iter().enumerate().map(line).collect();
            let mut others = lines.clone();
            others.rotate_left(turned % lines.len().max(1));
            let with_use = with_status(quota.clone(), &NONE, &[pods(&lines)]).unwrap();
            proptest::prop_assert_eq!(with_status(quota, &NONE, &[pods(&others)]), Some(with_use.clone()));
            let alive = phases.iter().filter(|phase| **phase < 2).count();
            proptest::prop_assert_eq!(&with_use["status"]["used"]["pods"], &json!(alive.to_string()));
            proptest::prop_assert_eq!(with_status(with_use, &NONE, &[pods(&others)]), None);
        }
    }
}
