//! VolumeSnapshots: makes the content of a snapshot of a claim, binds the content of one that exists already, brings the
//! content's status to the user, and deletes the content with the snapshot.
//!
//! Invariant: a snapshot that was taken is never taken again under the same name, also not if its content is lost.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use corten_client::Change;
use corten_meta::time::rfc3339;
use corten_meta::{Key, Quantity, Value};
use corten_snapshots::names::{
    BEING_DELETED, BOUND_FINALIZER, CLAIM_FINALIZER, DEFAULT_CLASS, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE,
    IN_GROUP_FINALIZER, MANAGED_BY, SOURCE_FINALIZER,
};
use corten_snapshots::{
    ContentStatus, SecretTemplate, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};
use jiff::Timestamp;
use serde_json::json;

use super::ACCOUNT;
use super::sources::{Source, node_of, source};
use super::status::{Problem, annotate, finalizers, has_finalizer};
use crate::runtime::{Action, Controller, Plan, Reference, Report, ResourceType, View, Watch, decode, key_of};

pub struct SnapshotController;

pub struct Observed {
    snapshot: VolumeSnapshot,
    /// The content that the snapshot names, or that was made for it.
    content: Option<VolumeSnapshotContent>,
    /// The claim of which the snapshot is taken.
    claim: Option<PersistentVolumeClaim>,
    /// The claim's volume, or why no snapshot can be taken of it. Read only for a snapshot without a content.
    source: Result<Source, String>,
    /// The node that alone reaches the volume.
    node: Option<String>,
    classes: Vec<VolumeSnapshotClass>,
    /// Whether another snapshot of the claim is being taken.
    is_claim_used: bool,
    /// Whether a claim is being made of the snapshot.
    is_restored: bool,
    /// The group snapshot that the snapshot belongs to.
    group: Option<VolumeGroupSnapshot>,
    /// The name of the group snapshot by the handle in the content's status.
    group_of_content: Option<String>,
}

impl Controller for SnapshotController {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<VolumeSnapshot>(),
            Watch::mapped::<VolumeSnapshotContent>(of_content),
            Watch::mapped::<VolumeSnapshotClass>(|view, _| unbound(view, |_| true)),
            Watch::mapped::<PersistentVolumeClaim>(of_claim),
            Watch::mapped::<VolumeGroupSnapshot>(of_group),
            Watch::read::<VolumeGroupSnapshotContent>(),
            Watch::read::<PersistentVolume>(),
            Watch::read::<Node>(),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let snapshot: VolumeSnapshot = view.typed(key)?;
        let claim_name = snapshot.spec.source.persistent_volume_claim_name.clone();
        let content: Option<VolumeSnapshotContent> =
            content_name(&snapshot).and_then(|name| view.typed(&Key::new("", name)));
        let claim: Option<PersistentVolumeClaim> =
            claim_name.as_ref().and_then(|name| view.typed(&Key::new(key.namespace.clone(), name.clone())));
        let source = match (&claim, content.is_some()) {
            (Some(claim), false) => source(view, claim.clone()),
            _ => Err(missing_claim(claim_name.as_deref().unwrap_or_default())),
        };
        let node = source.as_ref().ok().and_then(|source| node_of(view, &source.volume));
        let is_held = claim.as_ref().is_some_and(|claim| has_finalizer(claim, CLAIM_FINALIZER));
        let is_claim_used = is_held
            && view.all::<VolumeSnapshot>(&key.namespace).iter().any(|other| {
                other.metadata.uid != snapshot.metadata.uid
                    && other.spec.source.persistent_volume_claim_name == claim_name
                    && !other.is_ready()
            });
        let is_deleted = snapshot.metadata.deletion_timestamp.is_some();
        let is_restored = is_deleted && is_restored(view, &snapshot);
        let group = group_name(&snapshot).and_then(|name| view.typed(&Key::new(key.namespace.clone(), name)));
        let group_of_content = group_of_content(view, content.as_ref());
        let classes = if content.is_none() { view.all("") } else { Vec::new() };
        Some(Observed {
            snapshot,
            content,
            claim,
            source,
            node,
            classes,
            is_claim_used,
            is_restored,
            group,
            group_of_content,
        })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        if observed.snapshot.metadata.deletion_timestamp.is_some() {
            return Plan::from(observed.delete());
        }
        let mut actions: Vec<Action> = observed.release_claim().into_iter().collect();
        let status = observed.snapshot.status.as_ref();
        let current = status.and_then(|status| status.error.as_ref());
        match observed.advance() {
            Ok(more) => actions.extend(more),
            Err(problem) => actions.extend(problem.report(&observed.snapshot, current, now)),
        }
        Plan::from(actions)
    }
}

impl Observed {
    /// Returns the next writes towards a bound snapshot that is ready to use.
    fn advance(&self) -> Result<Vec<Action>, Problem> {
        let snapshot = &self.snapshot;
        let source = &snapshot.spec.source;
        if source.persistent_volume_claim_name.is_some() == source.volume_snapshot_content_name.is_some() {
            let message = "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified";
            return Err(Problem::unusable("SnapshotValidationError", message));
        }
        if let Some(content) = &self.content {
            self.check_binding(content)?;
        } else if let Some(action) = self.choose_class()? {
            return Ok(vec![action]);
        }
        let is_kept = self.content.as_ref().is_some_and(VolumeSnapshotContent::is_deleted_with_snapshot);
        let wanted: &[&str] = if is_kept { &[SOURCE_FINALIZER, BOUND_FINALIZER] } else { &[SOURCE_FINALIZER] };
        if let Some(action) = finalizers(snapshot, wanted, &[]) {
            return Ok(vec![action]);
        }
        match (&self.content, snapshot.is_ready() && snapshot.bound_content().is_some()) {
            (Some(content), true) => self.check_bound(content),
            (Some(content), false) => Ok(self.bind(content)),
            (None, _) if self.is_member() && snapshot.bound_content().is_none() => Ok(Vec::new()),
            (None, is_ready) if is_ready || source.volume_snapshot_content_name.is_some() || self.was_taken() => {
                Err(Problem::unusable("SnapshotContentMissing", "VolumeSnapshotContent is missing"))
            }
            (None, _) => self.create_content(),
        }
    }

    /// Reports whether the driver has taken the snapshot before.
    fn was_taken(&self) -> bool {
        self.snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some())
    }

    /// Reports whether the snapshot was made with those of a group.
    fn is_member(&self) -> bool {
        let mut owners = self.snapshot.metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.kind == VolumeGroupSnapshot::KIND)
    }

    /// Checks that the content is of the kind that the snapshot expects, and is not bound to another.
    fn check_binding(&self, content: &VolumeSnapshotContent) -> Result<(), Problem> {
        let name = content.name();
        let expects_handle = self.snapshot.spec.source.volume_snapshot_content_name.is_some();
        let mismatch = match (expects_handle, &content.spec.source.snapshot_handle) {
            (true, None) => "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one",
            (false, Some(_)) => {
                "VolumeSnapshotContent is pre-provisioned while expecting a dynamically provisioned one"
            }
            _ => "",
        };
        if !mismatch.is_empty() {
            return Err(Problem::unusable("SnapshotContentMismatch", mismatch));
        }
        let reference = &content.spec.volume_snapshot_ref;
        let is_free = expects_handle && reference.uid.is_empty();
        let is_named = reference.name == self.snapshot.name() && reference.namespace == self.snapshot.namespace();
        if content.is_of(&self.snapshot) || (is_free && is_named) || (self.is_member() && reference.uid.is_empty()) {
            return Ok(());
        }
        let message = format!("VolumeSnapshotContent [{name}] is bound to a different snapshot");
        Err(Problem::unusable("SnapshotContentMisbound", message))
    }

    /// Sets the default class of a snapshot without one. Fails if the class, or a default, does not exist.
    fn choose_class(&self) -> Result<Option<Action>, Problem> {
        let spec = &self.snapshot.spec;
        if let Some(name) = &spec.volume_snapshot_class_name {
            if self.classes.iter().any(|class| class.name() == name) {
                return Ok(None);
            }
            let resource = format!("{}.{}", VolumeSnapshotClass::PLURAL, VolumeSnapshotClass::GROUP);
            let message = format!("failed to get snapshot class with error {resource} \"{name}\" not found");
            return Err(Problem::passing("GetSnapshotClassFailed", message));
        }
        if spec.source.volume_snapshot_content_name.is_some() || self.is_member() {
            return Ok(None);
        }
        let chosen = self.default_class().map_err(|error| {
            let message = format!("Failed to set default snapshot class with error {error}");
            Problem::passing("SetDefaultSnapshotClassFailed", message)
        })?;
        let patch = json!({"spec": {"volumeSnapshotClassName": chosen.name()}});
        Ok(Some(Action::patch(&self.snapshot, patch)))
    }

    fn default_class(&self) -> Result<&VolumeSnapshotClass, String> {
        let source = self.source.as_ref().map_err(Clone::clone)?;
        let is_default = |class: &&VolumeSnapshotClass| {
            let annotations = class.metadata.annotations.as_ref();
            annotations.and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
                && class.driver == source.driver
        };
        let defaults: Vec<&VolumeSnapshotClass> = self.classes.iter().filter(is_default).collect();
        match defaults.as_slice() {
            [] => Err("cannot find default snapshot class".to_owned()),
            [class] => Ok(class),
            several => Err(format!("{} default snapshot classes were found", several.len())),
        }
    }

    /// Checks a snapshot that is ready, and gives it the owner of its group.
    fn check_bound(&self, content: &VolumeSnapshotContent) -> Result<Vec<Action>, Problem> {
        if !content.is_of(&self.snapshot) {
            let message = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly";
            return Err(Problem::unusable("SnapshotMisbound", message));
        }
        let owner = self.group.as_ref().filter(|_| !self.is_member());
        Ok(owner.map(|group| self.own(group)).into_iter().collect())
    }

    /// Makes a group snapshot the owner of a snapshot that its user brought along.
    fn own(&self, group: &VolumeGroupSnapshot) -> Action {
        let metadata = self.snapshot.to_value()["metadata"].take();
        let mut owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        owners.push(owner_reference(group));
        let version = &self.snapshot.metadata.resource_version;
        let metadata = json!({"resourceVersion": version, "ownerReferences": owners});
        Action::patch(&self.snapshot, json!({"metadata": metadata}))
    }

    /// Binds a content of its user's, or brings the content's status to the snapshot.
    fn bind(&self, content: &VolumeSnapshotContent) -> Vec<Action> {
        let class = &self.snapshot.spec.volume_snapshot_class_name;
        let has_class = content.spec.volume_snapshot_class_name.is_some() || class.is_none();
        let is_bound = !content.spec.volume_snapshot_ref.uid.is_empty();
        if self.snapshot.spec.source.volume_snapshot_content_name.is_some() && !(is_bound && has_class) {
            let mut patch = json!({"spec": {"volumeSnapshotRef": {"uid": self.snapshot.metadata.uid}}});
            if let Some(class) = class.as_ref().filter(|_| !has_class) {
                patch["spec"]["volumeSnapshotClassName"] = json!(class);
            }
            return vec![Action::patch(content, patch)];
        }
        self.follow(content)
    }

    /// Brings the content's status to the snapshot.
    fn follow(&self, content: &VolumeSnapshotContent) -> Vec<Action> {
        let current = self.snapshot.status.clone().unwrap_or_default();
        let theirs = content.status.clone().unwrap_or_default();
        if theirs.volume_group_snapshot_handle.is_some() && self.group_of_content.is_none() {
            // The group's content is not there yet, or is gone.
            return Vec::new();
        }
        let status = self.status_of(content, &theirs);
        let patch = without_unchanged(status, &self.snapshot.to_value()["status"]);
        if patch.as_object().is_none_or(serde_json::Map::is_empty) {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let key = key_of(&self.snapshot);
        if current.creation_time.is_none() && theirs.creation_time.is_some() {
            let message = format!("Snapshot {key} was successfully created by the CSI driver.");
            actions.push(Action::normal(&self.snapshot, "SnapshotCreated", message));
        }
        if !self.snapshot.is_ready() && theirs.ready_to_use == Some(true) {
            let message = format!("Snapshot {key} is ready to use.");
            actions.push(Action::normal(&self.snapshot, "SnapshotReady", message));
        }
        actions.push(Action::patch_status(&self.snapshot, json!({"status": patch})));
        actions
    }

    /// Returns the status of the snapshot by that of its content. What is known already stays.
    fn status_of(&self, content: &VolumeSnapshotContent, theirs: &ContentStatus) -> Value {
        let is_ready = theirs.ready_to_use == Some(true);
        let mut status = json!({
            "boundVolumeSnapshotContentName": content.name(),
            "readyToUse": is_ready,
            "error": theirs.error.as_ref().filter(|_| !is_ready),
        });
        let taken = theirs.creation_time.and_then(|at| Timestamp::from_nanosecond(i128::from(at)).ok());
        if let Some(taken) = taken {
            status["creationTime"] = json!(rfc3339(taken));
        }
        if let Some(size) = theirs.restore_size {
            status["restoreSize"] = json!(Quantity::from_bytes(size).to_string());
        }
        if let Some(group) = &self.group_of_content {
            status["volumeGroupSnapshotName"] = json!(group);
        }
        status
    }

    /// Makes the content, which the driver's part takes the snapshot for.
    fn create_content(&self) -> Result<Vec<Action>, Problem> {
        let failed = |error: String| {
            let message = format!("Failed to create snapshot content with error {error}");
            Problem::unusable("SnapshotContentCreationFailed", message)
        };
        let source = self.source.as_ref().map_err(|error| failed(error.clone()))?;
        let name = self.snapshot.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
        let class = self.classes.iter().find(|class| class.name() == name);
        let class = class.ok_or_else(|| failed("the snapshot has no class".to_owned()))?;
        if class.driver != source.driver {
            let driver = &source.driver;
            return Err(failed(format!(
                "the class {name} is of the driver {}, and the volume of the driver {driver}",
                class.driver
            )));
        }
        let mut actions = Vec::new();
        if !has_finalizer(&source.claim, CLAIM_FINALIZER) {
            if source.claim.metadata.deletion_timestamp.is_some() {
                return Err(failed(format!("the claim {} is being deleted", source.claim.name())));
            }
            actions.extend(finalizers(&source.claim, &[CLAIM_FINALIZER], &[]));
        }
        let object = self.content_object(class, source).map_err(failed)?;
        let key = key_of(&self.snapshot);
        let report = Report {
            about: Reference::to(&self.snapshot),
            success: ("", "".into()),
            failure: (
                "CreateSnapshotContentFailed",
                format!("Error creating volume snapshot content object for snapshot {key}: ").into(),
            ),
        };
        actions.push(Action::Create {
            resource: ResourceType::of::<VolumeSnapshotContent>(),
            object,
            report: Some(report),
        });
        let message = format!("Waiting for a snapshot {key} to be created by the CSI driver.");
        actions.push(Action::normal(&self.snapshot, "CreatingSnapshot", message));
        Ok(actions)
    }

    fn content_object(&self, class: &VolumeSnapshotClass, source: &Source) -> Result<Value, String> {
        let snapshot = &self.snapshot;
        let content = snapshot.dynamic_content();
        let keys = [
            ("volumesnapshotcontent.name", content.as_str()),
            ("volumesnapshot.namespace", snapshot.namespace()),
            ("volumesnapshot.name", snapshot.name()),
        ];
        let template = SecretTemplate { role: "snapshotter", namespace_keys: &keys[..2], name_keys: &keys };
        let mut metadata = json!({"name": content});
        if let Some(secret) = template.resolve(&class.parameters)? {
            metadata["annotations"] =
                json!({DELETION_SECRET_NAME: secret.name, DELETION_SECRET_NAMESPACE: secret.namespace});
        }
        if let Some(node) = &self.node {
            metadata["labels"] = json!({MANAGED_BY: node});
        }
        let mode = source.volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
        let mut object = json!({
            "apiVersion": VolumeSnapshotContent::API_VERSION,
            "kind": VolumeSnapshotContent::KIND,
            "metadata": metadata,
            "spec": {
                "deletionPolicy": class.deletion_policy,
                "driver": class.driver,
                "source": {"volumeHandle": source.handle},
                "volumeSnapshotClassName": class.name(),
                "volumeSnapshotRef": {
                    "apiVersion": VolumeSnapshot::API_VERSION,
                    "kind": VolumeSnapshot::KIND,
                    "namespace": snapshot.namespace(),
                    "name": snapshot.name(),
                    "uid": snapshot.metadata.uid,
                    "resourceVersion": snapshot.metadata.resource_version,
                },
            },
        });
        if let Some(mode) = mode {
            object["spec"]["sourceVolumeMode"] = json!(mode);
        }
        Ok(object)
    }

    /// Lets the claim go if no snapshot of it is being taken.
    fn release_claim(&self) -> Option<Action> {
        let is_done = self.snapshot.is_ready() || self.snapshot.metadata.deletion_timestamp.is_some();
        let claim = self.claim.as_ref().filter(|_| is_done && !self.is_claim_used)?;
        finalizers(claim, &[], &[CLAIM_FINALIZER])
    }

    /// Deletes the content by its policy, and lets the snapshot go when it is gone.
    fn delete(&self) -> Vec<Action> {
        let snapshot = &self.snapshot;
        let ours = [SOURCE_FINALIZER, BOUND_FINALIZER, IN_GROUP_FINALIZER];
        if !ours.iter().any(|finalizer| has_finalizer(snapshot, finalizer)) {
            return Vec::new();
        }
        let content = self.content.as_ref().filter(|content| content.is_of(snapshot));
        let pending = |message: String| vec![Action::warning(snapshot, "SnapshotDeletePending", message)];
        if content.is_some() && self.is_restored {
            return pending("Snapshot is being used to restore a PVC".to_owned());
        }
        if let Some(group) = &self.group {
            return pending(format!(
                "deletion of the individual volume snapshot {} is not allowed as it belongs to group snapshot {}. \
                 Deleting the group snapshot will trigger the deletion of all the individual volume snapshots that \
                 are part of the group.",
                key_of(snapshot),
                key_of(group),
            ));
        }
        let mut actions: Vec<Action> =
            content.and_then(|content| annotate(content, BEING_DELETED)).into_iter().collect();
        let dependent = content.filter(|content| content.is_deleted_with_snapshot());
        if let Some(content) = dependent.filter(|content| content.metadata.deletion_timestamp.is_none()) {
            actions.push(Action::delete(content));
        }
        actions.extend(self.release_claim());
        let released: &[&str] = match dependent {
            Some(_) => &[SOURCE_FINALIZER, IN_GROUP_FINALIZER],
            None => &ours,
        };
        actions.extend(finalizers(snapshot, &[], released));
        actions
    }
}

/// Returns the owner reference of the members of a group.
pub(super) fn owner_reference(group: &VolumeGroupSnapshot) -> Value {
    json!({
        "apiVersion": VolumeGroupSnapshot::API_VERSION,
        "kind": VolumeGroupSnapshot::KIND,
        "name": group.name(),
        "uid": group.metadata.uid,
    })
}

/// Returns the fields of a wanted status that differ. The creation time and a size above zero stay as they are known.
pub(super) fn without_unchanged(wanted: Value, current: &Value) -> Value {
    let Value::Object(mut fields) = wanted else { return wanted };
    let is_zero = |size: &Value| size == "0" || *size == 0;
    fields.retain(|name, value| match name.as_str() {
        "creationTime" | "volumeGroupSnapshotName" => current[name].is_null(),
        "restoreSize" => current[name].is_null() || (is_zero(&current[name]) && !is_zero(value)),
        _ => current[name] != *value,
    });
    Value::Object(fields)
}

fn missing_claim(name: &str) -> String {
    format!("failed to retrieve PVC {name} from the lister: \"persistentvolumeclaim \\\"{name}\\\" not found\"")
}

/// Returns the name of the content: the bound one, the one that the user names, or the one that is made.
fn content_name(snapshot: &VolumeSnapshot) -> Option<String> {
    let source = &snapshot.spec.source;
    let named = snapshot.bound_content().map(str::to_owned).or_else(|| source.volume_snapshot_content_name.clone());
    named.or_else(|| source.persistent_volume_claim_name.as_ref().map(|_| snapshot.dynamic_content()))
}

/// Returns the name of the group snapshot that a snapshot belongs to.
fn group_name(snapshot: &VolumeSnapshot) -> Option<String> {
    snapshot.status.as_ref()?.volume_group_snapshot_name.clone().filter(|name| !name.is_empty())
}

/// Finds the group snapshot of a content by the handle in its status.
fn group_of_content(view: &dyn View, content: Option<&VolumeSnapshotContent>) -> Option<String> {
    let handle = content?.status.as_ref()?.volume_group_snapshot_handle.clone()?;
    let groups: Vec<VolumeGroupSnapshotContent> = view.all("");
    let is_theirs = |group: &&VolumeGroupSnapshotContent| {
        group.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref()) == Some(&handle)
    };
    groups.iter().find(is_theirs).map(|group| group.spec.volume_group_snapshot_ref.name.clone())
}

/// Reports whether a claim that is not bound yet is made of the snapshot.
pub(super) fn is_restored(view: &dyn View, snapshot: &VolumeSnapshot) -> bool {
    let claims: Vec<PersistentVolumeClaim> = view.all(snapshot.namespace());
    claims.iter().any(|claim| {
        let is_pending = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
        is_pending && snapshot_of(claim).as_deref() == Some(snapshot.name())
    })
}

/// Returns the snapshot of the same namespace that a claim is made of.
fn snapshot_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    let is_snapshot = source.kind == VolumeSnapshot::KIND && source.api_group.as_deref() == Some(VolumeSnapshot::GROUP);
    is_snapshot.then(|| source.name.clone())
}

fn of_content(_: &dyn View, change: &Change) -> Vec<Key> {
    let content = change.object().and_then(decode::<VolumeSnapshotContent>);
    let reference = content.map(|content| content.spec.volume_snapshot_ref);
    reference.map(|reference| Key::new(reference.namespace, reference.name)).into_iter().collect()
}

/// Returns the snapshots without a content for which a condition holds.
fn unbound(view: &dyn View, holds: impl Fn(&VolumeSnapshot) -> bool) -> Vec<Key> {
    let all: Vec<VolumeSnapshot> = view.all("");
    all.iter().filter(|one| one.bound_content().is_none() && holds(one)).map(key_of).collect()
}

/// Returns the snapshots that wait for a claim: to be bound, or to be made of them.
fn of_claim(view: &dyn View, change: &Change) -> Vec<Key> {
    let namespace = &change.key.namespace;
    let claimed = Some(&change.key.name);
    let is_source = |one: &VolumeSnapshot| {
        one.namespace() == namespace && one.spec.source.persistent_volume_claim_name.as_ref() == claimed
    };
    let mut keys = unbound(view, is_source);
    let restored = change.object().and_then(decode::<PersistentVolumeClaim>).and_then(|claim| snapshot_of(&claim));
    keys.extend(restored.map(|name| Key::new(namespace.clone(), name)));
    keys
}

/// Returns the members of a group that is gone.
fn of_group(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.new.is_some() {
        return Vec::new();
    }
    let all: Vec<VolumeSnapshot> = view.all(&change.key.namespace);
    let is_member = |one: &&VolumeSnapshot| group_name(one).as_ref() == Some(&change.key.name);
    all.iter().filter(is_member).map(key_of).collect()
}
