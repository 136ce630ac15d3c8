//! Provisioning: a claim of a class of the driver gets a volume, from the driver's CreateVolume, and a PersistentVolume.
//!
//! Invariant: a CreateVolume without a final answer is repeated with the same name, also if its claim is deleted in the
//! meantime: a volume that was made after all is then deleted.

pub use request::access_mode;

mod request;
mod source;
mod volume;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use corten_api::k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttributesClass};
use corten_client::Change;
use corten_meta::Key;
use corten_plugins::csi;
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tonic::Code;

use crate::driver::CallError;
use crate::secrets::{self, VolumeSecrets};
use crate::topology::{self, Wishes};
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, annotation, has_finalizer, is_deleted};
use request::Wanted;
use source::DataSource;

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Keeps a claim while volumes are cloned from it.
pub const CLONE_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";

pub struct Provisioner {
    world: Arc<World>,
    /// The requests without a final answer, by their claim.
    in_progress: Mutex<HashMap<Key, csi::CreateVolumeRequest>>,
}

/// The reason why a volume is not provisioned now.
#[derive(Debug)]
enum Stop {
    /// Another component, or an event to come, is responsible.
    NotOurs,
    /// The driver is not registered on this node yet.
    Unknown,
    /// The claim cannot be provisioned like this.
    Failed(String),
    /// Another node must be selected.
    Reschedule(String),
    /// The call may still be going on.
    InProgress(String),
}

impl Loop for Provisioner {
    fn name(&self) -> &'static str {
        "provisioner"
    }

    fn watches(&self) -> Vec<Watch> {
        let world = self.world.clone();
        let of_class = move |change: &Change| -> Vec<Key> {
            let claims: Vec<PersistentVolumeClaim> = world.all();
            let waits = |claim: &&PersistentVolumeClaim| {
                claim.spec.as_ref().is_some_and(|spec| {
                    spec.volume_name.is_none() && spec.storage_class_name.as_ref() == Some(&change.key.name)
                })
            };
            claims.iter().filter(waits).map(|claim| Key::new(claim.namespace(), claim.name())).collect()
        };
        vec![
            Watch { cache: self.world.cache::<PersistentVolumeClaim>(), keys: Box::new(claim_and_source) },
            Watch { cache: self.world.cache::<StorageClass>(), keys: Box::new(of_class) },
            Watch::read(self.world.cache::<PersistentVolume>()),
            Watch::read(self.world.cache::<Node>()),
            Watch::read(self.world.cache::<CSINode>()),
            Watch::read(self.world.cache::<VolumeAttributesClass>()),
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        self.sync(key).boxed()
    }
}

/// Returns the claim that changed, and the claim that it clones, which is released when the clone is made or gone.
fn claim_and_source(change: &Change) -> Vec<Key> {
    let claim = change.object().and_then(|object| PersistentVolumeClaim::decode(&object.bytes).ok());
    let source = claim.as_ref().and_then(source::clones);
    let source = source.map(|name| Key::new(&change.key.namespace, name));
    [Some(change.key.clone()), source].into_iter().flatten().collect()
}

impl Provisioner {
    pub fn new(world: Arc<World>) -> Provisioner {
        Provisioner { world, in_progress: Mutex::default() }
    }

    async fn sync(&self, key: &Key) -> Next {
        let claim: Option<PersistentVolumeClaim> = self.world.get(&key.namespace, &key.name);
        // A claim that is being deleted waits for its clones.
        if let Some(source) = claim.as_ref().filter(|claim| has_finalizer(*claim, CLONE_FINALIZER)) {
            self.release_clone_source(source).await;
        }
        let claim = claim.filter(|claim| !is_deleted(claim));
        let Some(claim) = claim else { return self.abandon(key).await };
        let class = match self.class_to_provision(&claim) {
            Some(class) => class,
            None => return Next::Done,
        };
        match self.provision(key, &claim, &class).await {
            Ok(()) => Next::Done,
            Err(stop) => self.report(&claim, &class, stop).await,
        }
    }

    /// Ends a request whose claim is gone: when its outcome is known, a volume that it made is deleted.
    async fn abandon(&self, key: &Key) -> Next {
        let Some(request) = self.lock().get(key).cloned() else { return Next::Done };
        match self.world.driver.create_volume(request.clone()).await {
            Ok(volume) => {
                let deletion = csi::DeleteVolumeRequest { volume_id: volume.volume_id, secrets: request.secrets };
                if let Err(error) = self.world.driver.delete_volume(deletion).await {
                    tracing::warn!(%key, %error, "cannot delete the volume of a claim that is gone");
                    return Next::Retry;
                }
            }
            Err(error) if !error.is_final() => return Next::Retry,
            Err(_) => {}
        }
        self.lock().remove(key);
        Next::Done
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, csi::CreateVolumeRequest>> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the class of a claim that this loop must provision now.
    fn class_to_provision(&self, claim: &PersistentVolumeClaim) -> Option<StorageClass> {
        let spec = claim.spec.as_ref()?;
        let driver = &self.world.driver.name;
        let provisioner = annotation(claim, PROVISIONER).or_else(|| annotation(claim, BETA_PROVISIONER));
        let is_bound = spec.volume_name.as_ref().is_some_and(|name| !name.is_empty());
        if is_bound || provisioner != Some(driver) {
            return None;
        }
        let class: StorageClass = self.world.get("", spec.storage_class_name.as_deref()?)?;
        let selected = annotation(claim, SELECTED_NODE);
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        let is_here = match &self.world.options.node {
            Some(node) => selected.is_none_or(|selected| selected == node),
            None => true,
        };
        (class.provisioner == *driver && is_here && !(waits && selected.is_none())).then_some(class)
    }

    async fn provision(&self, key: &Key, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), Stop> {
        let name = request::volume_name(claim);
        if self.world.get::<PersistentVolume>("", &name).is_some() {
            return Ok(());
        }
        let has_earlier = self.lock().get(key).is_some_and(|request| request.name != name);
        if has_earlier && self.abandon(key).await == Next::Retry {
            let message = "the volume of an earlier claim of this name is still being made";
            return Err(Stop::InProgress(message.to_owned()));
        }
        let selected = self.selected_node(claim, class).await?;
        let source = DataSource::read(&self.world, claim).await?;
        if let Some(node) = source.as_ref().and_then(|source| source.elsewhere(&self.world)) {
            return self.hand_over(claim, &node).await;
        }
        let parameters = class.parameters.clone().unwrap_or_default();
        let secrets = secrets::of_class(&parameters, &name, claim).map_err(Stop::Failed)?;
        let wanted = Wanted {
            claim,
            class,
            default_fs_type: &self.world.options.default_fs_type,
            knows_single_writers: self.world.driver.has(Rpc::SingleNodeMultiWriter),
            extra_create_metadata: self.world.options.extra_create_metadata,
        };
        let mut request = wanted.request().map_err(Stop::Failed)?;
        request.secrets = secrets::read(&self.world, secrets.provisioner.as_ref()).await.map_err(Stop::Failed)?;
        request.volume_content_source = source.as_ref().and_then(DataSource::content);
        request.mutable_parameters = self.mutable_parameters(claim)?;
        if self.world.driver.has_topology() {
            request.accessibility_requirements = self.topology(claim, class, selected.as_deref())?;
        }
        let message = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.world.normal(claim, "Provisioning", message);
        if let Some(source) = &source {
            source.protect(&self.world).await.map_err(|error| Stop::Failed(error.to_string()))?;
        }
        let volume = self.create(key, &request, selected.is_some()).await?;
        self.check(&request, &volume).await?;
        if let Some(DataSource::Backup { backup }) = &source {
            // Until the PersistentVolume exists no pod sees the volume, and the restore is repeated as a whole.
            let message = format!("restoring the VolumeBackup {}", backup.name());
            self.world.normal(claim, "Restoring", message);
            crate::backup::restore(&self.world, backup, &volume.volume_id).await.map_err(Stop::InProgress)?;
        }
        self.publish(claim, class, &wanted, &request, &volume, &secrets).await?;
        self.lock().remove(key);
        self.world.normal(claim, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
        Ok(())
    }

    /// Returns the selected node. A volume of a node that binds at once is provisioned by the first node that takes it,
    /// of those that the class allows.
    async fn selected_node(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Option<String>, Stop> {
        if let Some(selected) = annotation(claim, SELECTED_NODE) {
            if self.world.get::<Node>("", selected).is_none() {
                return Err(Stop::Reschedule(format!("the selected node {selected} does not exist")));
            }
            return Ok(Some(selected.to_owned()));
        }
        let Some(node) = &self.world.options.node else { return Ok(None) };
        let nodes = topology::nodes(&self.world);
        match topology::allows(class.allowed_topologies.as_deref().unwrap_or_default(), &nodes, node) {
            Some(true) => {}
            Some(false) => return Err(Stop::NotOurs),
            None => return Err(Stop::Unknown),
        }
        // The version lets one node win.
        let metadata = json!({
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {SELECTED_NODE: node},
        });
        match self.world.patch(claim, json!({"metadata": metadata})).await {
            Ok(()) => Err(Stop::NotOurs),
            Err(error) if error.is_conflict() || error.is_not_found() => Err(Stop::NotOurs),
            Err(error) => Err(Stop::Failed(error.to_string())),
        }
    }

    /// Selects the node of the data source for a claim: it can be provisioned nowhere else. The scheduler follows.
    async fn hand_over(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<(), Stop> {
        if self.world.get::<Node>("", node).is_none() {
            return Err(Stop::Failed(format!("the data source is on node {node}, which does not exist")));
        }
        let message = format!("the data source is on node {node}, which is selected for the volume");
        self.world.normal(claim, "Provisioning", message);
        let metadata = json!({
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {SELECTED_NODE: node},
        });
        match self.world.patch(claim, json!({"metadata": metadata})).await {
            Err(error) if !error.is_conflict() && !error.is_not_found() => Err(Stop::Failed(error.to_string())),
            _ => Err(Stop::NotOurs),
        }
    }

    fn mutable_parameters(&self, claim: &PersistentVolumeClaim) -> Result<HashMap<String, String>, Stop> {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(HashMap::new()) };
        if !self.world.driver.modifies_volumes() {
            return Err(Stop::Failed("the driver does not support VolumeAttributesClasses".to_owned()));
        }
        let class: Option<VolumeAttributesClass> = self.world.get("", &name);
        let class = class.ok_or_else(|| Stop::Failed(format!("the VolumeAttributesClass {name} does not exist")))?;
        let driver = &self.world.driver.name;
        if class.driver_name != *driver {
            let theirs = &class.driver_name;
            return Err(Stop::Failed(format!(
                "VAC {name} referenced in PVC is for driver {theirs} which does not match driver name {driver}"
            )));
        }
        Ok(class.parameters.unwrap_or_default().into_iter().collect())
    }

    fn topology(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        selected: Option<&str>,
    ) -> Result<Option<csi::TopologyRequirement>, Stop> {
        let nodes = topology::nodes(&self.world);
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let wishes = Wishes {
            nodes: &nodes,
            allowed: class.allowed_topologies.as_deref().unwrap_or_default(),
            selected,
            is_strict: self.world.options.node.is_some(),
            hash: uid.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte))),
        };
        let failed = |error| Stop::Failed(format!("error generating accessibility requirements: {error}"));
        topology::requirement(&wishes).map_err(failed)
    }

    /// Calls the driver, and remembers the request until its outcome is known.
    async fn create(
        &self,
        key: &Key,
        request: &csi::CreateVolumeRequest,
        may_reschedule: bool,
    ) -> Result<csi::Volume, Stop> {
        self.lock().insert(key.clone(), request.clone());
        let created = self.world.driver.create_volume(request.clone()).await;
        created.map_err(|error: CallError| {
            let is_full = error.code == Code::ResourceExhausted && may_reschedule && self.world.driver.has_topology();
            if is_full || error.is_final() {
                self.lock().remove(key);
            }
            match (is_full, error.is_final()) {
                (true, _) => Stop::Reschedule(error.to_string()),
                (_, true) => Stop::Failed(error.to_string()),
                _ => Stop::InProgress(error.to_string()),
            }
        })
    }

    /// Deletes a volume that is not what was asked for.
    async fn check(&self, request: &csi::CreateVolumeRequest, volume: &csi::Volume) -> Result<(), Stop> {
        let Some(message) = request::mismatch(request, volume) else { return Ok(()) };
        let deletion =
            csi::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), secrets: request.secrets.clone() };
        match self.world.driver.delete_volume(deletion).await {
            Ok(()) => Err(Stop::InProgress(message)),
            Err(error) => Err(Stop::InProgress(format!("{message}. Cleanup of the volume failed: {error}"))),
        }
    }

    async fn publish(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        wanted: &Wanted<'_>,
        request: &csi::CreateVolumeRequest,
        volume: &csi::Volume,
        secrets: &VolumeSecrets,
    ) -> Result<(), Stop> {
        let made = volume::Made { claim, class, driver: &self.world.driver, request, volume, secrets };
        let object = made.object(&wanted.fs_type().map_err(Stop::Failed)?);
        match self.world.client.of::<PersistentVolume>().post("", &object).await {
            Err(error) if !error.is_already_exists() => Err(Stop::InProgress(error.to_string())),
            _ => Ok(()),
        }
    }

    /// Removes the protection of a claim of which no volume is being cloned.
    async fn release_clone_source(&self, claim: &PersistentVolumeClaim) {
        let claims: Vec<PersistentVolumeClaim> = self.world.all();
        let is_used = claims.iter().any(|other| {
            let is_pending = other.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
            is_pending && other.namespace() == claim.namespace() && source::clones(other) == Some(claim.name())
        });
        if !is_used && let Err(error) = self.world.finalizer(claim, CLONE_FINALIZER, false).await {
            tracing::debug!(%error, "cannot release a claim that was cloned");
        }
    }

    async fn report(&self, claim: &PersistentVolumeClaim, class: &StorageClass, stop: Stop) -> Next {
        let (message, is_rescheduled) = match stop {
            Stop::NotOurs => return Next::Done,
            Stop::Unknown => return Next::Retry,
            Stop::Failed(message) | Stop::InProgress(message) => (message, false),
            Stop::Reschedule(message) => (message, true),
        };
        let message = format!("failed to provision volume with StorageClass \"{}\": {message}", class.name());
        self.world.warning(claim, "ProvisioningFailed", message);
        if is_rescheduled {
            // The scheduler selects a node again when the annotation is gone.
            let patch = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
            return Next::from(self.world.patch(claim, patch).await);
        }
        Next::Retry
    }
}
