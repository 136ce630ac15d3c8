//! VolumeGroupSnapshots: makes the content of a snapshot of several claims, or binds one that exists already, makes the
//! snapshots of the single volumes once the driver has taken them, and deletes all of them together.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use corten_client::Change;
use corten_meta::{Key, Value};
use corten_snapshots::names::{
    DEFAULT_GROUP_CLASS, GROUP_BEING_DELETED, GROUP_BOUND_FINALIZER, GROUP_DELETION_SECRET_NAME,
    GROUP_DELETION_SECRET_NAMESPACE,
};
use corten_snapshots::{
    SecretReference, SecretTemplate, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
    VolumeSnapshot, VolumeSnapshotContent,
};
use jiff::Timestamp;
use serde_json::json;

use super::ACCOUNT;
use super::group_members::{Member, members};
use super::snapshot::{is_restored, without_unchanged};
use super::sources::{Source, source};
use super::status::{Problem, annotate, finalizers, has_finalizer};
use crate::runtime::{Action, Controller, Plan, Reference, Report, ResourceType, View, Watch, decode, key_of};
use crate::workload::owner::selector;

pub struct GroupSnapshotController;

pub struct Observed {
    group: VolumeGroupSnapshot,
    content: Option<VolumeGroupSnapshotContent>,
    /// The selected claims with their volumes, or why no snapshots can be taken. Read only without a content.
    sources: Result<Vec<Source>, String>,
    classes: Vec<VolumeGroupSnapshotClass>,
    /// The snapshots that the driver reported, with their objects.
    members: Vec<Member>,
    /// The snapshots that the group snapshot owns.
    owned: Vec<VolumeSnapshot>,
    /// The snapshot of which a claim is being made.
    restored: Option<String>,
}

impl Controller for GroupSnapshotController {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<VolumeGroupSnapshot>(),
            Watch::mapped::<VolumeGroupSnapshotContent>(of_content),
            Watch::mapped::<VolumeGroupSnapshotClass>(|view, _| unready(view, "")),
            Watch::mapped::<VolumeSnapshot>(of_member),
            Watch::mapped::<VolumeSnapshotContent>(|view, change| of_member_content(view, change)),
            Watch::mapped::<PersistentVolumeClaim>(|view, change| unready(view, &change.key.namespace)),
            Watch::read::<PersistentVolume>(),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let group: VolumeGroupSnapshot = view.typed(key)?;
        let content: Option<VolumeGroupSnapshotContent> =
            content_name(&group).and_then(|name| view.typed(&Key::new("", name)));
        let sources = match content {
            None => sources(view, &group),
            Some(_) => Err(String::new()),
        };
        let members = content.as_ref().map(|content| members(view, &group, content)).unwrap_or_default();
        let owned: Vec<VolumeSnapshot> = view.owned_by(group.metadata.uid.as_deref().unwrap_or_default());
        let restored = match group.metadata.deletion_timestamp {
            Some(_) => owned.iter().find(|one| is_restored(view, one)).map(|one| key_of(one).to_string()),
            None => None,
        };
        Some(Observed { content, sources, classes: view.all(""), members, owned, restored, group })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        if observed.group.metadata.deletion_timestamp.is_some() {
            return Plan::from(observed.delete());
        }
        let status = observed.group.status.as_ref();
        let current = status.and_then(|status| status.error.as_ref());
        match observed.advance() {
            Ok(actions) => Plan::from(actions),
            Err(problem) => Plan::from(problem.report(&observed.group, current, now)),
        }
    }
}

impl Observed {
    /// Returns the next writes towards a bound group snapshot that is ready to use.
    fn advance(&self) -> Result<Vec<Action>, Problem> {
        let group = &self.group;
        let source = &group.spec.source;
        if source.selector.is_some() == source.volume_group_snapshot_content_name.is_some() {
            let message = "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified";
            return Err(Problem::unusable("GroupSnapshotValidationError", message));
        }
        let Some(content) = &self.content else { return self.advance_without_content() };
        self.check_binding(content)?;
        if let Some(action) = finalizers(group, &[GROUP_BOUND_FINALIZER], &[]) {
            return Ok(vec![action]);
        }
        if group.is_ready() && group.bound_content().is_some() {
            return Ok(Vec::new());
        }
        if content.spec.volume_group_snapshot_ref.uid.is_empty() {
            let mut patch = json!({"spec": {"volumeGroupSnapshotRef": {"uid": group.metadata.uid}}});
            let class = &group.spec.volume_group_snapshot_class_name;
            if let (None, Some(class)) = (&content.spec.volume_group_snapshot_class_name, class) {
                patch["spec"]["volumeGroupSnapshotClassName"] = json!(class);
            }
            return Ok(vec![Action::patch(content, patch)]);
        }
        if source.selector.is_some() {
            let writes = self.make_members(content)?;
            if !writes.is_empty() {
                return Ok(writes);
            }
        }
        Ok(self.follow(content))
    }

    fn advance_without_content(&self) -> Result<Vec<Action>, Problem> {
        let source = &self.group.spec.source;
        let was_taken = self.group.status.as_ref().is_some_and(|status| status.creation_time.is_some());
        if source.volume_group_snapshot_content_name.is_some() || was_taken {
            let message = "VolumeGroupSnapshotContent is missing";
            return Err(Problem::unusable("GroupSnapshotContentMissing", message));
        }
        match &self.group.spec.volume_group_snapshot_class_name {
            Some(name) => self.create_content(name),
            None => {
                let class = self.default_class().map_err(|error| {
                    let message = format!("Failed to set default group snapshot class with error {error}");
                    Problem::passing("SetDefaultGroupSnapshotClassFailed", message)
                })?;
                let patch = json!({"spec": {"volumeGroupSnapshotClassName": class.name()}});
                Ok(vec![Action::patch(&self.group, patch)])
            }
        }
    }

    fn default_class(&self) -> Result<&VolumeGroupSnapshotClass, String> {
        let sources = self.sources.as_ref().map_err(Clone::clone)?;
        let driver = sources.first().map(|source| source.driver.as_str()).unwrap_or_default();
        let is_default = |class: &&VolumeGroupSnapshotClass| {
            let annotations = class.metadata.annotations.as_ref();
            annotations.and_then(|all| all.get(DEFAULT_GROUP_CLASS)).is_some_and(|value| value == "true")
                && class.driver == driver
        };
        let defaults: Vec<&VolumeGroupSnapshotClass> = self.classes.iter().filter(is_default).collect();
        match defaults.as_slice() {
            [] => Err("cannot find default group snapshot class".to_owned()),
            [class] => Ok(class),
            several => Err(format!("{} default snapshot classes were found", several.len())),
        }
    }

    fn class(&self, name: &str) -> Result<&VolumeGroupSnapshotClass, Problem> {
        let resource = format!("{}.{}", VolumeGroupSnapshotClass::PLURAL, VolumeGroupSnapshotClass::GROUP);
        self.classes.iter().find(|class| class.name() == name).ok_or_else(|| {
            let message = format!("failed to get group snapshot class with error {resource} \"{name}\" not found");
            Problem::passing("GetGroupSnapshotClassFailed", message)
        })
    }

    fn check_binding(&self, content: &VolumeGroupSnapshotContent) -> Result<(), Problem> {
        let expects_handles = self.group.spec.source.volume_group_snapshot_content_name.is_some();
        if expects_handles != content.spec.source.group_snapshot_handles.is_some() {
            let message = match expects_handles {
                true => "VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one",
                false => "VolumeGroupSnapshotContent is pre-provisioned while expecting a dynamically provisioned one",
            };
            return Err(Problem::unusable("GroupSnapshotContentMismatch", message));
        }
        let reference = &content.spec.volume_group_snapshot_ref;
        let is_named = reference.name == self.group.name() && reference.namespace == self.group.namespace();
        let is_free = expects_handles && reference.uid.is_empty();
        if content.is_of(&self.group) || (is_named && is_free) {
            return Ok(());
        }
        let message = format!("VolumeGroupSnapshotContent [{}] is bound to a different group snapshot", content.name());
        Err(Problem::unusable("GroupSnapshotContentMisbound", message))
    }

    /// Makes the content, which the driver's part takes the snapshots for.
    fn create_content(&self, class: &str) -> Result<Vec<Action>, Problem> {
        let class = self.class(class)?;
        let failed = |error: String| {
            let message = format!("failed to create group snapshot content with error {error}");
            Problem::unusable("GroupSnapshotContentCreationFailed", message)
        };
        let sources = self.sources.as_ref().map_err(|error| failed(error.clone()))?;
        if let Some(other) = sources.iter().find(|source| source.driver != class.driver) {
            let claim = other.claim.name();
            return Err(failed(format!("the volume of the PVC {claim} is of another driver than the class")));
        }
        let secret = self.secret(class).map_err(failed)?;
        let key = key_of(&self.group);
        let prefix = format!("Error creating volume group snapshot content object for group snapshot {key}: ");
        let report = Report {
            about: Reference::to(&self.group),
            success: ("", "".into()),
            failure: ("CreateGroupSnapshotContentFailed", prefix.into()),
        };
        let message = format!("Waiting for a group snapshot {key} to be created by the CSI driver.");
        Ok(vec![
            Action::Create {
                resource: ResourceType::of::<VolumeGroupSnapshotContent>(),
                object: self.content_object(class, sources, secret),
                report: Some(report),
            },
            Action::normal(&self.group, "CreatingGroupSnapshot", message),
        ])
    }

    fn secret(&self, class: &VolumeGroupSnapshotClass) -> Result<Option<SecretReference>, String> {
        let content = self.group.dynamic_content();
        let keys = [
            ("volumegroupsnapshotcontent.name", content.as_str()),
            ("volumegroupsnapshot.namespace", self.group.namespace()),
            ("volumegroupsnapshot.name", self.group.name()),
        ];
        let template = SecretTemplate { role: "group-snapshotter", namespace_keys: &keys[..2], name_keys: &keys };
        template.resolve(&class.parameters)
    }

    fn content_object(
        &self,
        class: &VolumeGroupSnapshotClass,
        sources: &[Source],
        secret: Option<SecretReference>,
    ) -> Value {
        let mut metadata = json!({"name": self.group.dynamic_content()});
        if let Some(secret) = secret {
            metadata["annotations"] =
                json!({GROUP_DELETION_SECRET_NAME: secret.name, GROUP_DELETION_SECRET_NAMESPACE: secret.namespace});
        }
        let handles: Vec<&str> = sources.iter().map(|source| source.handle.as_str()).collect();
        json!({
            "apiVersion": VolumeGroupSnapshotContent::API_VERSION,
            "kind": VolumeGroupSnapshotContent::KIND,
            "metadata": metadata,
            "spec": {
                "deletionPolicy": class.deletion_policy,
                "driver": class.driver,
                "source": {"volumeHandles": handles},
                "volumeGroupSnapshotClassName": class.name(),
                "volumeGroupSnapshotRef": {
                    "apiVersion": VolumeGroupSnapshot::API_VERSION,
                    "kind": VolumeGroupSnapshot::KIND,
                    "namespace": self.group.namespace(),
                    "name": self.group.name(),
                    "uid": self.group.metadata.uid,
                    "resourceVersion": self.group.metadata.resource_version,
                },
            },
        })
    }

    /// Makes the snapshots and contents of the single volumes.
    fn make_members(&self, content: &VolumeGroupSnapshotContent) -> Result<Vec<Action>, Problem> {
        if self.members.is_empty() {
            return Ok(Vec::new());
        }
        let class = self.group.spec.volume_group_snapshot_class_name.as_deref().unwrap_or_default();
        let failed = |error| Problem::passing("GroupSnapshotContentCreationFailed", error);
        let secret = self.secret(self.class(class)?).map_err(failed)?;
        let writes = |member: &Member| member.advance(&self.group, content, secret.as_ref());
        Ok(self.members.iter().flat_map(writes).collect())
    }

    /// Brings the content's status to the group snapshot.
    fn follow(&self, content: &VolumeGroupSnapshotContent) -> Vec<Action> {
        let theirs = content.status.clone().unwrap_or_default();
        let is_ready = theirs.ready_to_use == Some(true);
        let mut status = json!({
            "boundVolumeGroupSnapshotContentName": content.name(),
            "readyToUse": is_ready,
            "error": theirs.error.as_ref().filter(|_| !is_ready),
        });
        if let Some(taken) = &theirs.creation_time {
            status["creationTime"] = json!(taken);
        }
        let patch = without_unchanged(status, &self.group.to_value()["status"]);
        if patch.as_object().is_none_or(serde_json::Map::is_empty) {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let key = key_of(&self.group);
        if !patch["creationTime"].is_null() {
            let message = format!("GroupSnapshot {key} was successfully created by the CSI driver.");
            actions.push(Action::normal(&self.group, "GroupSnapshotCreated", message));
        }
        if is_ready && !self.group.is_ready() {
            let message = format!("GroupSnapshot {key} is ready to use.");
            actions.push(Action::normal(&self.group, "GroupSnapshotReady", message));
        }
        actions.push(Action::patch_status(&self.group, json!({"status": patch})));
        actions
    }

    /// Deletes the content by its policy and the members, and lets the group snapshot go.
    fn delete(&self) -> Vec<Action> {
        let group = &self.group;
        if !has_finalizer(group, GROUP_BOUND_FINALIZER) {
            return Vec::new();
        }
        if let Some(snapshot) = &self.restored {
            let message = format!(
                "Snapshot {snapshot} belonging to VolumeGroupSnapshot {} is being used to restore a PVC",
                key_of(group)
            );
            return vec![Action::warning(group, "SnapshotDeletePending", message)];
        }
        let content = self.content.as_ref().filter(|content| content.is_of(group));
        let mut actions: Vec<Action> =
            content.and_then(|content| annotate(content, GROUP_BEING_DELETED)).into_iter().collect();
        let dependent = content.filter(|content| content.spec.deletion_policy == "Delete");
        if let Some(content) = dependent.filter(|content| content.metadata.deletion_timestamp.is_none()) {
            actions.push(Action::delete(content));
        }
        let remaining = self.owned.iter().filter(|one| one.metadata.deletion_timestamp.is_none());
        actions.extend(remaining.map(Action::delete));
        if dependent.is_none() {
            actions.extend(finalizers(group, &[], &[GROUP_BOUND_FINALIZER]));
        }
        actions
    }
}

/// Returns the name of the content: the bound one, the one that the user names, or the one that is made.
fn content_name(group: &VolumeGroupSnapshot) -> Option<String> {
    let source = &group.spec.source;
    let named = group.bound_content().map(str::to_owned).or_else(|| source.volume_group_snapshot_content_name.clone());
    named.or_else(|| source.selector.as_ref().map(|_| group.dynamic_content()))
}

/// Finds the volumes of the selected claims.
fn sources(view: &dyn View, group: &VolumeGroupSnapshot) -> Result<Vec<Source>, String> {
    let Some(labels) = &group.spec.source.selector else { return Ok(Vec::new()) };
    let selector = selector(labels);
    let mut claims: Vec<PersistentVolumeClaim> = view.select(group.namespace(), &selector);
    if claims.is_empty() {
        return Err(format!("label selector {selector} for group snapshot not applied to any PVC"));
    }
    claims.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    claims.into_iter().map(|claim| source(view, claim)).collect()
}

fn of_content(_: &dyn View, change: &Change) -> Vec<Key> {
    let content = change.object().and_then(decode::<VolumeGroupSnapshotContent>);
    let reference = content.map(|content| content.spec.volume_group_snapshot_ref);
    reference.map(|reference| Key::new(reference.namespace, reference.name)).into_iter().collect()
}

/// Returns the group snapshots of a namespace that wait, or that are being deleted.
fn unready(view: &dyn View, namespace: &str) -> Vec<Key> {
    let all: Vec<VolumeGroupSnapshot> = view.all(namespace);
    let waits = |one: &&VolumeGroupSnapshot| !one.is_ready() || one.metadata.deletion_timestamp.is_some();
    all.iter().filter(waits).map(key_of).collect()
}

/// Returns the group snapshot that owns a snapshot.
fn of_member(_: &dyn View, change: &Change) -> Vec<Key> {
    let owners = change.object().map(|object| object.header.owners.clone()).unwrap_or_default();
    let group = owners.into_iter().find(|owner| owner.kind == VolumeGroupSnapshot::KIND);
    group.map(|group| Key::new(change.key.namespace.clone(), group.name)).into_iter().collect()
}

/// Returns the group snapshot of the snapshot that a content is for.
fn of_member_content(view: &dyn View, change: &Change) -> Vec<Key> {
    let content = change.object().and_then(decode::<VolumeSnapshotContent>);
    let Some(reference) = content.map(|content| content.spec.volume_snapshot_ref) else { return Vec::new() };
    let key = Key::new(reference.namespace, reference.name);
    let Some(snapshot) = view.get(ResourceType::of::<VolumeSnapshot>(), &key) else { return Vec::new() };
    let group = snapshot.header.owners.iter().find(|owner| owner.kind == VolumeGroupSnapshot::KIND);
    group.map(|group| Key::new(key.namespace.clone(), group.name.clone())).into_iter().collect()
}
