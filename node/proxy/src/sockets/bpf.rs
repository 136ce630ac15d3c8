//! bpf(2): maps, programs and their attachment to a control group, each a descriptor that ends with its owner.
//!
//! Nothing here is pinned or outlives the process: when it ends, the kernel is as before.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const PROGRAM_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
/// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`
const SOCKET_ADDRESS: u32 = 18;
/// The flag that allocates memory as elements are added.
const NO_PREALLOCATION: u32 = 1;
/// The most bytes of the verifier's log of a refused program.
const VERDICT: usize = 64 * 1024;

/// The kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hash,
    /// Evicts the least recently used element.
    Recent,
}

/// The widest `bpf_attr` that we fill.
#[repr(C, align(8))]
#[derive(Default)]
struct Attributes([u32; 24]);

impl Attributes {
    fn word(mut self, at: usize, value: u32) -> Attributes {
        self.0[at] = value;
        self
    }

    fn address<T: ?Sized>(mut self, at: usize, of: &T) -> Attributes {
        let bytes = (std::ptr::from_ref(of).cast::<u8>() as u64).to_ne_bytes();
        let half = |range: std::ops::Range<usize>| bytes[range].try_into().map_or(0, u32::from_ne_bytes);
        (self.0[at], self.0[at + 1]) = (half(0..4), half(4..8));
        self
    }

    fn call(self, command: i32) -> io::Result<i32> {
        // SAFETY: the attributes are as long as given, and the caller that filled in an address keeps its target until
        // this returns.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(&self), std::mem::size_of_val(&self)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
    }

    fn open(self, command: i32) -> io::Result<OwnedFd> {
        let descriptor = self.call(command)?;
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd() as u32
}

/// A map from keys to values of fixed sizes.
pub(super) struct Map<const KEY: usize, const VALUE: usize>(OwnedFd);

impl<const KEY: usize, const VALUE: usize> Map<KEY, VALUE> {
    pub fn create(kind: Kind, entries: u32) -> io::Result<Map<KEY, VALUE>> {
        let (kind, flags) = match kind {
            Kind::Hash => (1, NO_PREALLOCATION),
            Kind::Recent => (9, 0),
        };
        let sizes = Attributes::default().word(0, kind).word(1, KEY as u32).word(2, VALUE as u32);
        sizes.word(3, entries).word(4, flags).open(MAP_CREATE).map(Map)
    }

    pub fn set(&self, key: &[u8; KEY], value: &[u8; VALUE]) -> io::Result<()> {
        let element = Attributes::default().word(0, number(self.0.as_fd())).address(2, key).address(4, value);
        element.call(MAP_UPDATE).map(drop)
    }

    /// Deletes an element; a missing one is no error.
    pub fn delete(&self, key: &[u8; KEY]) -> io::Result<()> {
        match Attributes::default().word(0, number(self.0.as_fd())).address(2, key).call(MAP_DELETE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl<const KEY: usize, const VALUE: usize> AsFd for Map<KEY, VALUE> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Loads a program for one hook into the kernel. The verifier's log of a refused one is part of the error.
pub(super) fn load(code: &[[u8; 8]], hook: u32) -> io::Result<OwnedFd> {
    let licence = c"Apache-2.0";
    let program = || {
        let attributes = Attributes::default().word(0, SOCKET_ADDRESS).word(1, code.len() as u32).address(2, code);
        attributes.address(4, licence).word(17, hook)
    };
    program().open(PROGRAM_LOAD).map_err(|refused| {
        let verdict = vec![0u8; VERDICT];
        let logged = program().word(6, 1).word(7, VERDICT as u32).address(8, verdict.as_slice());
        let _ = logged.open(PROGRAM_LOAD);
        let log = String::from_utf8_lossy(&verdict);
        let lines: Vec<&str> = log.trim_end_matches('\0').lines().rev().take(2).collect();
        if lines.is_empty() {
            refused
        } else {
            io::Error::new(refused.kind(), format!("{refused}: {}", lines.join("; ")))
        }
    })
}

/// Runs a program for the sockets of a control group and of those below it, until the descriptor is closed.
pub(super) fn attach(program: BorrowedFd<'_>, cgroup: &Path, hook: u32) -> io::Result<OwnedFd> {
    let cgroup = File::open(cgroup)?;
    Attributes::default().word(0, number(program)).word(1, number(cgroup.as_fd())).word(2, hook).open(LINK_CREATE)
}
