//! Standard streams: a terminal inside of the container, or the pipes that the shim holds.
//!
//! A volume may be mounted on `/dev`, so a container may have written any file there: every file is opened without
//! following links or blocking, and checked to be the expected device. The node's own devices never reach a container.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;

use super::channel::{Channel, Message};
use super::mount::{attach, copy};
use super::{Failure, Stdio, Step};

const DEVPTS_MAGIC: i64 = 0x1cd1;
const NULL: Character = Character { major: 1, minor: 3 };
const MULTIPLEXER: Character = Character { major: 5, minor: 2 };

/// The number of a character device.
struct Character {
    major: u32,
    minor: u32,
}

/// Connects the streams, in a new session.
pub(super) fn set_up(
    terminal: bool,
    console: bool,
    stdio: Stdio,
    owner: u32,
    channel: &Channel,
) -> Result<(), Failure> {
    nix::unistd::setsid().step("start a session")?;
    if terminal {
        return open_terminal(console, owner, channel);
    }
    for (number, stream) in [(0, stdio.stdin), (1, stdio.stdout), (2, stdio.stderr)] {
        match stream {
            Some(stream) => {
                connect(&stream, number)?;
                // A program that is not root may still open /dev/stdout again.
                let _ = std::os::unix::fs::fchown(standard(number), Some(owner), None);
            }
            None => connect(&open_device("/dev/null", &NULL)?, number)?,
        }
    }
    Ok(())
}

/// Opens a character device of the container and checks its number.
fn open_device(path: &str, wanted: &Character) -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let device = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve).step(format!("open {path}"))?;
    if !is_device(&device, wanted)? {
        return Err(format!("{path} is not the device {}:{}", wanted.major, wanted.minor));
    }
    rustix::fs::fcntl_setfl(&device, OFlags::RDWR).step(format!("prepare {path}"))?;
    Ok(device)
}

/// Reports whether a descriptor is the null device.
pub(super) fn is_null(fd: &OwnedFd) -> Result<bool, Failure> {
    is_device(fd, &NULL)
}

fn is_device(fd: &OwnedFd, wanted: &Character) -> Result<bool, Failure> {
    let found = rustix::fs::fstat(fd).step("look at a device")?;
    let is_character = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    Ok(is_character && found.st_rdev == rustix::fs::makedev(wanted.major, wanted.minor))
}

/// Opens a terminal of the container's own instance of devpts and sends its near end to the shim.
fn open_terminal(console: bool, owner: u32, channel: &Channel) -> Result<(), Failure> {
    let near = open_device("/dev/pts/ptmx", &MULTIPLEXER)?;
    let instance = rustix::fs::fstatfs(&near).step("look at /dev/pts")?;
    if instance.f_type != DEVPTS_MAGIC {
        return Err("/dev/pts is not a devpts".into());
    }
    rustix::pty::unlockpt(&near).step("unlock the terminal")?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let far = rustix::pty::ioctl_tiocgptpeer(&near, flags).step("open the terminal")?;
    std::os::unix::fs::fchown(&far, Some(owner), None).step("own the terminal")?;
    if console {
        mount_console(&far)?;
    }
    channel.send(&Message::Terminal, Some(near.as_raw_fd())).step("send the terminal")?;
    for number in 0..3 {
        connect(&far, number)?;
    }
    rustix::process::ioctl_tiocsctty(far.as_fd()).step("control the terminal")
}

/// Mounts the terminal as `/dev/console`. A root without `/dev` has none.
fn mount_console(terminal: &OwnedFd) -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(devices) = rustix::fs::open("/dev", flags | OFlags::DIRECTORY, Mode::empty()) else { return Ok(()) };
    match rustix::fs::mknodat(&devices, "console", FileType::RegularFile, Mode::from_raw_mode(0o600), 0) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(format!("make /dev/console: {errno}")),
    }
    let place = rustix::fs::openat(&devices, "console", flags, Mode::empty()).step("open /dev/console")?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&place).step("look at /dev/console")?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::CharacterDevice) {
        return Err("/dev/console is neither a file nor a device".into());
    }
    attach(&copy(terminal)?, &place).step("mount /dev/console")
}

fn standard(number: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the three standard descriptors were just connected and stay open for the process' life.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }
}

fn connect(stream: &OwnedFd, number: i32) -> Result<(), Failure> {
    if stream.as_raw_fd() == number {
        // dup2 onto itself would leave it marked to be closed by exec.
        // SAFETY: changes one flag of a descriptor that this process owns.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
        return Ok(());
    }
    // SAFETY: both numbers are descriptors of this process, which has one thread.
    if unsafe { libc::dup2(stream.as_raw_fd(), number) } < 0 {
        return Err(format!("connect stream {number}: {}", std::io::Error::last_os_error()));
    }
    Ok(())
}
