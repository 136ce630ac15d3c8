//! Loop devices: a file as a block device, by ioctl, with direct I/O.
//!
//! Every device of ours carries a tag in its `lo_file_name`: the pool's id and the key of the record. The tag finds the
//! device of a volume, and the devices that a killed driver left behind, whatever mount namespace they were made in.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use corten_storage_plugin::error::{During, Error, Result};

const CONTROL: &str = "/dev/loop-control";
const MAJOR: u32 = 7;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;
/// The logical block size of every device. Direct I/O to a file that shares blocks wants whole blocks of its file system;
/// a kernel that chooses by itself gives a volume and its clone different sizes.
pub const BLOCK_SIZE: u32 = 4096;
const NAME_LENGTH: usize = 64;
/// An offset that no file reaches.
const BEYOND_FILES: u64 = 1 << 62;
/// The number of attempts to get a free device while other processes take them, too.
const ATTEMPTS: usize = 64;
const PREFIX: &str = "corten";

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_LENGTH],
    crypt_name: [u8; NAME_LENGTH],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    const EMPTY: Info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; NAME_LENGTH],
        crypt_name: [0; NAME_LENGTH],
        encrypt_key: [0; 32],
        init: [0; 2],
    };

    fn tag(&self) -> Option<Tag> {
        let length = self.file_name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LENGTH);
        Tag::parse(std::str::from_utf8(&self.file_name[..length]).ok()?)
    }
}

/// `struct loop_config`.
#[repr(C)]
struct Configuration {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

mod calls {
    use super::{Configuration, Info};

    nix::ioctl_none_bad!(get_free, 0x4C82);
    nix::ioctl_write_ptr_bad!(configure, 0x4C0A, Configuration);
    nix::ioctl_write_ptr_bad!(set_status, 0x4C04, Info);
    nix::ioctl_read_bad!(get_status, 0x4C05, Info);
    nix::ioctl_none_bad!(clear, 0x4C01);
    nix::ioctl_none_bad!(set_capacity, 0x4C07);
}

/// The owner of a loop device: a pool and one of its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub pool: String,
    pub key: String,
}

impl Tag {
    fn parse(name: &str) -> Option<Tag> {
        let mut parts = name.split(':');
        let (prefix, pool, key) = (parts.next()?, parts.next()?, parts.next()?);
        (prefix == PREFIX).then(|| Tag { pool: pool.to_owned(), key: key.to_owned() })
    }

    fn bytes(&self) -> Result<[u8; NAME_LENGTH]> {
        let name = format!("{PREFIX}:{}:{}", self.pool, self.key);
        let mut bytes = [0; NAME_LENGTH];
        // The last byte stays 0: the kernel's name ends with it.
        if name.len() >= NAME_LENGTH {
            return Err(Error::Internal(format!("the tag {name} of a loop device is too long")));
        }
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(bytes)
    }
}

/// The time at which a device lets go of its file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// With its last user: the mount, or the process that holds it open.
    Automatic,
    /// When it is cleared.
    Explicit,
}

/// A loop device that is attached to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    pub number: u32,
    pub tag: Tag,
}

impl LoopDevice {
    pub fn path(&self) -> PathBuf {
        device_path(self.number)
    }

    /// Returns the device's numbers as `/proc/self/mountinfo` shows them.
    pub fn numbers(&self) -> String {
        format!("{MAJOR}:{}", self.number)
    }

    /// Opens the device.
    pub fn open(&self) -> Result<File> {
        open(self.number).during(|| format!("open {}", self.path().display()))
    }

    /// Detaches the file. A device in use is detached with its last user.
    pub fn clear(&self) -> Result<()> {
        let device = self.open()?;
        // SAFETY: the descriptor is open; the call has no argument.
        match unsafe { calls::clear(device.as_raw_fd()) } {
            Ok(_) | Err(nix::errno::Errno::ENXIO) => Ok(()),
            Err(error) => Err(error).during(|| format!("clear {}", self.path().display())),
        }
    }

    /// Ends the I/O of processes that have the device open: it begins beyond the end of its file, so it is empty. Earlier
    /// writes are in the file.
    pub fn cut(&self) -> Result<()> {
        let device = self.open()?;
        let failed = || format!("end the I/O of {}", self.path().display());
        let mut info = status(&device).during(failed)?;
        info.offset = BEYOND_FILES;
        for _ in 0..ATTEMPTS {
            // SAFETY: the structure is valid for the call and has the kernel's layout; the descriptor is open.
            match unsafe { calls::set_status(device.as_raw_fd(), &info) } {
                // Pages were written meanwhile.
                Err(nix::errno::Errno::EAGAIN) => {}
                done => return done.map(drop).during(failed),
            }
        }
        Err(Error::Aborted(format!("{} is written to without a pause", self.path().display())))
    }

    /// Takes over the size of the file, after it has grown.
    pub fn refresh_size(&self) -> Result<()> {
        let device = self.open()?;
        // SAFETY: the descriptor is open; the call has no argument.
        let done = unsafe { calls::set_capacity(device.as_raw_fd()) };
        done.map(drop).during(|| format!("resize {}", self.path().display()))
    }
}

/// An attached device, kept open: with [`Release::Automatic`] it is attached until this and all mounts are gone.
pub struct Attached {
    pub device: LoopDevice,
    _open: File,
}

/// Reports why this node has no loop devices, if it has none.
pub fn unavailable() -> Option<String> {
    let free = open_control().and_then(|control| free_number(&control));
    free.err().map(|error| format!("this node has no loop devices: {error}"))
}

fn open_control() -> Result<File> {
    OpenOptions::new().read(true).write(true).open(CONTROL).during(|| format!("open {CONTROL}"))
}

/// Returns the number of a device that was free a moment ago.
fn free_number(control: &File) -> Result<u32> {
    // SAFETY: the descriptor is open; the call has no argument.
    let number = unsafe { calls::get_free(control.as_raw_fd()) }.during(|| "find a free loop device".to_owned())?;
    u32::try_from(number).map_err(|_| Error::Internal("a loop device has a negative number".into()))
}

/// Attaches a file to a free device, with direct I/O where the file allows it.
pub fn attach(path: &Path, tag: &Tag, release: Release) -> Result<Attached> {
    let file = OpenOptions::new().read(true).write(true).open(path).during(|| format!("open {}", path.display()))?;
    let control = open_control()?;
    let automatic = if release == Release::Automatic { AUTOCLEAR } else { 0 };
    let mut flags = automatic | DIRECT_IO;
    let name = tag.bytes()?;
    for _ in 0..ATTEMPTS {
        let number = free_number(&control)?;
        let device = open(number).during(|| format!("open {}", device_path(number).display()))?;
        let configuration = Configuration {
            file: u32::try_from(file.as_raw_fd()).unwrap_or_default(),
            block_size: BLOCK_SIZE,
            info: Info { flags, file_name: name, ..Info::EMPTY },
            reserved: [0; 8],
        };
        // SAFETY: the structure is valid for the call and has the kernel's layout; both descriptors are open.
        match unsafe { calls::configure(device.as_raw_fd(), &configuration) } {
            Ok(_) => {
                let attached = LoopDevice { number, tag: tag.clone() };
                return Ok(Attached { device: attached, _open: device });
            }
            // Another process was faster.
            Err(nix::errno::Errno::EBUSY) => {}
            Err(nix::errno::Errno::EINVAL) if flags & DIRECT_IO != 0 => flags = automatic,
            Err(error) => return Err(error).during(|| format!("attach {}", path.display())),
        }
    }
    Err(Error::Aborted("no loop device stayed free long enough".to_owned()))
}

/// Keeps a device open that is attached already.
pub fn keep(device: &LoopDevice) -> Result<Attached> {
    Ok(Attached { device: device.clone(), _open: device.open()? })
}

/// Returns the attached devices of a pool.
pub fn of_pool(pool: &str) -> Result<Vec<LoopDevice>> {
    let entries = std::fs::read_dir("/sys/block").during(|| "list block devices".to_owned())?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.strip_prefix("loop")?.parse().ok());
    let attached = numbers.filter(|number| Path::new(&format!("/sys/block/loop{number}/loop/backing_file")).exists());
    let tagged = attached.filter_map(|number| Some(LoopDevice { number, tag: tag_of(number)? }));
    let mut devices: Vec<LoopDevice> = tagged.filter(|device| device.tag.pool == pool).collect();
    devices.sort_by_key(|device| device.number);
    Ok(devices)
}

/// Returns the device of a record, if it is attached.
pub fn find(tag: &Tag) -> Result<Option<LoopDevice>> {
    Ok(of_pool(&tag.pool)?.into_iter().find(|device| device.tag == *tag))
}

fn tag_of(number: u32) -> Option<Tag> {
    status(&File::open(device_path(number)).ok()?).ok()?.tag()
}

fn status(device: &File) -> nix::Result<Info> {
    let mut info = Info::EMPTY;
    // SAFETY: the structure is valid for the call and has the kernel's layout.
    unsafe { calls::get_status(device.as_raw_fd(), &mut info) }?;
    Ok(info)
}

fn device_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Opens a device, and creates its node where no devtmpfs does.
fn open(number: u32) -> io::Result<File> {
    let path = device_path(number);
    let attempt = || OpenOptions::new().read(true).write(true).open(&path);
    match attempt() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let numbers = rustix::fs::makedev(MAJOR, number);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::BlockDevice, mode, numbers)?;
            attempt()
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Configuration>(), 304);
    }

    #[test]
    fn a_device_that_is_cut_takes_no_writes_of_processes_that_have_it_open() {
        if let Some(reason) = unavailable() {
            eprintln!("skipped: {reason}");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let tag = Tag { pool: "cut".into(), key: std::process::id().to_string() };
        let attached = attach(file.path(), &tag, Release::Automatic).unwrap();
        let opened = attached.device.open().unwrap();
        opened.write_all_at(&[b'a'; 4096], 0).unwrap();
        attached.device.cut().unwrap();
        attached.device.cut().unwrap();
        assert!(opened.write_all_at(&[b'b'; 4096], 0).and_then(|()| opened.sync_all()).is_err());
        assert_eq!(opened.read_at(&mut [0; 1], 0).unwrap(), 0);
        assert!(std::fs::read(file.path()).unwrap().starts_with(&[b'a'; 4096]));
        // Detached and attached again, the whole file is there.
        drop((opened, attached));
        let attached = attach(file.path(), &tag, Release::Automatic).unwrap();
        let mut first = [0; 1];
        attached.device.open().unwrap().read_exact_at(&mut first, 0).unwrap();
        assert_eq!(&first, b"a");
    }

    #[test]
    fn tags_of_other_owners_are_none() {
        let tag = Tag { pool: "0a1b2c3d".into(), key: "k".repeat(32) };
        let info = Info { file_name: tag.bytes().unwrap(), ..Info::EMPTY };
        assert_eq!(info.tag(), Some(tag));
        for name in ["", "/var/lib/disk.img", "corten:", "other:a:b"] {
            assert_eq!(Tag::parse(name), None, "{name}");
        }
        assert!(Tag { pool: "p".repeat(40), key: "k".repeat(32) }.bytes().is_err());
    }
}
