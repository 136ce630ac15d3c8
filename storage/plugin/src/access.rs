//! The way in which a pod uses a volume, by the capability of a request. Pure.

use corten_plugins::csi;
use csi::volume_capability::AccessType;
use csi::volume_capability::access_mode::Mode;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;

/// The way in which a pod uses a volume.
#[derive(Clone, Debug)]
pub struct Access {
    pub block: bool,
    /// The wanted file system; none takes the one that is there.
    pub file_system: Option<FileSystem>,
    pub options: Vec<String>,
    /// Whether the volume may be published at one path only.
    pub single: bool,
    pub read_only: bool,
}

/// Returns the way in which a pod uses a volume.
pub fn access(capability: Option<&csi::VolumeCapability>, read_only: bool) -> Result<Access> {
    let capability = capability.ok_or_else(|| Error::Invalid("volume_capability is missing".to_owned()))?;
    let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |mode| mode.mode());
    let single = mode == Mode::SingleNodeSingleWriter;
    let reads = matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly);
    let read_only = read_only || reads;
    if matches!(mode, Mode::Unknown | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) {
        return Err(Error::Invalid("a volume is on one node: its access mode cannot have writers on several".into()));
    }
    match capability.access_type.as_ref() {
        None => Err(Error::Invalid("the access type is missing".to_owned())),
        Some(AccessType::Block(_)) => {
            Ok(Access { block: true, file_system: None, options: Vec::new(), single, read_only })
        }
        Some(AccessType::Mount(mount)) => {
            let named = Some(mount.fs_type.as_str()).filter(|name| !name.is_empty());
            let file_system = named.map(FileSystem::parse).transpose()?;
            Ok(Access { block: false, file_system, options: mount.mount_flags.clone(), single, read_only })
        }
    }
}

#[cfg(test)]
mod tests {
    use csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    use super::*;

    fn capability(mode: Mode, fs_type: Option<&str>) -> csi::VolumeCapability {
        let access_type = match fs_type {
            Some(name) => AccessType::Mount(MountVolume { fs_type: name.into(), ..MountVolume::default() }),
            None => AccessType::Block(BlockVolume {}),
        };
        csi::VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type: Some(access_type) }
    }

    #[test]
    fn capabilities_of_several_writing_nodes_are_refused() {
        for mode in [Mode::Unknown, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter] {
            assert!(access(Some(&capability(mode, Some("ext4"))), false).is_err(), "{mode:?}");
        }
        let reader = access(Some(&capability(Mode::MultiNodeReaderOnly, Some("xfs"))), false).unwrap();
        assert!(reader.read_only && reader.file_system == Some(FileSystem::Xfs));
        assert!(access(Some(&capability(Mode::SingleNodeSingleWriter, None)), false).unwrap().single);
        assert!(access(None, false).is_err());
        assert!(access(Some(&capability(Mode::SingleNodeWriter, Some("ntfs"))), false).is_err());
    }
}
