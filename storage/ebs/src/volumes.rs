//! Creates, deletes, expands and modifies volumes.
//!
//! A volume is found by the tag with its name before it is made, and made with a client token that follows from the name:
//! a call whose answer was lost makes no second one, also while EC2 does not show the first.

use std::collections::HashMap;

use corten_aws::Call;
use corten_outbound::sign::sha256;
use corten_outbound::xml::Element;
use corten_storage_plugin::error::{Error, Result};
use corten_storage_plugin::requests::{Size, Sizes};

use crate::cloud::{Cloud, Volume, is_managed, with_tags};
use crate::parameters::{Parameters, Performance, VolumeType};
use crate::tags::{self, Tags, VOLUME_NAME};
use crate::topology::Zones;
use crate::waiting::Wait;

pub const GIB: u64 = 1 << 30;
const SIZES: Sizes = Sizes { unit: GIB, default: 100 * GIB };
/// The type of volumes whose class names none.
const DEFAULT_TYPE: &str = "gp3";

/// A wanted volume.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub size: Size,
    pub zones: Zones,
    pub parameters: Parameters,
    pub tags: Tags,
    /// The snapshot that the volume is made of.
    pub snapshot: Option<String>,
}

impl Wanted {
    fn kind(&self) -> Result<VolumeType> {
        self.parameters.performance.kind.map_or_else(|| VolumeType::parse(DEFAULT_TYPE), Ok)
    }

    /// Returns why an existing volume of the name is another one.
    fn difference(&self, found: &Volume) -> Option<&'static str> {
        let snapshot = self.snapshot.as_deref().unwrap_or_default();
        let checks = [
            (self.size.contains(found.gib * GIB), "size"),
            (self.zones.allow(&found.zone), "zone"),
            (found.snapshot == snapshot, "snapshot"),
        ];
        checks.into_iter().find(|(is_equal, _)| !is_equal).map(|(_, difference)| difference)
    }
}

impl Cloud {
    /// Creates a volume, or returns the one of the same name.
    pub(crate) async fn create_volume(&self, wanted: &Wanted) -> Result<Volume> {
        let volume = match self.volumes_named(&wanted.name).await?.into_iter().next() {
            Some(found) => found,
            None => self.make_volume(wanted).await?,
        };
        if let Some(difference) = wanted.difference(&volume) {
            let sentence = format!("volume {} has the name {} and another {difference}", volume.id, wanted.name);
            return Err(Error::AlreadyExists(sentence));
        }
        self.available(&volume.id).await
    }

    async fn make_volume(&self, wanted: &Wanted) -> Result<Volume> {
        let floor = match &wanted.snapshot {
            Some(id) => self.snapshot(id).await?.gib * GIB,
            None => GIB,
        };
        let gib = wanted.size.resolve(&SIZES, floor)? / GIB;
        let kind = wanted.kind()?;
        let zone = match wanted.zones.first() {
            Some(zone) => zone.to_owned(),
            None => self.any_zone(&wanted.name).await?,
        };
        let parameters = &wanted.parameters;
        let mut call = Call::new("CreateVolume")
            .with("AvailabilityZone", zone)
            .with("Size", gib.to_string())
            .with("VolumeType", kind.name)
            .with("ClientToken", sha256(wanted.name.as_bytes()))
            .with("Encrypted", parameters.encrypted.to_string());
        if !parameters.kms_key.is_empty() {
            call = call.with("KmsKeyId", parameters.kms_key.as_str());
        }
        if let Some(snapshot) = &wanted.snapshot {
            call = call.with("SnapshotId", snapshot.as_str());
        }
        call = with_performance(call, &parameters.performance, kind, gib)?;
        let answer = self.call(&with_tags(call, "volume", &wanted.tags)).await?;
        Ok(Volume::read(&answer))
    }

    /// Returns a zone of the region that follows from the name, so that a repeated call chooses the same.
    async fn any_zone(&self, name: &str) -> Result<String> {
        let zones = self.zones().await?;
        let sum: usize = name.bytes().map(usize::from).sum();
        let chosen = sum.checked_rem(zones.len()).and_then(|index| zones.get(index));
        chosen.cloned().ok_or_else(|| Error::Internal("the region has no zone that is available".to_owned()))
    }

    /// Waits until a new volume can be used.
    async fn available(&self, id: &str) -> Result<Volume> {
        let mut wait = Wait::new(format!("the creation of volume {id}"));
        let mut was_shown = false;
        loop {
            let found = self.find_volume(id).await?;
            match found {
                Some(found) if found.state == "error" => return Err(failed(id)),
                Some(found) if found.state != "creating" => return Ok(found),
                None if was_shown => return Err(failed(id)),
                // EC2 may show a volume some moments after it answered.
                found => was_shown |= found.is_some(),
            }
            wait.pause().await?;
        }
    }

    /// Deletes a volume that a driver of this name made.
    pub(crate) async fn delete_volume(&self, id: &str) -> Result<()> {
        let Some(volume) = self.find_volume(id).await? else { return Ok(()) };
        if !is_managed(&volume.tags) {
            let sentence = format!("volume {id} was not made by {}: it has none of its tags", crate::NAME);
            return Err(Error::Precondition(sentence));
        }
        if let Some(attachment) = volume.attachments.first() {
            return Err(Error::Precondition(format!("volume {id} is attached to instance {}", attachment.instance)));
        }
        match self.call(&Call::new("DeleteVolume").with("VolumeId", id)).await {
            Err(Error::NotFound(_)) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Expands a volume; returns its size in bytes.
    pub(crate) async fn expand_volume(&self, id: &str, size: Size) -> Result<u64> {
        let volume = self.volume(id).await?;
        let wanted = size.resolve(&SIZES, GIB)? / GIB;
        if volume.gib < wanted {
            let call = Call::new("ModifyVolume").with("VolumeId", id).with("Size", wanted.to_string());
            self.call(&call).await?;
        }
        self.modified(id).await?;
        let gib = if volume.gib < wanted { wanted } else { volume.gib };
        match size.contains(gib * GIB) {
            true => Ok(gib * GIB),
            false => Err(Error::OutOfRange(format!("volume {id} has {gib} GiB, and volumes do not shrink"))),
        }
    }

    /// Changes the type, the operations, the throughput and the tags of a volume.
    pub(crate) async fn modify_volume(
        &self,
        id: &str,
        wanted: &Performance,
        parameters: &HashMap<String, String>,
    ) -> Result<()> {
        let volume = self.volume(id).await?;
        let kind = wanted.kind.map_or_else(|| VolumeType::parse(&volume.kind), Ok)?;
        let iops = wanted.iops(kind, volume.gib)?;
        let throughput = wanted.throughput(kind);
        let is_same = kind.name == volume.kind
            && (iops.is_none() || iops == volume.iops)
            && (throughput.is_none() || throughput == volume.throughput);
        if !is_same {
            let call = Call::new("ModifyVolume").with("VolumeId", id).with("VolumeType", kind.name);
            self.call(&with_performance(call, wanted, kind, volume.gib)?).await?;
        }
        self.tag(id, &volume.tags, &tags::of_parameters(parameters)?).await?;
        self.modified(id).await
    }

    /// Adds the tags that a volume does not have.
    async fn tag(&self, id: &str, present: &Tags, wanted: &Tags) -> Result<()> {
        let missing: Vec<(&String, &String)> =
            wanted.iter().filter(|(key, value)| present.get(*key) != Some(value)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut call = Call::new("CreateTags").with("ResourceId.1", id);
        for (index, (key, value)) in missing.into_iter().enumerate() {
            let tag = format!("Tag.{}", index + 1);
            call = call.with(format!("{tag}.Key"), key.as_str()).with(format!("{tag}.Value"), value.as_str());
        }
        self.call(&call).await.map(drop)
    }

    /// Waits until the last modification of a volume has its effect; it may still be optimized.
    async fn modified(&self, id: &str) -> Result<()> {
        let mut wait = Wait::new(format!("the modification of volume {id}"));
        loop {
            let last = self.last_modification(id).await?.unwrap_or_default();
            match last.get("modificationState") {
                "modifying" | "pending" => wait.pause().await?,
                "failed" => {
                    let reason = last.get("statusMessage");
                    return Err(Error::Internal(format!("the modification of volume {id} failed: {reason}")));
                }
                _ => return Ok(()),
            }
        }
    }

    async fn last_modification(&self, id: &str) -> Result<Option<Element>> {
        let call = Call::new("DescribeVolumesModifications").filter("volume-id", [id]);
        match self.pages(&call, "volumeModificationSet/item").await {
            Err(Error::NotFound(_)) => Ok(None),
            found => Ok(found?.pop()),
        }
    }
}

fn failed(id: &str) -> Error {
    let reason = "as it does when its key cannot be used: create the claim again";
    Error::Internal(format!("volume {id} failed, {reason}"))
}

/// Adds the operations and the throughput to a call.
fn with_performance(mut call: Call, performance: &Performance, kind: VolumeType, gib: u64) -> Result<Call> {
    if let Some(iops) = performance.iops(kind, gib)? {
        call = call.with("Iops", iops.to_string());
    }
    if let Some(throughput) = performance.throughput(kind) {
        call = call.with("Throughput", throughput.to_string());
    }
    Ok(call)
}

/// Returns the tags of a new volume.
pub fn tags_of(cloud: &Cloud, name: &str, parameters: &HashMap<String, String>) -> Result<Tags> {
    tags::of_object(VOLUME_NAME, name, &cloud.cluster, parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_volume_of_the_name_is_recognized() {
        let wanted = Wanted {
            name: "a".into(),
            size: Size { least: 4 * GIB, most: 5 * GIB },
            zones: Zones::default(),
            parameters: Parameters::default(),
            tags: Tags::new(),
            snapshot: None,
        };
        let volume = Volume { gib: 4, ..Volume::default() };
        assert_eq!(wanted.difference(&volume), None);
        assert_eq!(wanted.difference(&Volume { gib: 6, ..Volume::default() }), Some("size"));
        let restored = Volume { snapshot: "snap-1".into(), ..volume };
        assert_eq!(wanted.difference(&restored), Some("snapshot"));
    }
}
