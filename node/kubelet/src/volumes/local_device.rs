//! A `local` volume on a block device with `volumeMode: Filesystem`: a blank device is formatted, and the device is
//! mounted in the pod's directory. Several pods may mount one device; the kernel shares the file system among them.
//!
//! Invariant: only a device on which `blkid` finds nothing at all is ever formatted.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

const DEFAULT_FS_TYPE: &str = "ext4";
/// The exit code of `blkid` if it found nothing.
const NOTHING_FOUND: i32 = 2;

/// Two pods that start at the same time must not both find a device blank.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Mounts the device, and formats it first if it is blank.
pub fn mount(device: &Path, target: &Path, fs_type: Option<&str>, options: &[String]) -> Result<()> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let fs_type = fs_type.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_FS_TYPE);
    check_name(fs_type)?;
    let present = format(device, fs_type)?;
    let options = if options.is_empty() { "defaults".to_owned() } else { options.join(",") };
    let mut command = Command::new("mount");
    command.args(["-t", fs_type, "-o", &options]).arg(device).arg(target);
    run(&mut command).map(drop).map_err(|error| match present {
        Some(present) if present != fs_type => Error::pod(format!(
            "failed to mount the volume as {fs_type:?}, it already contains {present}. Mount error: {error}"
        )),
        _ => error,
    })
}

/// Checks the type: it becomes part of a program's name, so it must be a plain word.
fn check_name(fs_type: &str) -> Result<()> {
    if fs_type.chars().all(|character| character.is_ascii_alphanumeric() || character == '_') {
        return Ok(());
    }
    Err(Error::pod(format!("fsType {fs_type:?} is not the name of a file system")))
}

/// Grows the file system of a device to the device's size. A directory has no size of its own.
pub fn grow(path: &Path, mounted_at: &Path) -> Result<()> {
    let found = std::fs::metadata(path).map_err(Error::file("look at", path))?;
    if !found.file_type().is_block_device() {
        return Ok(());
    }
    match content(path)?.as_deref() {
        Some("ext3" | "ext4") => run(Command::new("resize2fs").arg(path)).map(drop),
        Some("xfs") => run(Command::new("xfs_growfs").args(["-d".as_ref(), mounted_at])).map(drop),
        Some("btrfs") => {
            let arguments = ["filesystem".as_ref(), "resize".as_ref(), "max".as_ref(), mounted_at];
            run(Command::new("btrfs").args(arguments)).map(drop)
        }
        other => Err(Error::pod(format!(
            "ResizeFS.Resize - resize of format {} is not supported for device {} mounted at {}",
            other.unwrap_or_default(),
            path.display(),
            mounted_at.display()
        ))),
    }
}

/// Makes a file system on a blank device; returns the content of one that is not blank.
fn format(device: &Path, fs_type: &str) -> Result<Option<String>> {
    if let Some(present) = content(device)? {
        return Ok(Some(present));
    }
    tracing::info!(device = %device.display(), fs_type, "formatting a blank local volume");
    let flags: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    run(Command::new(format!("mkfs.{fs_type}")).args(flags).arg(device))?;
    Ok(None)
}

/// Returns the content of the device: the name of its file system, or a description.
fn content(device: &Path) -> Result<Option<String>> {
    // `blkid` finds nothing on a device that it cannot read, too.
    read_ends(device).map_err(Error::file("read", device))?;
    let mut command = Command::new("blkid");
    command.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device);
    let output = start(&mut command)?;
    match output.status.code() {
        Some(0) => Ok(Some(found(&String::from_utf8_lossy(&output.stdout)))),
        Some(NOTHING_FOUND) => Ok(None),
        _ => Err(failed(&command, &output)),
    }
}

/// Reads the first and the last sector, which hold labels.
fn read_ends(device: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::open(device)?;
    let mut sector = [0; 512];
    file.read_exact(&mut sector)?;
    file.seek(SeekFrom::End(-512))?;
    file.read_exact(&mut sector)
}

/// Parses the answer of `blkid`: a partition table cannot be mounted.
fn found(answer: &str) -> String {
    let value = |key: &str| answer.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match (value("PTTYPE"), value("TYPE")) {
        (None, Some(fs_type)) => fs_type.to_owned(),
        _ => "unknown data, probably partitions".to_owned(),
    }
}

fn run(command: &mut Command) -> Result<Output> {
    let output = start(command)?;
    if output.status.success() { Ok(output) } else { Err(failed(command, &output)) }
}

fn start(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_owned();
    command.output().map_err(Error::file("run", Path::new(&program)))
}

fn failed(command: &Command, output: &Output) -> Error {
    let program = command.get_program().to_string_lossy();
    let errors = String::from_utf8_lossy(&output.stderr);
    Error::pod(format!("{program} failed: {}: {}", output.status, errors.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_device_is_read() {
        assert_eq!(found("DEVNAME=/dev/sdb\nTYPE=xfs\n"), "xfs");
        for partitioned in ["DEVNAME=/dev/sdb\nPTTYPE=gpt\n", "PTTYPE=dos\nTYPE=ext4\n", ""] {
            assert_eq!(found(partitioned), "unknown data, probably partitions", "{partitioned:?}");
        }
    }

    #[test]
    fn only_a_blank_device_is_formatted() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("device");
        std::fs::File::create(&device).unwrap().set_len(4 << 20).unwrap();
        match format(&device, "ext4") {
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return eprintln!("skipped: blkid or mkfs.ext4 is not installed");
            }
            made => assert_eq!(made.unwrap(), None),
        }
        let made = std::fs::read(&device).unwrap();
        for fs_type in ["ext4", "xfs"] {
            assert_eq!(format(&device, fs_type).unwrap().as_deref(), Some("ext4"), "what is there is told");
        }
        assert!(std::fs::read(&device).unwrap() == made, "what is there is kept");
    }

    #[test]
    fn a_file_system_has_a_plain_name() {
        check_name("ext4").unwrap();
        for name in ["x/../../bin/sh", "-a", "ext4 -F"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_directory_needs_no_expansion() {
        let root = tempfile::tempdir().unwrap();
        grow(root.path(), root.path()).unwrap();
        assert!(grow(&root.path().join("none"), root.path()).is_err());
    }

    #[test]
    fn a_device_that_cannot_be_read_is_not_formatted() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("device");
        assert!(format(&device, "ext4").is_err(), "it is not there");
        std::fs::write(&device, "short").unwrap();
        assert!(format(&device, "ext4").is_err(), "it cannot be read");
        assert_eq!(std::fs::read(&device).unwrap(), b"short");
    }
}
