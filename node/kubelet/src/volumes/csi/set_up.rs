//! Mounts a CSI volume for a pod: waits for its attachment, stages it once for the node, publishes it for the pod, sets
//! the pod's group, and expands it if its claim has grown. Every step may be repeated; drivers promise the same of
//! their calls.

use std::collections::HashMap;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccountTokenProjection,
};
use corten_api::k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use corten_meta::Key;
use corten_plugins::csi;
use corten_plugins::csi::node_service_capability::rpc::Type as Rpc;
use serde_json::{Value, json};

use super::capability::{self, Abilities, SecretReference, Source};
use super::driver::Driver;
use super::record::{self, Record};
use super::{Csi, Published};
use crate::error::{Error, Result};
use crate::pod::spec;
use crate::volumes::expansion::{CHECK_INTERVAL, Expansion, Outcome, Refused};
use crate::volumes::{Context, Mounted, fs_group};

/// The volume to mount.
pub struct Request<'a> {
    /// The volume's name in the pod.
    pub volume: &'a str,
    pub source: Source,
    /// The claim and its volume, if there is one.
    pub bound: Option<(&'a PersistentVolumeClaim, &'a PersistentVolume)>,
}

/// The parts that all steps share.
struct Steps<'a> {
    csi: &'a Csi,
    context: &'a Context<'a>,
    source: &'a Source,
    record: Record,
    object: Option<CSIDriver>,
    driver: Driver,
    abilities: Abilities,
    publish_context: HashMap<String, String>,
}

impl Csi {
    /// Mounts the volume; returns it and the time of its next reconcile.
    pub async fn set_up(
        &self,
        context: &Context<'_>,
        request: &Request<'_>,
    ) -> Result<(Mounted, Option<jiff::Timestamp>)> {
        let source = &request.source;
        let record = source.record(&self.node_name);
        self.objects.synced().await;
        let object = self.object(&source.driver);
        capability::check_mode(source, object.as_ref())
            .map_err(|error| failed("mounter.SetupAt failed to check volume lifecycle mode", &error))?;
        let publish_context = match source.persistent && capability::needs_attach(object.as_ref()) {
            true => self.attached(context, &record, object.as_ref(), request.volume).await?,
            false => HashMap::new(),
        };
        let driver = self.driver(&source.driver).map_err(|error| {
            self.wait(spec::uid(context.pod), context.waker);
            failed("mounter.SetUpAt failed to get CSI client", &error)
        })?;
        let lock = self.volume_lock(&record.unique_name());
        let _alone = lock.lock().await;
        if source.is_for_one_pod() && self.others_use(&record, context.pod_dir) {
            return Err(Error::pod(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
            ));
        }
        let abilities = driver.abilities().await?;
        let steps = Steps { csi: self, context, source, record, object, driver, abilities, publish_context };
        steps.run(request).await
    }

    /// Returns the attachment's metadata once the volume is attached to this node and the controller knows that the
    /// node uses it.
    async fn attached(
        &self,
        context: &Context<'_>,
        record: &Record,
        object: Option<&CSIDriver>,
        volume: &str,
    ) -> Result<HashMap<String, String>> {
        let name = record.unique_name();
        let uid = spec::uid(context.pod);
        self.set_user(&name, uid, true);
        // The pod waits before the check, so that no change in between is missed.
        self.wait(uid, context.waker);
        let node: Option<Node> = self.own_node.typed(&Key { namespace: String::new(), name: self.node_name.clone() });
        let status = node.and_then(|node| node.status).unwrap_or_default();
        let in_use = status.volumes_in_use.iter().flatten().any(|known| *known == name);
        let attached = status.volumes_attached.iter().flatten().any(|known| known.name == name);
        if !in_use || !attached {
            self.check_room(object, record, volume).await?;
            return Err(Error::Waiting(format!("volume {} is not attached to the node", record.spec_name)));
        }
        let id = &record.attachment;
        let attachment = self.client.get::<VolumeAttachment>("", id).await.map_err(|error| {
            Error::pod(format!("volume {} has GET error for volume attachment {id}: {error}", record.handle))
        })?;
        let status = attachment.status.unwrap_or_default();
        if let Some(message) = status.attach_error.and_then(|error| error.message).filter(|_| !status.attached) {
            return Err(Error::pod(message));
        }
        if !status.attached {
            let handle = &record.handle;
            return Err(Error::Waiting(format!("volume {handle} is not attached for volume attachment {id}")));
        }
        Ok(status.attachment_metadata.unwrap_or_default().into_iter().collect())
    }

    async fn secret(&self, what: &str, reference: Option<&SecretReference>) -> Result<HashMap<String, String>> {
        let Some((namespace, name)) = reference else { return Ok(HashMap::new()) };
        let secret = self.client.get::<Secret>(namespace, name).await;
        let secret =
            secret.map_err(|error| Error::pod(format!("fetching {what} {namespace}/{name} failed: {error}")))?;
        let data = secret.data.unwrap_or_default().into_iter();
        Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
    }
}

fn failed(what: &str, error: &Error) -> Error {
    Error::pod(format!("kubernetes.io/csi: {what}: {error}"))
}

impl Steps<'_> {
    async fn run(&self, request: &Request<'_>) -> Result<(Mounted, Option<jiff::Timestamp>)> {
        let root = &self.csi.root_dir;
        let key = (spec::uid(self.context.pod).to_owned(), request.volume.to_owned());
        let known = self.csi.lock().published.contains_key(&key);
        let again = self.object.as_ref().is_some_and(|object| object.spec.requires_republish == Some(true));
        let target = self.record.target(root, self.context.pod_dir);
        let staging =
            (self.source.persistent && self.abilities.can(Rpc::StageUnstageVolume)).then(|| self.record.staging(root));
        if !known || again {
            self.record.write(self.context.pod_dir, &self.csi.node_name)?;
            if let Some(staging) = staging.as_ref().filter(|_| !known) {
                self.stage(staging).await?;
            }
            self.publish(&target, staging.as_deref()).await?;
        }
        if !known {
            self.give_to_group(&target)?;
        }
        let path = if self.source.block { device_at(&target)? } else { target.clone() };
        let driver = self.source.driver.clone();
        let handle = self.source.handle.clone();
        let published = Published { driver, handle, path: target.clone(), staging: staging.clone(), usage: Vec::new() };
        self.csi.lock().published.entry(key).or_insert(published);
        if let Some((claim, volume)) = request.bound {
            self.expand(claim, volume, &target, staging.as_deref()).await?;
        }
        let look_again = (again || request.bound.is_some()).then(|| self.context.now.checked_add(CHECK_INTERVAL).ok());
        Ok((Mounted { path, writable: !self.source.read_only, device: self.source.block }, look_again.flatten()))
    }

    async fn stage(&self, staging: &Path) -> Result<()> {
        record::write_staged(&self.record, staging)?;
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.source.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(self.source.capability(&self.abilities, self.mount_group())),
            secrets: self.csi.secret("NodeStageSecretRef", self.source.stage_secret.as_ref()).await?,
            volume_context: self.source.attributes.clone(),
        };
        self.driver.stage(request).await.map_err(|refusal| {
            // A call that ended has left nothing to unstage, unless an earlier one staged the volume for another pod.
            if refusal.outcome() != Outcome::Uncertain && !self.csi.others_use(&self.record, self.context.pod_dir) {
                let _ = record::remove_staged(&self.record, staging);
            }
            Error::from(refusal)
        })
    }

    async fn publish(&self, target: &Path, staging: Option<&Path>) -> Result<()> {
        let parent = target.parent().unwrap_or(target);
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o750).create(parent).map_err(Error::file("create", parent))?;
        let mut secrets = self.csi.secret("NodePublishSecretRef", self.source.publish_secret.as_ref()).await?;
        let mut attributes = self.source.attributes.clone();
        capability::add_pod_info(&mut attributes, self.context.pod, self.source, self.object.as_ref());
        if let Some(tokens) = self.tokens().await? {
            let declared = self.object.as_ref().map(|object| &object.spec);
            let in_secrets = declared.is_some_and(|spec| spec.service_account_token_in_secrets == Some(true));
            let into = if in_secrets { &mut secrets } else { &mut attributes };
            into.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), tokens);
        }
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.source.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
            target_path: target.display().to_string(),
            volume_capability: Some(self.source.capability(&self.abilities, self.mount_group())),
            readonly: self.source.read_only,
            secrets,
            volume_context: attributes,
        };
        self.driver.publish(request).await
    }

    /// Returns the service account tokens that the driver requests, in the form that it expects.
    async fn tokens(&self) -> Result<Option<String>> {
        let requests = self.object.iter().flat_map(|object| object.spec.token_requests.iter().flatten());
        let mut tokens = serde_json::Map::new();
        for request in requests {
            let projection = ServiceAccountTokenProjection {
                audience: Some(request.audience.clone()).filter(|audience| !audience.is_empty()),
                expiration_seconds: request.expiration_seconds,
                ..ServiceAccountTokenProjection::default()
            };
            let token = self.context.tokens.get(self.context, &projection).await?;
            let status = json!({"token": token.text, "expirationTimestamp": token.expires.to_string()});
            tokens.insert(request.audience.clone(), status);
        }
        Ok(Some(tokens).filter(|tokens| !tokens.is_empty()).map(|tokens| Value::Object(tokens).to_string()))
    }

    /// Returns the group that the driver itself sets on the files, if it can.
    fn mount_group(&self) -> Option<u32> {
        fs_group::fs_group(self.context.pod).filter(|_| self.abilities.can(Rpc::VolumeMountGroup))
    }

    fn give_to_group(&self, target: &Path) -> Result<()> {
        let ours = !self.abilities.can(Rpc::VolumeMountGroup);
        if ours && capability::gives_to_group(self.source, self.object.as_ref()) {
            fs_group::give_to_group(self.context.pod, target)
                .map_err(|error| Error::pod(format!("applyFSGroup failed for vol {}: {error}", self.source.handle)))?;
        }
        Ok(())
    }

    /// Lets the driver expand the file system after the volume itself has grown, and records the result in the claim's
    /// status.
    async fn expand(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &Path,
        staging: Option<&Path>,
    ) -> Result<()> {
        let Some(expansion) = Expansion::due(claim, volume) else { return Ok(()) };
        if self.source.read_only || !self.abilities.can(Rpc::ExpandVolume) {
            return Ok(());
        }
        expansion.begin(self.context).await?;
        let request = csi::NodeExpandVolumeRequest {
            volume_id: self.source.handle.clone(),
            volume_path: target.display().to_string(),
            capacity_range: Some(csi::CapacityRange { required_bytes: expansion.bytes(), limit_bytes: 0 }),
            staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
            volume_capability: Some(self.source.capability(&self.abilities, self.mount_group())),
            secrets: self.csi.secret("NodeExpandSecretRef", self.source.expand_secret.as_ref()).await?,
        };
        let name = self.record.unique_name();
        let Err(refusal) = self.driver.expand(request).await else {
            self.csi.lock().failed_expansions.remove(&name);
            return expansion.succeed(self.context).await;
        };
        let outcome = refusal.outcome();
        let failed_before = match outcome {
            Outcome::Uncertain => false,
            _ => !self.csi.lock().failed_expansions.insert(name),
        };
        let message = format!("Expander.NodeExpand failed to expand the volume : {refusal}");
        expansion.fail(self.context, Refused { message, outcome }, failed_before).await
    }
}

/// Returns the block device that the driver published; the path may be a link to it.
fn device_at(target: &Path) -> Result<PathBuf> {
    let path = target.canonicalize().map_err(Error::file("look at device", target))?;
    let kind = std::fs::metadata(&path).map_err(Error::file("look at device", &path))?.file_type();
    if kind.is_block_device() {
        return Ok(path);
    }
    Err(Error::pod(format!("the CSI driver did not publish a block device at {}", target.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_block_device_is_accepted_as_one() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(device_at(&file).is_err());
        assert!(device_at(&root.path().join("none")).is_err());
    }
}
