//! Applies a plan: writes in order, writes of the same verb in parallel, with upstream's events for each.
//!
//! The first failure ends the plan: the actions after it were decided on the assumption that it would succeed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use corten_client::{
    Client, DeleteOptions, Error, EventRecorder, EventType, ListOptions, ObjectRef, Patch, Resource, WatchEvent,
};
use corten_meta::{Key, Value};
use futures::StreamExt;
use futures::future::join_all;
use http::Method;
use tokio_util::sync::CancellationToken;

use super::informer::address;
use super::plan::{Action, Event, Plan, Reference, Report, ResourceType};
use super::scale::{self, ScaleAnswer, ScaleQuestion};
use super::view::{Failure, decode};
use crate::volume_claims::uses;

/// The most writes in flight at once.
const MAX_BATCH: usize = 64;

/// The time that writes in flight may take after the leader must stop.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// The expected effect of a write on the cache, which the worker waits for.
#[derive(Clone, Debug)]
pub enum Echo {
    Written { resource: ResourceType, key: Key, revision: u64 },
    Deleted { resource: ResourceType, key: Key, uid: String },
}

impl Echo {
    pub fn resource(&self) -> ResourceType {
        let (Echo::Written { resource, .. } | Echo::Deleted { resource, .. }) = self;
        *resource
    }
}

/// The outcome of a plan: the echoes to wait for, and the failure that ended it.
#[derive(Default)]
pub struct Applied {
    pub echoes: Vec<Echo>,
    pub failure: Option<(Failure, Error)>,
    /// The resource of a write that may have succeeded although no response said so.
    pub unsure: Option<ResourceType>,
}

/// Returns how many of the next actions may run in parallel: creations, deletions or patches of one resource, each of
/// another object. None of them was decided on the assumption that the one before it succeeds.
fn side_by_side(rest: &[Action], most: usize) -> usize {
    let mut objects = BTreeSet::new();
    let verb = |action: &Action| match action {
        Action::Create { resource, .. } => Some((0, *resource)),
        Action::Delete { resource, .. } => Some((1, *resource)),
        Action::Patch { resource, .. } => Some((2, *resource)),
        _ => None,
    };
    let mut another = |action: &Action| match action {
        Action::Delete { key, .. } | Action::Patch { key, .. } => objects.insert(key.clone()),
        _ => true,
    };
    let Some(first) = rest.first().and_then(verb) else { return 1 };
    rest.iter().take(most).take_while(|action| verb(action) == Some(first) && another(action)).count()
}

/// Applies plans under one identity.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    recorder: EventRecorder,
    shutdown: CancellationToken,
}

impl Applier {
    pub fn new(client: Client, component: &str, shutdown: CancellationToken) -> Applier {
        let recorder = EventRecorder::new(client.clone(), component, "");
        Applier { client, recorder, shutdown }
    }

    /// Applies the plan, or its beginning if the leader must stop: the next leader reconciles the key again.
    pub async fn apply(&self, actions: Vec<Action>) -> Applied {
        let mut applied = Applied::default();
        let mut rest = actions.as_slice();
        // Slow start: if the server rejects a pod, the first rejection must arrive before hundreds of attempts.
        let mut batch = 1;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(side_by_side(rest, batch));
            let acts = join_all(now.iter().map(|action| self.act(action)));
            let Some(outcomes) = self.while_leading(acts).await else { break };
            for (action, outcome) in now.iter().zip(outcomes) {
                match outcome {
                    Ok(echo) => applied.echoes.extend(echo),
                    Err(failed) => {
                        applied.unsure = applied.unsure.or(action.written().filter(|_| failed.1.is_outcome_unknown()));
                        applied.failure = Some(failed);
                    }
                }
            }
            if applied.failure.is_some() || self.shutdown.is_cancelled() {
                break;
            }
            batch = (batch * 2).min(MAX_BATCH);
            rest = later;
        }
        applied
    }

    /// Waits for the writes in flight, but for no longer than [`LAST_WRITES`] after the leader must stop. The next
    /// leader is waiting, and its caches show these writes.
    async fn while_leading<T>(&self, acts: impl Future<Output = T>) -> Option<T> {
        let stopped = async {
            self.shutdown.cancelled().await;
            tokio::time::sleep(LAST_WRITES).await;
        };
        tokio::select! {
            biased;
            outcomes = acts => Some(outcomes),
            () = stopped => None,
        }
    }

    /// Reads the scales that a controller must know before it can decide.
    pub async fn ask(&self, plan: &Plan) -> BTreeMap<ScaleQuestion, ScaleAnswer> {
        let questions: BTreeSet<&ScaleQuestion> = plan.questions().collect();
        let answers = join_all(questions.iter().map(|question| scale::ask(&self.client, question))).await;
        questions.into_iter().cloned().zip(answers).collect()
    }

    /// Applies one action, and records the events of its report.
    async fn act(&self, action: &Action) -> Result<Option<Echo>, (Failure, Error)> {
        let outcome = self.write(action).await;
        let report = match action {
            Action::Create { report, .. } | Action::Delete { report, .. } => report.as_ref(),
            Action::RemoveLocalVolume { report, .. } | Action::RemoveDirectory { report, .. } => Some(report),
            _ => None,
        };
        match outcome {
            Ok(echo) => {
                if let (Some(report), Some(echo)) = (report, &echo) {
                    self.tell_success(report, echo);
                }
                Ok(echo)
            }
            Err(error) => Err((self.tell_failure(report, &error), error)),
        }
    }

    /// Fails if a pod on the server uses the claim.
    async fn unused(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let pods = self.client.dynamic(&address(ResourceType::of::<Pod>()));
        let pods = pods.list_objects(claim.namespace(), &ListOptions::default()).await?;
        match pods.items.iter().filter_map(decode::<Pod>).find(|pod| uses(pod, claim)) {
            Some(pod) => Err(Error::Decode(format!("{} is used by pod {} after all", claim.name(), pod.name()))),
            None => Ok(()),
        }
    }

    async fn write(&self, action: &Action) -> Result<Option<Echo>, Error> {
        match action {
            Action::Event(event) => {
                self.tell(event);
                Ok(None)
            }
            Action::RemoveLocalVolume { node, name, .. } => {
                let path = format!("/api/v1/nodes/{node}/proxy/localVolumes/{name}");
                self.client.send_raw(Method::DELETE, &path).await?;
                Ok(None)
            }
            Action::RemoveDirectory { path, .. } => {
                let (path, gone) = (path.clone(), tokio::task::spawn_blocking);
                let removed = gone(move || remove_directory(Path::new(&path))).await;
                removed.map_err(|error| Error::Config(error.to_string()))?.map(|()| None)
            }
            Action::Relay { pod, uid, about, reason, prefix } => {
                // Nothing depends on the events, so errors are ignored.
                let _ =
                    self.relay(pod, uid, &|message| (object_ref(about), *reason, format!("{prefix}{message}"))).await;
                Ok(None)
            }
            // The worker has answered it, or the answer led to another question: the next reconcile asks that.
            Action::AskScale(_) => Ok(None),
            Action::Unused { claim } => self.unused(claim).await.map(|()| None),
            Action::Absent { resource, key } => {
                match self.client.dynamic(&address(*resource)).get(&key.namespace, &key.name).await {
                    Ok(_) => Err(Error::Decode(format!("{} {key} exists after all", resource.kind))),
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Action::Create { resource, object, .. } => {
                let created =
                    self.client.dynamic(&address(*resource)).create(corten_meta::namespace(object), object).await?;
                Ok(Some(written(*resource, &created)))
            }
            Action::Update { resource, object } => {
                let updated = self.client.dynamic(&address(*resource)).update(object).await?;
                Ok(Some(written(*resource, &updated)))
            }
            Action::UpdateStatus { resource, object } => {
                let updated = self.client.dynamic(&address(*resource)).update_status(object).await?;
                Ok(Some(written(*resource, &updated)))
            }
            Action::Patch { resource, key, patch, subresource } => {
                let dynamic = self.client.dynamic(&address(*resource));
                let patch = Patch::Merge(patch.clone());
                match dynamic.patch(&key.namespace, &key.name, &patch, *subresource).await {
                    Ok(patched) => Ok(Some(written(*resource, &patched))),
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Action::Delete { resource, key, uid, version, grace_period_seconds, propagation, .. } => {
                let options = DeleteOptions {
                    grace_period_seconds: *grace_period_seconds,
                    propagation: *propagation,
                    precondition_uid: Some(uid.clone()).filter(|uid| !uid.is_empty()),
                    precondition_resource_version: version.clone(),
                    ..DeleteOptions::default()
                };
                match self.client.dynamic(&address(*resource)).delete(&key.namespace, &key.name, &options).await {
                    Err(error) if !error.is_not_found() => Err(error),
                    _ => Ok(Some(Echo::Deleted { resource: *resource, key: key.clone(), uid: uid.clone() })),
                }
            }
        }
    }

    /// Records the events of a pod again for another object. The events are read by a watch: the role permits no list.
    async fn relay(
        &self,
        pod: &Key,
        uid: &str,
        describe: &(dyn Fn(&str) -> (ObjectRef, &'static str, String) + Sync),
    ) -> Result<(), Error> {
        let options = ListOptions {
            field_selector: format!("involvedObject.name={},involvedObject.uid={uid}", pod.name),
            send_initial_events: true,
            allow_watch_bookmarks: true,
            resource_version_match: Some("NotOlderThan".to_owned()),
            timeout_seconds: Some(5),
            ..ListOptions::default()
        };
        let resource = Resource::new("", "v1", "events", true);
        let mut events = self.client.dynamic(&resource).watch(&pod.namespace, &options).await?;
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(event) => {
                    let event = event.value();
                    let kind = if event["type"] == "Warning" { EventType::Warning } else { EventType::Normal };
                    let (about, reason, message) = describe(event["message"].as_str().unwrap_or_default());
                    self.recorder.event(&about, kind, reason, message);
                }
                WatchEvent::Bookmark { initial_events_end: true, .. } => break,
                _ => {}
            }
        }
        Ok(())
    }

    fn tell(&self, event: &Event) {
        let kind = if event.warning { EventType::Warning } else { EventType::Normal };
        self.recorder.event(&object_ref(&event.about), kind, &event.reason, &event.message);
    }

    fn tell_success(&self, report: &Report, echo: &Echo) {
        let (reason, prefix) = &report.success;
        let (Echo::Written { key, .. } | Echo::Deleted { key, .. }) = echo;
        if !reason.is_empty() {
            self.recorder.event(&object_ref(&report.about), EventType::Normal, reason, format!("{prefix}{}", key.name));
        }
    }

    /// Records the event of a failed write. A terminating namespace rejects every object: that is expected, and no
    /// event is recorded.
    fn tell_failure(&self, report: Option<&Report>, error: &Error) -> Failure {
        let (reason, prefix) = report.map_or(("", ""), |report| (report.failure.0, &*report.failure.1));
        let expected = error.to_string().contains("because it is being terminated");
        if let Some(report) = report.filter(|_| !expected && !error.is_already_exists()) {
            self.recorder.event(&object_ref(&report.about), EventType::Warning, reason, format!("{prefix}{error}"));
        }
        Failure { reason: reason.to_owned(), message: error.to_string() }
    }
}

/// Removes a file or directory below /tmp. Other users can write there, so a path through a symbolic link is refused.
fn remove_directory(path: &Path) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Config(format!("cannot remove {}: {error}", path.display()));
    let (Some(parent), true) = (path.parent(), path.starts_with("/tmp")) else {
        return Err(Error::Config(format!("{} is not below /tmp", path.display())));
    };
    let removed = match parent.canonicalize() {
        Ok(real) if real != parent => Err(std::io::Error::other("a link is on the way")),
        Ok(_) => std::fs::symlink_metadata(path).and_then(|found| match found.is_dir() {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_file(path),
        }),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Returns the newest revision of a resource in a namespace on the server. A cache that has reached it shows every
/// object that was created there.
pub async fn newest(client: &Client, resource: ResourceType, namespace: &str) -> Result<u64, Error> {
    let list = client.dynamic(&address(resource)).list_objects(namespace, &ListOptions::default()).await?;
    Ok(list.items.iter().map(|object| object.revision).max().unwrap_or(0))
}

fn written(resource: ResourceType, object: &Value) -> Echo {
    let key = Key::new(corten_meta::namespace(object), corten_meta::name(object));
    let revision = corten_meta::resource_version(object).parse().unwrap_or(0);
    Echo::Written { resource, key, revision }
}

fn object_ref(about: &Reference) -> ObjectRef {
    ObjectRef {
        api_version: about.resource.api_version(),
        kind: about.resource.kind.to_owned(),
        namespace: about.key.namespace.clone(),
        name: about.key.name.clone(),
        uid: about.uid.clone(),
        resource_version: about.resource_version.clone(),
        ..ObjectRef::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::json;

    #[test]
    fn writes_of_one_verb_and_kind_go_side_by_side_and_no_object_twice() {
        let (pods, nodes) = (ResourceType::of::<Pod>(), ResourceType::of::<Node>());
        let patch = |resource, name: &str| Action::Patch {
            resource,
            key: Key::new("", name),
            patch: json!({}),
            subresource: None,
        };
        let create = |resource| Action::Create { resource, object: json!({}), report: None };
        let all = |actions: &[Action]| side_by_side(actions, 3);
        assert_eq!(all(&[patch(pods, "a"), patch(pods, "b"), patch(pods, "c"), patch(pods, "d")]), 3);
        assert_eq!(all(&[patch(pods, "a"), patch(pods, "a")]), 1);
        assert_eq!(all(&[patch(pods, "a"), patch(nodes, "b")]), 1);
        assert_eq!(all(&[create(pods), create(pods), patch(pods, "a")]), 2);
        assert_eq!(all(&[Action::absent::<Node>(Key::new("", "a")), create(pods)]), 1);
    }
}
