//! Finds the block device of an attached volume.
//!
//! On Nitro a volume is an NVMe device whose serial number is the volume's ID; elsewhere it has the name that the
//! attachment gave it. A name is never believed against a serial number.

use std::fs::{File, Metadata};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::mounts::Mount;

/// The directories of the kernel's devices.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// The block device of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub path: PathBuf,
    /// The numbers, as a table of mounts shows them: `259:1`.
    numbers: String,
}

/// The place at which a volume is looked for.
pub struct Place<'a> {
    pub volume: &'a str,
    /// The device name of the attachment, such as `/dev/xvdba`; empty if it is not known.
    pub device_path: &'a str,
    /// The number of the partition; empty for the whole device.
    pub partition: &'a str,
}

impl Roots {
    /// Returns the device of a volume; none if it is not there yet.
    pub fn find(&self, place: &Place<'_>) -> Result<Option<Device>> {
        let serial = place.volume.replace('-', "");
        let by_serial = self.nvme()?.into_iter().find(|one| one.serial == serial).map(|one| self.dev.join(one.name));
        let path = match by_serial {
            Some(path) => Some(path),
            None => self.by_name(place.device_path)?,
        };
        match path {
            Some(path) => Device::open(&with_partition(&path, place.partition)?),
            None => Ok(None),
        }
    }

    /// Returns the device whose file system, or whose node, a mount shows.
    pub fn shown_at(&self, mount: &Mount) -> Result<Option<Device>> {
        let numbers = match block_numbers(&mount.target) {
            Some(numbers) => numbers,
            None => mount.device.clone(),
        };
        let entries = std::fs::read_dir(&self.dev).during(|| format!("list {}", self.dev.display()))?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        match paths.find(|path| block_numbers(path).is_some_and(|one| one == numbers)) {
            Some(path) => Device::open(&path),
            None => Ok(None),
        }
    }

    /// Returns the NVMe device with the serial number of a volume.
    pub fn by_serial(&self, volume: &str) -> Result<Option<Device>> {
        self.find(&Place { volume, device_path: "", partition: "" })
    }

    /// Returns the device of an attachment's name, if that is no NVMe device.
    fn by_name(&self, device_path: &str) -> Result<Option<PathBuf>> {
        let Some(name) = device_path.strip_prefix("/dev/") else { return Ok(None) };
        if name.is_empty() || !name.bytes().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit()) {
            return Err(Error::Invalid(format!("{device_path:?} is no name of a device")));
        }
        let path = self.dev.join(name);
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let is_nvme = real.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvme"));
        Ok(Some(path).filter(|path| path.exists() && !is_nvme))
    }

    fn nvme(&self) -> Result<Vec<Nvme>> {
        let directory = self.sys.join("block");
        let entries = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.during(|| format!("list {}", directory.display()))?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let named = |name: String| {
            let serial = std::fs::read_to_string(directory.join(&name).join("device/serial")).ok()?;
            Some(Nvme { serial: serial.trim().to_owned(), name })
        };
        Ok(names.filter(|name| name.starts_with("nvme")).filter_map(named).collect())
    }
}

struct Nvme {
    name: String,
    serial: String,
}

/// Returns the numbers of the block device at a path, as a table of mounts shows them; none if it is something else.
fn block_numbers(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| numbers(&metadata))
}

fn numbers(metadata: &Metadata) -> String {
    let number = metadata.rdev();
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// Returns the path of a partition of a device.
fn with_partition(device: &Path, partition: &str) -> Result<PathBuf> {
    if partition.is_empty() || partition == "0" {
        return Ok(device.to_owned());
    }
    if partition.len() > 3 || !partition.bytes().all(|one| one.is_ascii_digit()) {
        return Err(Error::Invalid(format!("{partition:?} is no number of a partition")));
    }
    let device = device.display().to_string();
    let separator = if device.ends_with(|last: char| last.is_ascii_digit()) { "p" } else { "" };
    Ok(PathBuf::from(format!("{device}{separator}{partition}")))
}

impl Device {
    /// Returns the device of a path; none if there is nothing.
    fn open(path: &Path) -> Result<Option<Device>> {
        let Ok(path) = path.canonicalize() else { return Ok(None) };
        let metadata = std::fs::metadata(&path).during(|| format!("look at {}", path.display()))?;
        if !metadata.file_type().is_block_device() {
            return Err(Error::Internal(format!("{} is no block device", path.display())));
        }
        Ok(Some(Device { numbers: numbers(&metadata), path }))
    }

    /// Returns the size of the device.
    pub fn bytes(&self) -> Result<u64> {
        let action = || format!("read the size of {}", self.path.display());
        let mut file = File::open(&self.path).during(action)?;
        file.seek(SeekFrom::End(0)).during(action)
    }

    /// Reports whether this is a device, or one of its partitions.
    pub fn is_part_of(&self, whole: &Device) -> bool {
        let path = self.path.to_string_lossy();
        let Some(rest) = path.strip_prefix(&*whole.path.to_string_lossy()) else { return false };
        let number = rest.strip_prefix('p').unwrap_or(rest);
        rest.is_empty() || (!number.is_empty() && number.bytes().all(|one| one.is_ascii_digit()))
    }

    /// Reports whether a mount shows the device's file system, or its node.
    pub fn is_at(&self, mount: &Mount) -> bool {
        mount.device == self.numbers || mount.root.file_name() == self.path.file_name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_their_names() {
        let named = |device: &str, partition: &str| with_partition(Path::new(device), partition).unwrap();
        assert_eq!(named("/dev/nvme1n1", "2"), Path::new("/dev/nvme1n1p2"));
        assert_eq!(named("/dev/xvdba", "1"), Path::new("/dev/xvdba1"));
        assert_eq!(named("/dev/xvdba", ""), Path::new("/dev/xvdba"));
        assert!(with_partition(Path::new("/dev/xvdba"), "../1").is_err());
    }

    #[test]
    fn partitions_are_parts_of_their_device() {
        let device = |path: &str| Device { path: path.into(), numbers: String::new() };
        let is_part = |part: &str, whole: &str| device(part).is_part_of(&device(whole));
        assert!(is_part("/dev/nvme1n1", "/dev/nvme1n1") && is_part("/dev/nvme1n1p2", "/dev/nvme1n1"));
        assert!(is_part("/dev/xvdba1", "/dev/xvdba"));
        for other in ["/dev/nvme11n1", "/dev/nvme1n1px", "/dev/nvme1", "/dev/nvme1n1p"] {
            assert!(!is_part(other, "/dev/nvme1n1"), "{other}");
        }
    }

    #[test]
    fn a_serial_number_wins_over_a_name() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { sys: root.path().join("sys"), dev: root.path().join("dev") };
        let place = |volume: &'static str, device_path| Place { volume, device_path, partition: "" };
        assert_eq!(roots.find(&place("vol-1", "/dev/xvdba")).unwrap(), None);
        for (name, serial) in [("nvme0n1", "vol0"), ("nvme1n1", "vol1 ")] {
            let device = roots.sys.join("block").join(name).join("device");
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("serial"), serial).unwrap();
        }
        std::fs::create_dir_all(&roots.dev).unwrap();
        assert_eq!(roots.nvme().unwrap().len(), 2);
        // The devices are no block devices here, which is an error: both were found.
        std::fs::write(roots.dev.join("nvme1n1"), "").unwrap();
        std::fs::write(roots.dev.join("xvdbb"), "").unwrap();
        std::os::unix::fs::symlink(roots.dev.join("nvme1n1"), roots.dev.join("xvdba")).unwrap();
        let error = roots.find(&place("vol-1", "")).unwrap_err();
        assert!(error.to_string().ends_with("nvme1n1 is no block device"), "{error}");
        let error = roots.find(&place("vol-2", "/dev/xvdbb")).unwrap_err();
        assert!(error.to_string().ends_with("xvdbb is no block device"), "{error}");
        assert_eq!(roots.find(&place("vol-2", "/dev/xvdba")).unwrap(), None, "the name of another volume's device");
        assert!(roots.find(&place("vol-2", "/dev/../etc/passwd")).is_err());
    }
}
