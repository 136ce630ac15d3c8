//! The ioctls of file systems: freeze, thaw, trim, grow and shut down.
//!
//! They spare the programs `fsfreeze`, `fstrim` and `xfs_growfs`, which a node need not have.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The part of a file system that FITRIM trims.
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    least_length: u64,
}

/// The first version of `struct xfs_fsop_geom`, which every kernel knows.
#[repr(C)]
#[derive(Default)]
struct XfsGeometry {
    block_size: u32,
    realtime_extent_size: u32,
    group_blocks: u32,
    groups: u32,
    log_blocks: u32,
    sector_size: u32,
    inode_size: u32,
    most_inode_percent: u32,
    data_blocks: u64,
    realtime_blocks: u64,
    realtime_extents: u64,
    log_start: u64,
    uuid: [u8; 16],
    stripe_unit: u32,
    stripe_width: u32,
    version: i32,
    flags: u32,
    log_sector_size: u32,
    realtime_sector_size: u32,
    directory_block_size: u32,
}

/// `struct xfs_growfs_data`.
#[repr(C)]
struct XfsGrowth {
    blocks: u64,
    most_inode_percent: u32,
}

mod calls {
    use super::{TrimRange, XfsGeometry, XfsGrowth};

    nix::ioctl_readwrite!(freeze, b'X', 119, i32);
    nix::ioctl_readwrite!(thaw, b'X', 120, i32);
    nix::ioctl_readwrite!(trim, b'X', 121, TrimRange);
    nix::ioctl_read!(shutdown, b'X', 125, u32);
    nix::ioctl_read!(xfs_geometry, b'X', 100, XfsGeometry);
    nix::ioctl_write_ptr!(xfs_grow, b'X', 110, XfsGrowth);
    nix::ioctl_write_ptr!(ext4_resize, b'f', 16, u64);
}

/// Freezes the file system of an open directory: its content on the device is consistent until it is thawed.
pub fn freeze(directory: &File) -> io::Result<()> {
    let mut ignored = 0;
    // SAFETY: the kernel ignores the argument; the descriptor is open.
    unsafe { calls::freeze(directory.as_raw_fd(), &mut ignored) }.map(drop).map_err(io::Error::from)
}

/// Thaws the file system of an open directory; reports whether it was frozen.
pub fn thaw(directory: &File) -> io::Result<bool> {
    let mut ignored = 0;
    // SAFETY: the kernel ignores the argument; the descriptor is open.
    match unsafe { calls::thaw(directory.as_raw_fd(), &mut ignored) } {
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EINVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Stops all I/O of the file system of an open directory for good: writes fail until it is unmounted. What its journal has
/// is written first.
pub fn shut_down(directory: &File) -> io::Result<()> {
    const FLUSH_LOG: u32 = 1;
    let mut flags = FLUSH_LOG;
    // SAFETY: the kernel reads the flags, which are valid for the call; the descriptor is open.
    unsafe { calls::shutdown(directory.as_raw_fd(), &mut flags) }.map(drop).map_err(io::Error::from)
}

/// Gives the free blocks of the file system back to its device; returns the number of bytes.
pub fn trim(directory: &File) -> io::Result<u64> {
    let mut range = TrimRange { start: 0, length: u64::MAX, least_length: 0 };
    // SAFETY: the range is valid for the call, and has the kernel's layout.
    unsafe { calls::trim(directory.as_raw_fd(), &mut range) }?;
    Ok(range.length)
}

/// Grows a mounted xfs to `bytes`, the size of its device.
pub fn grow_xfs(directory: &File, bytes: u64) -> io::Result<()> {
    let mut geometry = XfsGeometry::default();
    // SAFETY: the structure is valid for the call, and has the kernel's layout.
    unsafe { calls::xfs_geometry(directory.as_raw_fd(), &mut geometry) }?;
    let blocks = bytes / u64::from(geometry.block_size.max(1));
    if blocks <= geometry.data_blocks {
        return Ok(());
    }
    let growth = XfsGrowth { blocks, most_inode_percent: geometry.most_inode_percent };
    // SAFETY: the structure is valid for the call, and has the kernel's layout.
    unsafe { calls::xfs_grow(directory.as_raw_fd(), &growth) }.map(drop).map_err(io::Error::from)
}

/// Grows a mounted ext4 to `bytes`; the kernel wants CAP_SYS_RESOURCE for it.
pub fn grow_ext4(directory: &File, bytes: u64, block_size: u64) -> io::Result<()> {
    let blocks = bytes / block_size.max(1);
    // SAFETY: the number is valid for the call.
    unsafe { calls::ext4_resize(directory.as_raw_fd(), &blocks) }.map(drop).map_err(io::Error::from)
}
