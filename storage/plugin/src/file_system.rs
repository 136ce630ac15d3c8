//! The file systems of volumes, ext4 and xfs: how one is made on a volume's file, recognized, mounted and grown.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{During, Error, Result};
use crate::{ioctls, tools};

const MIB: u64 = 1 << 20;
/// The block size of ext4 and the sector size of xfs: that of the loop devices, whatever the size of the volume.
const BLOCK_SIZE: &str = "4096";
const SECTOR_SIZE: &str = "size=4096";
/// The place of ext4's superblock.
const EXT4_SUPERBLOCK: u64 = 1024;
const EXT4_MAGIC: [u8; 2] = [0x53, 0xef];
const XFS_MAGIC: [u8; 4] = *b"XFSB";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// Returns the file system of a capability; ext4 is the default, as upstream's.
    pub fn parse(name: &str) -> Result<FileSystem> {
        match name {
            "" | "ext4" => Ok(FileSystem::Ext4),
            "xfs" => Ok(FileSystem::Xfs),
            other => Err(Error::Invalid(format!("the file system {other} is not supported; ext4 and xfs are"))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    /// Returns the size of the smallest volume that the file system fits on.
    pub fn least_bytes(self) -> u64 {
        match self {
            FileSystem::Ext4 => MIB,
            // mkfs.xfs refuses anything smaller.
            FileSystem::Xfs => 300 * MIB,
        }
    }

    /// Returns the mount options that every volume needs.
    pub fn own_options(self) -> Vec<String> {
        match self {
            FileSystem::Ext4 => Vec::new(),
            // A clone has the UUID of its source, and both may be mounted.
            FileSystem::Xfs => vec!["nouuid".to_owned()],
        }
    }

    /// Makes an empty file system on a file. The file is sparse and stays so.
    pub fn make(self, file: &Path) -> Result<()> {
        let path = file.as_os_str();
        match self {
            FileSystem::Ext4 => {
                let program = tools::require("mkfs.ext4", "e2fsprogs")?;
                let options = ["-F", "-q", "-m", "0", "-b", BLOCK_SIZE].map(AsRef::as_ref);
                tools::run(&program, &[&options[..], &[path]].concat())?.expect(&[0])
            }
            FileSystem::Xfs => {
                let program = tools::require("mkfs.xfs", "xfsprogs")?;
                let options = ["-f", "-q", "-K", "-s", SECTOR_SIZE].map(AsRef::as_ref);
                tools::run(&program, &[&options[..], &[path]].concat())?.expect(&[0])
            }
        }
    }

    /// Recognizes the file system of a file by its superblock.
    pub fn recognize(file: &File) -> Option<FileSystem> {
        let mut xfs = [0; 4];
        let mut ext4 = [0; 2];
        if file.read_exact_at(&mut xfs, 0).is_ok() && xfs == XFS_MAGIC {
            return Some(FileSystem::Xfs);
        }
        file.read_exact_at(&mut ext4, EXT4_SUPERBLOCK + 56).ok()?;
        (ext4 == EXT4_MAGIC).then_some(FileSystem::Ext4)
    }

    /// Returns the size that the file system of a file or a device says it has.
    pub fn bytes(self, file: &File) -> Result<u64> {
        let read = |bytes: &mut [u8], offset| {
            file.read_exact_at(bytes, offset).during(|| "read the superblock of a file system".to_owned())
        };
        let mut count = [0; 8];
        let mut half = [0; 4];
        match self {
            FileSystem::Xfs => {
                read(&mut half, 4)?;
                read(&mut count, 8)?;
                Ok(u64::from_be_bytes(count).saturating_mul(u64::from(u32::from_be_bytes(half))))
            }
            FileSystem::Ext4 => {
                read(&mut half, EXT4_SUPERBLOCK + 4)?;
                let low = u32::from_le_bytes(half);
                read(&mut half, EXT4_SUPERBLOCK + 0x150)?;
                let blocks = u64::from(u32::from_le_bytes(half)) << 32 | u64::from(low);
                read(&mut half, EXT4_SUPERBLOCK + 24)?;
                Ok(blocks.saturating_mul(1024 << u32::from_le_bytes(half).min(6)))
            }
        }
    }

    /// Grows the file system of an unmounted file to the file's size. xfs grows only while it is mounted.
    pub fn grow_unmounted(self, file: &Path) -> Result<()> {
        if self == FileSystem::Xfs {
            return Ok(());
        }
        let check = tools::require("e2fsck", "e2fsprogs")?;
        let resize = tools::require("resize2fs", "e2fsprogs")?;
        let path = file.as_os_str();
        // Codes 1 and 2: errors were found and corrected.
        tools::run(&check, &["-f".as_ref(), "-p".as_ref(), path])?.expect(&[0, 1, 2])?;
        tools::run(&resize, &[path])?.expect(&[0])
    }

    /// Grows the mounted file system to `bytes`. `file` is the volume's file, `directory` is where it is mounted.
    pub fn grow_mounted(self, file: &Path, directory: &File, bytes: u64) -> Result<()> {
        let grown = match self {
            FileSystem::Xfs => ioctls::grow_xfs(directory, bytes),
            FileSystem::Ext4 => ioctls::grow_ext4(directory, bytes, ext4_block_size(file)?),
        };
        match grown {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Error::Precondition(format!(
                "the kernel does not let this process grow a mounted {}; the volume grows when no pod uses it",
                self.name()
            ))),
            grown => grown.during(|| format!("grow the {} file system", self.name())),
        }
    }
}

fn ext4_block_size(file: &Path) -> Result<u64> {
    let action = || format!("read the superblock of {}", file.display());
    let mut logarithm = [0; 4];
    let opened = File::open(file).during(action)?;
    opened.read_exact_at(&mut logarithm, EXT4_SUPERBLOCK + 24).during(action)?;
    Ok(1024 << u32::from_le_bytes(logarithm).min(6))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn file_systems_are_recognized_by_their_superblock() {
        let recognize = |offset: usize, magic: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            let mut bytes = vec![0; 4096];
            bytes[offset..offset + magic.len()].copy_from_slice(magic);
            file.write_all(&bytes).unwrap();
            FileSystem::recognize(&file)
        };
        assert_eq!(recognize(0, b"XFSB"), Some(FileSystem::Xfs));
        assert_eq!(recognize(1080, &[0x53, 0xef]), Some(FileSystem::Ext4));
        assert_eq!(recognize(0, b"data"), None);
        assert_eq!(FileSystem::recognize(&tempfile::tempfile().unwrap()), None);
    }

    #[test]
    fn the_size_is_in_the_superblock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        FileSystem::Ext4.make(file.path()).unwrap();
        assert_eq!(FileSystem::recognize(file.as_file()), Some(FileSystem::Ext4));
        assert_eq!(FileSystem::Ext4.bytes(file.as_file()).unwrap(), 64 << 20);
    }

    #[test]
    fn the_default_is_ext4_and_unknown_names_are_refused() {
        assert_eq!(FileSystem::parse("").unwrap(), FileSystem::Ext4);
        assert_eq!(FileSystem::parse("xfs").unwrap(), FileSystem::Xfs);
        assert!(matches!(FileSystem::parse("ntfs"), Err(Error::Invalid(_))));
    }
}
