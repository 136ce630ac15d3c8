//! Standard streams: a terminal inside of the container, or the pipes that the shim holds.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::mount::{MsFlags, mount};

use super::channel::{Channel, Message};
use super::{Failure, Stdio, Step};

/// Connects the streams, in a session of its own.
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
    let null = |stream: Option<OwnedFd>| match stream {
        Some(stream) => Ok(stream),
        None => OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from).step("open /dev/null"),
    };
    for (number, stream) in [(0, stdio.stdin), (1, stdio.stdout), (2, stdio.stderr)] {
        connect(&null(stream)?, number)?;
        // A program that is not root may still open /dev/stdout again.
        let _ = std::os::unix::fs::fchown(standard(number), Some(owner), None);
    }
    Ok(())
}

/// Opens a terminal of the container's own instance of devpts and sends its near end to the shim.
fn open_terminal(console: bool, owner: u32, channel: &Channel) -> Result<(), Failure> {
    let near = OpenOptions::new().read(true).write(true).open("/dev/ptmx").step("open /dev/ptmx")?;
    rustix::pty::unlockpt(&near).step("unlock the terminal")?;
    let name = rustix::pty::ptsname(&near, Vec::new()).step("name the terminal")?;
    let name = name.to_string_lossy().into_owned();
    let far = OpenOptions::new().read(true).write(true).open(&name).step(format!("open {name}"))?;
    std::os::unix::fs::chown(&name, Some(owner), None).step("own the terminal")?;
    if console && Path::new("/dev").is_dir() {
        std::fs::write("/dev/console", "").step("make /dev/console")?;
        mount(Some(name.as_str()), "/dev/console", None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .step("mount /dev/console")?;
    }
    channel.send(&Message::Terminal, Some(near.as_raw_fd())).step("send the terminal")?;
    let far = OwnedFd::from(far);
    for number in 0..3 {
        connect(&far, number)?;
    }
    rustix::process::ioctl_tiocsctty(far.as_fd()).step("control the terminal")
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
