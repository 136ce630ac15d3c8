//! Takes, deletes and lists snapshots.
//!
//! EC2 has no client token for snapshots: one is found by the tag with its name before it is taken.

use std::collections::HashMap;

use corten_aws::Call;
use corten_outbound::xml::Element;
use corten_plugins::csi;
use corten_storage_plugin::error::{Error, Result};
use jiff::Timestamp;

use crate::cloud::{Cloud, is_id, is_managed, tags, with_tags};
use crate::tags::{self as own, MANAGED, SNAPSHOT_NAME, Tags};
use crate::volumes::GIB;

/// A snapshot of EC2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub id: String,
    pub volume: String,
    /// The size of its volume.
    pub gib: u64,
    state: String,
    started: Option<Timestamp>,
    tags: Tags,
}

impl Snapshot {
    fn read(element: &Element) -> Snapshot {
        Snapshot {
            id: element.get("snapshotId").to_owned(),
            volume: element.get("volumeId").to_owned(),
            gib: element.get("volumeSize").parse().unwrap_or_default(),
            state: element.get("status").to_owned(),
            started: element.get("startTime").parse().ok(),
            tags: tags(element),
        }
    }

    /// Returns the snapshot as CSI writes it.
    pub fn message(&self) -> csi::Snapshot {
        let time =
            |started: Timestamp| csi::Timestamp { seconds: started.as_second(), nanos: started.subsec_nanosecond() };
        csi::Snapshot {
            size_bytes: i64::try_from(self.gib.saturating_mul(GIB)).unwrap_or(i64::MAX),
            snapshot_id: self.id.clone(),
            source_volume_id: self.volume.clone(),
            creation_time: self.started.map(time),
            ready_to_use: self.state == "completed",
            group_snapshot_id: String::new(),
        }
    }
}

/// The snapshots of a list: of one ID, of one volume, or all that drivers of this name took.
pub struct Selection<'a> {
    pub id: &'a str,
    pub volume: &'a str,
}

impl Cloud {
    /// Takes a snapshot of a volume, or returns the one of the same name.
    pub(crate) async fn create_snapshot(
        &self,
        name: &str,
        volume: &str,
        parameters: &HashMap<String, String>,
    ) -> Result<Snapshot> {
        if let Some(unknown) = parameters.keys().find(|key| !own::is_parameter(key)) {
            return Err(Error::Invalid(format!("the parameter {unknown} is not known")));
        }
        let tags = own::of_object(SNAPSHOT_NAME, name, &self.cluster, parameters)?;
        let named = Call::new("DescribeSnapshots").filter(&format!("tag:{SNAPSHOT_NAME}"), [name]);
        let found = match self.snapshots(&named).await?.into_iter().next() {
            Some(found) => found,
            None => self.take_snapshot(volume, &tags).await?,
        };
        if found.volume != volume {
            let sentence = format!("snapshot {} has the name {name} and is of volume {}", found.id, found.volume);
            return Err(Error::AlreadyExists(sentence));
        }
        match found.state.as_str() {
            "error" => Err(Error::Internal(format!("snapshot {} failed", found.id))),
            _ => Ok(found),
        }
    }

    async fn take_snapshot(&self, volume: &str, tags: &Tags) -> Result<Snapshot> {
        self.volume(volume).await?;
        let call = Call::new("CreateSnapshot").with("VolumeId", volume).with("Description", "Created by corten");
        let answer = self.call(&with_tags(call, "snapshot", tags)).await?;
        Ok(Snapshot::read(&answer))
    }

    /// Deletes a snapshot that a driver of this name took.
    pub(crate) async fn delete_snapshot(&self, id: &str) -> Result<()> {
        let Some(snapshot) = self.find_snapshot(id).await? else { return Ok(()) };
        if !is_managed(&snapshot.tags) {
            let sentence = format!("snapshot {id} was not taken by {}: it has none of its tags", crate::NAME);
            return Err(Error::Precondition(sentence));
        }
        match self.call(&Call::new("DeleteSnapshot").with("SnapshotId", id)).await {
            Err(Error::NotFound(_)) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Returns a snapshot that must exist.
    pub(crate) async fn snapshot(&self, id: &str) -> Result<Snapshot> {
        let found = self.find_snapshot(id).await?;
        found.ok_or_else(|| Error::NotFound(format!("snapshot {id} does not exist")))
    }

    async fn find_snapshot(&self, id: &str) -> Result<Option<Snapshot>> {
        Ok(self.list_snapshots(&Selection { id, volume: "" }).await?.into_iter().next())
    }

    /// Returns the snapshots of a selection, in the order of their IDs.
    pub(crate) async fn list_snapshots(&self, selection: &Selection<'_>) -> Result<Vec<Snapshot>> {
        let call = Call::new("DescribeSnapshots");
        let call = match selection {
            Selection { id: "", volume: "" } => call.with("Owner.1", "self").filter("tag-key", [MANAGED]),
            Selection { id: "", volume } if is_id("vol-", volume) => call.filter("volume-id", [*volume]),
            Selection { id, volume: "" } if is_id("snap-", id) => call.filter("snapshot-id", [*id]),
            Selection { id, volume } if is_id("snap-", id) && is_id("vol-", volume) => {
                call.filter("snapshot-id", [*id]).filter("volume-id", [*volume])
            }
            _ => return Ok(Vec::new()),
        };
        self.snapshots(&call).await
    }

    async fn snapshots(&self, call: &Call) -> Result<Vec<Snapshot>> {
        let found = self.pages(call, "snapshotSet/item").await?;
        let mut snapshots: Vec<Snapshot> = found.iter().map(Snapshot::read).collect();
        snapshots.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(snapshots)
    }
}
