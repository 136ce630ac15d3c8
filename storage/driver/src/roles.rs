//! Which node may use a volume that has a copy: the role and the epoch in the node's record, and those that the cluster
//! has. Pure.
//!
//! *Invariant: pods use a volume only on the node whose record has the role primary and the epoch that the cluster has.*

use std::pin::Pin;

use crate::record::{Replica, Role, Volume};
use corten_storage_plugin::error::{Error, Result};

/// The seconds that may lie between two increments.
pub const INTERVALS: std::ops::RangeInclusive<u64> = 5..=24 * 60 * 60;

/// The node that may use a volume, by the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub node: String,
    pub epoch: u64,
}

/// The answer to the question which node holds a volume.
pub type Held<'a> = Pin<Box<dyn Future<Output = std::result::Result<Holder, String>> + Send + 'a>>;

/// Knows which node may use a volume that has a copy, as the cluster knows it now and not from a cache.
pub trait Fence: Send + Sync {
    /// Returns the holder of a volume, by the volume's name.
    fn holder<'a>(&'a self, name: &'a str) -> Held<'a>;
}

impl Replica {
    /// Returns the part of the node on which a volume is created.
    pub fn first(interval_seconds: u64) -> Replica {
        Replica { role: Role::Primary, epoch: 1, generation: String::new(), interval_seconds }
    }
}

/// Reports whether a volume is a copy, which no pod may use.
pub fn is_standby(volume: &Volume) -> bool {
    volume.replica.as_ref().is_some_and(|replica| replica.role == Role::Standby)
}

/// Refuses a copy.
pub fn check_primary(volume: &Volume) -> Result<()> {
    match is_standby(volume) {
        true => Err(Error::Precondition(format!("volume {} is a copy: its primary is on another node", volume.id))),
        false => Ok(()),
    }
}

/// Returns the epoch of a volume that this node holds, by the cluster and by its own record.
pub fn check_holder(volume: &Volume, holder: &Holder, node: &str) -> Result<u64> {
    let refused = |why: String| Err(Error::Precondition(format!("volume {} is not used here: {why}", volume.id)));
    if holder.node != node {
        return refused(format!("its primary is node {}", holder.node));
    }
    let Some(replica) = &volume.replica else { return refused("it has no copy".to_owned()) };
    match replica.role == Role::Primary && replica.epoch == holder.epoch {
        true => Ok(holder.epoch),
        false => refused(format!("this node knows epoch {}, and the cluster is in {}", replica.epoch, holder.epoch)),
    }
}

/// Refuses a volume whose role or epoch has changed since this node was found to hold it.
pub fn check_epoch(volume: &Volume, epoch: Option<u64>) -> Result<()> {
    check_primary(volume)?;
    match volume.replica.as_ref().map(|replica| replica.epoch) == epoch {
        true => Ok(()),
        false => Err(Error::Aborted(format!("the epoch of volume {} has just changed", volume.id))),
    }
}
