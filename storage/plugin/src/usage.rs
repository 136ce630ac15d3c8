//! The use of a volume: total, used and available bytes and inodes.

use std::path::Path;

use corten_plugins::csi;
use csi::volume_usage::Unit;

use crate::error::{During, Result};

/// The use of a published volume.
pub struct Usage {
    pub bytes: Counts,
    /// The inodes; none for a block device.
    pub inodes: Option<Counts>,
}

/// Total, used and available units.
pub struct Counts {
    pub total: u64,
    pub used: u64,
    pub available: u64,
}

/// Returns the use of the file system that is mounted at a path.
pub fn of_file_system(path: &Path) -> Result<Usage> {
    let found = rustix::fs::statvfs(path).during(|| format!("look at {}", path.display()))?;
    let unit = found.f_frsize;
    let bytes = Counts {
        total: found.f_blocks.saturating_mul(unit),
        used: found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(unit),
        available: found.f_bavail.saturating_mul(unit),
    };
    let inodes =
        Counts { total: found.f_files, used: found.f_files.saturating_sub(found.f_ffree), available: found.f_favail };
    Ok(Usage { bytes, inodes: Some(inodes) })
}

/// Returns the use of a block device, of which only the size is known.
pub fn of_device(bytes: u64) -> Usage {
    Usage { bytes: Counts { total: bytes, used: 0, available: 0 }, inodes: None }
}

/// Returns the use as CSI writes it.
pub fn messages(usage: &Usage) -> Vec<csi::VolumeUsage> {
    let inodes = usage.inodes.as_ref().map(|inodes| message(Unit::Inodes, inodes));
    [message(Unit::Bytes, &usage.bytes)].into_iter().chain(inodes).collect()
}

fn message(unit: Unit, counts: &Counts) -> csi::VolumeUsage {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    csi::VolumeUsage {
        available: signed(counts.available),
        total: signed(counts.total),
        used: signed(counts.used),
        unit: unit as i32,
    }
}
