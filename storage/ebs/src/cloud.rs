//! The objects of EC2 that the driver knows: volumes with their attachments, instances, zones; and its errors.
//!
//! Objects are asked for by filters: one that does not exist is an empty answer and no error.

use std::collections::BTreeSet;
use std::sync::Mutex;

use corten_aws::call::NEXT_TOKEN;
use corten_aws::{Api, Call, Refusal};
use corten_outbound::xml::Element;
use corten_storage_plugin::error::{Error, Result};

use crate::tags::{MANAGED, SNAPSHOT_NAME, Tags, VOLUME_NAME};

/// The volumes of a cluster in a region.
pub struct Cloud {
    pub(crate) ec2: Api,
    /// The name of the cluster in tags.
    pub(crate) cluster: String,
    /// The device names that attachments under way will take.
    pub(crate) reserved: Mutex<BTreeSet<DeviceName>>,
}

/// The name of a device of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceName {
    pub instance: String,
    pub device: String,
}

/// A volume of EC2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    pub id: String,
    pub gib: u64,
    pub state: String,
    pub zone: String,
    pub kind: String,
    pub iops: Option<u64>,
    pub throughput: Option<u64>,
    pub encrypted: bool,
    /// The snapshot that the volume was made of; empty if it was made empty.
    pub snapshot: String,
    pub attachments: Vec<Attachment>,
    pub tags: Tags,
}

/// The attachment of a volume to an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    pub instance: String,
    pub device: String,
    pub state: String,
}

impl Volume {
    pub(crate) fn read(element: &Element) -> Volume {
        let number = |path: &str| element.get(path).parse().ok();
        let attachment = |one: &Element| Attachment {
            instance: one.get("instanceId").to_owned(),
            device: one.get("device").to_owned(),
            state: one.get("status").to_owned(),
        };
        Volume {
            id: element.get("volumeId").to_owned(),
            gib: number("size").unwrap_or_default(),
            state: element.get("status").to_owned(),
            zone: element.get("availabilityZone").to_owned(),
            kind: element.get("volumeType").to_owned(),
            iops: number("iops"),
            throughput: number("throughput"),
            encrypted: element.get("encrypted") == "true",
            snapshot: element.get("snapshotId").to_owned(),
            attachments: element.all("attachmentSet/item").map(attachment).collect(),
            tags: tags(element),
        }
    }
}

/// Returns the tags of an object.
pub fn tags(element: &Element) -> Tags {
    element.all("tagSet/item").map(|tag| (tag.get("key").to_owned(), tag.get("value").to_owned())).collect()
}

/// Reports whether a driver of this name made an object, by the tags that policies of AWS's driver allow its deletion by.
pub fn is_managed(tags: &Tags) -> bool {
    [MANAGED, VOLUME_NAME, SNAPSHOT_NAME].iter().any(|key| tags.contains_key(*key))
}

/// Reports whether a string can be an ID of EC2 with this prefix.
pub fn is_id(prefix: &str, id: &str) -> bool {
    let rest = id.strip_prefix(prefix).unwrap_or_default();
    (1..=64).contains(&rest.len()) && rest.bytes().all(|one| one.is_ascii_alphanumeric())
}

/// Returns the error of a refused call. An outcome that is not known is `Unavailable`, so that callers repeat the call.
pub fn error(refusal: Refusal) -> Error {
    let message = match refusal.error {
        corten_aws::Error::Refused(message) => message,
        unknown => return Error::Unavailable(unknown.to_string()),
    };
    match refusal.code.as_str() {
        code if code.ends_with(".NotFound") => Error::NotFound(message),
        code if code.starts_with("InvalidParameter") || code == "MissingParameter" || code == "UnknownParameter" => {
            Error::Invalid(message)
        }
        code if code.ends_with("LimitExceeded") || code == "InsufficientVolumeCapacity" => Error::Exhausted(message),
        // One change in six hours: the next attempt may succeed.
        "VolumeModificationRateExceeded" | "IncorrectModificationState" => Error::Unavailable(message),
        "IncorrectState" | "VolumeInUse" | "InvalidSnapshot.InUse" | "InvalidVolume.ZoneMismatch" => {
            Error::Precondition(message)
        }
        // An earlier call of the same name had other arguments, and its effect is not shown yet.
        "IdempotentParameterMismatch" => Error::Aborted(message),
        _ => Error::Internal(message),
    }
}

impl Cloud {
    /// Returns the volumes of a cluster behind an API of EC2.
    pub fn new(ec2: Api, cluster: String) -> Cloud {
        Cloud { ec2, cluster, reserved: Mutex::default() }
    }

    pub(crate) async fn call(&self, call: &Call) -> Result<Element> {
        self.ec2.call(call).await.map_err(error)
    }

    pub(crate) async fn pages(&self, call: &Call, path: &str) -> Result<Vec<Element>> {
        self.ec2.pages(call, path, NEXT_TOKEN).await.map_err(error)
    }

    /// Returns a volume; none if it does not exist, or will soon not.
    pub(crate) async fn find_volume(&self, id: &str) -> Result<Option<Volume>> {
        if !is_id("vol-", id) {
            return Ok(None);
        }
        let found = self.volumes(&Call::new("DescribeVolumes").filter("volume-id", [id])).await?;
        Ok(found.into_iter().next())
    }

    /// Returns a volume that must exist.
    pub(crate) async fn volume(&self, id: &str) -> Result<Volume> {
        let found = self.find_volume(id).await?;
        found.ok_or_else(|| Error::NotFound(format!("volume {id} does not exist")))
    }

    /// Returns the volumes of a name, in the order of their IDs.
    pub(crate) async fn volumes_named(&self, name: &str) -> Result<Vec<Volume>> {
        self.volumes(&Call::new("DescribeVolumes").filter(&format!("tag:{VOLUME_NAME}"), [name])).await
    }

    async fn volumes(&self, call: &Call) -> Result<Vec<Volume>> {
        let found = self.pages(call, "volumeSet/item").await?;
        let mut volumes: Vec<Volume> = found.iter().map(Volume::read).filter(|one| exists(&one.state)).collect();
        volumes.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(volumes)
    }

    /// Returns the device names that an instance uses.
    pub(crate) async fn devices(&self, instance: &str) -> Result<BTreeSet<String>> {
        let missing = || Error::NotFound(format!("instance {instance} does not exist"));
        if !is_id("i-", instance) {
            return Err(missing());
        }
        let call = Call::new("DescribeInstances").filter("instance-id", [instance]);
        let found = self.pages(&call, "reservationSet/item").await?;
        let mut instances = found.iter().flat_map(|one| one.all("instancesSet/item"));
        let found = instances.find(|one| one.get("instanceState/name") != "terminated").ok_or_else(missing)?;
        Ok(found.all("blockDeviceMapping/item").map(|one| one.get("deviceName").to_owned()).collect())
    }

    /// Returns the zones of the region, sorted.
    pub(crate) async fn zones(&self) -> Result<Vec<String>> {
        let answer = self.call(&Call::new("DescribeAvailabilityZones").filter("state", ["available"])).await?;
        let mut zones: Vec<String> =
            answer.all("availabilityZoneInfo/item").map(|zone| zone.get("zoneName").to_owned()).collect();
        zones.sort_unstable();
        Ok(zones)
    }
}

fn exists(state: &str) -> bool {
    !["deleting", "deleted"].contains(&state)
}

/// Adds the tags of a new object to the call that creates it.
pub fn with_tags(call: Call, resource: &str, tags: &Tags) -> Call {
    let mut call = call.with("TagSpecification.1.ResourceType", resource);
    for (index, (key, value)) in tags.iter().enumerate() {
        let tag = format!("TagSpecification.1.Tag.{}", index + 1);
        call = call.with(format!("{tag}.Key"), key.as_str()).with(format!("{tag}.Value"), value.as_str());
    }
    call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_recognized() {
        assert!(is_id("vol-", "vol-0abc") && is_id("i-", "i-1"));
        for bad in ["", "vol-", "vol-&", "snap-1", "vol-1/../2"] {
            assert!(!is_id("vol-", bad), "{bad}");
        }
    }

    #[test]
    fn refusals_have_the_codes_of_csi() {
        let refused = |code: &str| {
            let refusal = Refusal { code: code.to_owned(), error: corten_aws::Error::Refused("no".to_owned()) };
            tonic::Status::from(error(refusal)).code()
        };
        use tonic::Code;
        assert_eq!(refused("InvalidVolume.NotFound"), Code::NotFound);
        assert_eq!(refused("InvalidParameterValue"), Code::InvalidArgument);
        assert_eq!(refused("VolumeLimitExceeded"), Code::ResourceExhausted);
        assert_eq!(refused("IdempotentParameterMismatch"), Code::Aborted);
        assert_eq!(refused("VolumeInUse"), Code::FailedPrecondition);
        assert_eq!(refused("Strange"), Code::Internal);
        let lost = Refusal { code: String::new(), error: corten_aws::Error::Unknown("lost".to_owned()) };
        assert_eq!(tonic::Status::from(error(lost)).code(), Code::Unavailable);
    }
}
