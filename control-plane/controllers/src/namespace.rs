//! The namespace controller: deletes all objects of a terminating namespace, of every resource, then the namespace
//! itself.
//!
//! It finds the resources by discovery, so custom resources are included. It never removes its finalizer while objects
//! remain, or while a group of the API does not answer. It does not poll for remaining objects: the deletion of an
//! object enqueues its namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::{Cache, Caches, Change, Client, DeleteOptions, Error, ListOptions, Propagation, WorkQueue};
use corten_meta::{Key, Object};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use corten_api::Typed;

use crate::runtime::discovery::{self, Discovered};
use crate::runtime::monitors::{Listener, Monitors};
use crate::runtime::workqueue::{enqueue_changes, run_workers};
use crate::workload::condition;

const FINALIZER: &str = "kubernetes";
const WORKERS: usize = 4;
/// Many objects are deleted at once: one reconcile for all deletions within this time.
const SETTLE: Duration = Duration::from_millis(50);
/// The time until the next reconcile if unwatched objects remain.
const UNWATCHED: Duration = Duration::from_secs(5);

/// The remaining objects of a namespace, by resource and by finalizer, and the errors.
#[derive(Default)]
struct Content {
    remaining: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    failures: Vec<String>,
    undiscovered: Vec<String>,
    /// Whether objects remain that no monitor watches.
    unwatched: bool,
}

pub struct NamespaceController {
    cache: Arc<Cache>,
    client: Client,
    queue: WorkQueue<Key>,
}

impl NamespaceController {
    pub fn new(caches: &Caches, client: Client, queue: WorkQueue<Key>) -> NamespaceController {
        NamespaceController { cache: caches.of::<Namespace>(), client, queue }
    }

    /// Enqueues a terminating namespace when one of its objects is deleted or loses a finalizer.
    pub fn listener(&self) -> Listener {
        let (cache, queue) = (self.cache.clone(), self.queue.clone());
        Box::new(move |_: &Monitors, _: &Discovered, change: &Change| {
            let held = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |one| one.header.finalizers.len());
            let less = change.old.is_some() && (change.new.is_none() || held(&change.new) < held(&change.old));
            let key = Key::new("", change.key.namespace.clone());
            if less && !key.name.is_empty() && cache.get(&key).is_some_and(|namespace| is_terminating(&namespace)) {
                queue.add_after(key, SETTLE);
            }
        })
    }

    pub async fn run(self, monitors: Arc<Monitors>, shutdown: CancellationToken) {
        self.cache.synced().await;
        let leaving = |change: &Change| match &change.new {
            Some(new) if is_terminating(new) => vec![change.key.clone()],
            _ => Vec::new(),
        };
        let (cache, client) = (self.cache.clone(), self.client);
        let handle = move |key: Key| {
            let (cache, client, monitors) = (cache.clone(), client.clone(), monitors.clone());
            async move {
                match cache.get(&key).filter(|namespace| is_terminating(namespace)) {
                    Some(namespace) => finish(&client, &namespace, &monitors).await,
                    None => Ok(None),
                }
            }
        };
        tokio::join!(
            enqueue_changes(self.cache, self.queue.clone(), shutdown.clone(), leaving),
            run_workers("namespace-controller", self.queue, WORKERS, shutdown, handle),
        );
    }
}

fn is_terminating(namespace: &Object) -> bool {
    namespace.header.deletion_timestamp.is_some()
}

/// Deletes the content, updates the conditions, and removes the finalizer when nothing remains. Returns the time of the
/// next reconcile if no change would trigger it.
async fn finish(client: &Client, object: &Arc<Object>, monitors: &Monitors) -> Result<Option<Duration>, Error> {
    let Some(mut namespace) = client.find::<Namespace>("", &object.header.name).await? else { return Ok(None) };
    let ours = namespace
        .spec
        .as_ref()
        .and_then(|spec| spec.finalizers.as_ref())
        .is_some_and(|all| all.iter().any(|f| f == FINALIZER));
    if namespace.metadata.uid.as_deref() != Some(&object.header.uid) || !ours {
        return Ok(None);
    }
    let content = empty(client, &object.header.name, monitors).await?;
    let status = status(&namespace, &content, crate::runtime::now());
    if namespace.status.as_ref() != Some(&status) {
        namespace.status = Some(status);
        namespace = client.update_status(&namespace).await?;
    }
    if let Some(error) = content.failures.first().or(content.undiscovered.first()) {
        return Err(Error::Transport(error.clone()));
    }
    if !content.remaining.is_empty() {
        return Ok(content.unwatched.then_some(UNWATCHED));
    }
    let spec = namespace.spec.get_or_insert_default();
    spec.finalizers = spec.finalizers.take().map(|all| all.into_iter().filter(|name| name != FINALIZER).collect());
    match client.of::<Namespace>().update_subresource("", &object.header.name, "finalize", &namespace.to_value()).await
    {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(None),
    }
}

/// Deletes the content of a namespace and counts the remaining objects. Pods are deleted first, and the rest waits
/// until they are gone: a terminating pod still reads its ConfigMaps and depends on its NetworkPolicies.
async fn empty(client: &Client, namespace: &str, monitors: &Monitors) -> Result<Content, Error> {
    let (mut resources, undiscovered) = discovery::resources(client).await?;
    resources.retain(|found| found.resource.namespaced && found.allows(&["delete", "list"]));
    let are_pods = |found: &Discovered| found.resource.group.is_empty() && found.resource.plural == "pods";
    resources.sort_unstable_by_key(|found| (!are_pods(found), found.resource.clone()));
    let mut content = Content { undiscovered, ..Content::default() };
    for found in &resources {
        let before = content.remaining.len();
        let emptied = empty_of(client, namespace, found, &mut content).await;
        let remain = content.remaining.len() > before;
        content.unwatched |= remain && !monitors.is_followed(&found.resource);
        // After an error, remaining pods cannot be excluded.
        let wait = are_pods(found) && (remain || emptied.is_err());
        content.failures.extend(emptied.err().map(|error| error.to_string()));
        if wait {
            break;
        }
    }
    Ok(content)
}

async fn empty_of(client: &Client, namespace: &str, found: &Discovered, content: &mut Content) -> Result<(), Error> {
    let dynamic = client.dynamic(&found.resource);
    let objects = match dynamic.list_objects(namespace, &ListOptions::default()).await {
        Ok(list) => list.items,
        Err(error) if error.is_not_found() || error.is_method_not_allowed() => return Ok(()),
        Err(error) => return Err(error),
    };
    if objects.is_empty() {
        return Ok(());
    }
    let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    if found.allows(&["deletecollection"]) {
        dynamic.delete_collection(namespace, &options, &ListOptions::default()).await?;
    } else {
        for object in objects.iter().filter(|object| object.header.deletion_timestamp.is_none()) {
            match dynamic.delete(namespace, &object.header.name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    for object in dynamic.list_objects(namespace, &ListOptions::default()).await?.items {
        content.count(&found.resource.plural, &found.resource.group, &object);
    }
    Ok(())
}

impl Content {
    fn count(&mut self, plural: &str, group: &str, object: &Object) {
        *self.remaining.entry(format!("{plural}.{group}")).or_default() += 1;
        for finalizer in &object.header.finalizers {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }
}

/// A condition: its type, the reason and message of a problem if there is one, and those without a problem.
type Finding = (&'static str, Option<(&'static str, String)>, (&'static str, &'static str));

fn findings(content: &Content) -> [Finding; 5] {
    let listed = |counts: &BTreeMap<String, usize>, verb: &str| {
        let line = |(name, count): (&String, &usize)| format!("{name} {verb} {count} resource instances");
        counts.iter().map(line).collect::<Vec<_>>().join(", ")
    };
    let trouble = |present: bool, reason, message: String| present.then_some((reason, message));
    let undiscovered = format!(
        "Discovery failed for some groups, {} failing: {}",
        content.undiscovered.len(),
        content.undiscovered.join(", ")
    );
    let failures = format!(
        "Failed to delete all resource types, {} remaining: {}",
        content.failures.len(),
        content.failures.join(", ")
    );
    let remaining = format!("Some resources are remaining: {}", listed(&content.remaining, "has"));
    let finalizers =
        format!("Some content in the namespace has finalizers remaining: {}", listed(&content.finalizers, "in"));
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            trouble(!content.undiscovered.is_empty(), "DiscoveryFailed", undiscovered),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            trouble(!content.failures.is_empty(), "ContentDeletionFailed", failures),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            trouble(!content.remaining.is_empty(), "SomeResourcesRemain", remaining),
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            trouble(!content.finalizers.is_empty(), "SomeFinalizersRemain", finalizers),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ]
}

fn status(namespace: &Namespace, content: &Content, now: Timestamp) -> NamespaceStatus {
    let conditions = namespace.status.clone().and_then(|status| status.conditions);
    let mut status = NamespaceStatus { phase: Some("Terminating".to_owned()), conditions };
    for (kind, trouble, (reason, message)) in findings(content) {
        let condition = match trouble {
            Some((reason, message)) => new_condition(kind, "True", reason, message, now),
            None => new_condition(kind, "False", reason, message.to_owned(), now),
        };
        replace_if_news(&mut status.conditions, condition);
    }
    status
}

fn new_condition(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> NamespaceCondition {
    NamespaceCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(now)),
    }
}

/// Replaces the condition also when only the message changes; the transition time changes only with the status.
fn replace_if_news(conditions: &mut Option<Vec<NamespaceCondition>>, mut new: NamespaceCondition) {
    let old = condition::find(conditions, &new.type_).cloned();
    if let Some(old) = &old {
        if old.status == new.status {
            new.last_transition_time = old.last_transition_time.clone();
        }
        if *old == new {
            return;
        }
    }
    match conditions.get_or_insert_default().iter_mut().find(|condition| condition.type_ == new.type_) {
        Some(place) => *place = new,
        None => conditions.get_or_insert_default().push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_have_upstreams_words_and_settle() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut content = Content::default();
        content.remaining.insert("pods.".to_owned(), 2);
        content.finalizers.insert("example.com/keep".to_owned(), 1);
        let mut namespace = Namespace::default();
        let status_now = status(&namespace, &content, now);
        let message = |kind: &str| condition::find(&status_now.conditions, kind).unwrap().message.clone().unwrap();
        assert_eq!(
            message("NamespaceContentRemaining"),
            "Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            message("NamespaceFinalizersRemaining"),
            "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"
        );
        namespace.status = Some(status_now.clone());
        let later: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(status(&namespace, &content, later), status_now, "the same content is no news");
    }

    proptest::proptest! {
        /// For any remaining objects and errors: a condition is true if there is a problem of its kind, and the same
        /// content changes nothing at a later time.
        #[test]
        fn conditions_tell_the_trouble_there_is_and_settle(
            remaining in proptest::collection::btree_map("[a-z]{1,4}\\.", 1usize..9, 0..3),
            finalizers in proptest::collection::btree_map("[a-z]{1,4}", 1usize..9, 0..3),
            failures in proptest::collection::vec("[a-z]{1,4}", 0..3),
            undiscovered in proptest::collection::vec("[a-z]{1,4}", 0..3),
            seconds in 0i64..100_000,
        ) {
            let content = Content { remaining, finalizers, failures, undiscovered, unwatched: false };
            let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let mut namespace = Namespace::default();
            let reported = status(&namespace, &content, now);
            let is_true = |kind: &str| condition::find(&reported.conditions, kind).unwrap().status == "True";
            proptest::prop_assert_eq!(is_true("NamespaceContentRemaining"), !content.remaining.is_empty());
            proptest::prop_assert_eq!(is_true("NamespaceFinalizersRemaining"), !content.finalizers.is_empty());
            proptest::prop_assert_eq!(is_true("NamespaceDeletionContentFailure"), !content.failures.is_empty());
            proptest::prop_assert_eq!(is_true("NamespaceDeletionDiscoveryFailure"), !content.undiscovered.is_empty());
            namespace.status = Some(reported.clone());
            let later = now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
            proptest::prop_assert_eq!(status(&namespace, &content, later), reported);
        }
    }
}
