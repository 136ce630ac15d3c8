//! The parts in which two files that were cloned from each other differ, by the blocks that they have (FIEMAP): a block
//! that both have at the same place has one content, because a write to either gives it a block of its own.
//!
//! *Invariant: a part that differs is never left out. Extents whose blocks are not known for certain count as different.*

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::iter::Peekable;
use std::os::fd::AsRawFd;
use std::slice::Iter;

use corten_storage_plugin::error::{During, Result};

/// The bytes of a chunk.
const CHUNK: u64 = 1 << 20;
/// The bytes of a file that are looked at together.
pub const WINDOW: u64 = 64 << 20;
/// The extents that one call returns.
const AT_ONCE: usize = 256;
const SYNC: u32 = 1;
const LAST: u32 = 1;
/// The flags of extents whose blocks say nothing: unknown, not allocated yet, encoded or inline.
const UNCERTAIN: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
/// The flag of extents that were never written: they are zeros as holes are, and no clone has them.
const UNWRITTEN: u32 = 0x800;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_flags: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct KernelMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [KernelExtent; AT_ONCE],
}

/// `struct fiemap` as the number of the call counts it.
#[repr(C)]
struct KernelHead {
    start: u64,
    length: u64,
    numbers: [u32; 4],
}

/// A part of a file with contiguous blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    certain: bool,
}

impl Extent {
    fn end(self) -> u64 {
        self.logical.saturating_add(self.length)
    }

    /// Returns the part within a range; none if it has none.
    fn within(self, start: u64, end: u64) -> Option<Extent> {
        let logical = self.logical.max(start);
        let length = self.end().min(end).checked_sub(logical).filter(|length| *length > 0)?;
        Some(Extent { logical, physical: self.physical.wrapping_add(logical - self.logical), length, ..self })
    }
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub start: u64,
    pub end: u64,
}

/// Returns the indexes of all chunks of 1 MiB in which two clones may differ; none if the file system has no maps.
pub fn changed_chunks(base: &File, current: &File, bytes: u64) -> Result<Option<BTreeSet<u64>>> {
    let mut changed = BTreeSet::new();
    let mut start = 0;
    while start < bytes {
        let end = bytes.min(start + WINDOW);
        let Some(parts) = changed_parts(base, current, start, end)? else { return Ok(None) };
        for part in parts {
            changed.extend(part.start / CHUNK..part.end.div_ceil(CHUNK));
        }
        start = end;
    }
    Ok(Some(changed))
}

/// Returns the parts of a range in which two clones may differ; none if the file system has no maps.
pub fn changed_parts(base: &File, current: &File, start: u64, end: u64) -> Result<Option<Vec<Part>>> {
    let old = map(base, start, end).during(reading)?;
    let new = map(current, start, end).during(reading)?;
    Ok(old.zip(new).map(|(old, new)| differences(&old, &new, start, end)))
}

/// Returns the parts of a range that have blocks; none if the file system has no maps.
pub fn allocated_parts(file: &File, start: u64, end: u64) -> Result<Option<Vec<Part>>> {
    let found = map(file, start, end).during(reading)?;
    Ok(found.map(|found| differences(&[], &found, start, end)))
}

fn reading() -> String {
    "read the map of a volume's blocks".to_owned()
}

/// Returns the parts of a range whose blocks differ, in order. Extents are in order too.
fn differences(old: &[Extent], new: &[Extent], start: u64, end: u64) -> Vec<Part> {
    let extents = || old.iter().chain(new).filter_map(|extent| extent.within(start, end));
    let mut bounds: Vec<u64> = extents().flat_map(|extent| [extent.logical, extent.end()]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut olds = old.iter().peekable();
    let mut news = new.iter().peekable();
    let mut parts: Vec<Part> = Vec::new();
    for bounds in bounds.windows(2) {
        let part = Part { start: bounds[0], end: bounds[1] };
        let before = block_at(&mut olds, part.start);
        let after = block_at(&mut news, part.start);
        let is_certain = [before, after].into_iter().flatten().all(|block| block.certain);
        if before == after && is_certain {
            continue;
        }
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}

/// The block that a position of a file has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Block {
    physical: u64,
    certain: bool,
}

/// Returns the block of a position, which is not before that of the last call; none of a hole.
fn block_at(extents: &mut Peekable<Iter<'_, Extent>>, position: u64) -> Option<Block> {
    while extents.next_if(|extent| extent.end() <= position).is_some() {}
    let extent = extents.peek().filter(|extent| extent.logical <= position)?;
    Some(Block { physical: extent.physical.wrapping_add(position - extent.logical), certain: extent.certain })
}

/// Reads the extents of a range; none if the file system has no maps.
fn map(file: &File, start: u64, end: u64) -> io::Result<Option<Vec<Extent>>> {
    let mut found = Vec::new();
    let mut next = start;
    while next < end {
        let Some(part) = call(file, next, end - next)? else { return Ok(None) };
        let count = usize::try_from(part.mapped).unwrap_or_default().min(AT_ONCE);
        let mut is_last = count < AT_ONCE;
        let mut reached = next;
        for extent in &part.extents[..count] {
            let certain = extent.flags & UNCERTAIN == 0;
            let KernelExtent { logical, physical, length, .. } = *extent;
            let mapped = Extent { logical, physical, length, certain };
            reached = mapped.end();
            is_last |= extent.flags & LAST != 0;
            if extent.flags & UNWRITTEN == 0 {
                found.push(mapped);
            }
        }
        if is_last || reached <= next {
            break;
        }
        next = reached;
    }
    Ok(Some(found))
}

fn call(file: &File, start: u64, length: u64) -> io::Result<Option<Box<KernelMap>>> {
    const NUMBER: nix::sys::ioctl::ioctl_num_type =
        nix::request_code_readwrite!(b'f', 11, std::mem::size_of::<KernelHead>());
    let mut map = Box::new(KernelMap {
        start,
        length,
        flags: SYNC,
        mapped: 0,
        room: AT_ONCE as u32,
        reserved: 0,
        extents: [KernelExtent::default(); AT_ONCE],
    });
    // SAFETY: the kernel writes at most `room` extents, for which the structure has place; the descriptor is open.
    let answer = unsafe { nix::libc::ioctl(file.as_raw_fd(), NUMBER, std::ptr::from_mut(&mut *map)) };
    match nix::errno::Errno::result(answer) {
        Ok(_) => Ok(Some(map)),
        Err(nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::ENOTTY) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, length: u64) -> Extent {
        Extent { logical, physical, length, certain: true }
    }

    #[test]
    fn blocks_differ_by_place_length_and_certainty() {
        let old = [extent(0, 100, 10), extent(20, 500, 10)];
        let changed = |new: &[Extent]| {
            let parts = differences(&old, new, 0, 30);
            parts.iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(changed(&old), []);
        assert_eq!(changed(&[extent(0, 100, 4), extent(4, 104, 6), extent(20, 500, 10)]), [], "in several extents");
        assert_eq!(changed(&[extent(0, 100, 10)]), [(20, 30)], "a hole");
        assert_eq!(changed(&[extent(0, 100, 10), extent(20, 501, 10)]), [(20, 30)], "other blocks");
        assert_eq!(changed(&[extent(0, 100, 10), extent(20, 500, 9)]), [(29, 30)], "fewer blocks");
        assert_eq!(changed(&[extent(0, 100, 4), extent(4, 900, 2), extent(6, 106, 4), extent(20, 500, 10)]), [(4, 6)]);
        let uncertain = Extent { certain: false, ..extent(20, 500, 10) };
        assert_eq!(changed(&[extent(0, 100, 10), uncertain]), [(20, 30)]);
        assert_eq!(changed(&[extent(0, 100, 12), extent(12, 7, 8), extent(20, 500, 10)]), [(10, 20)], "joined");
        // Beyond the range nothing counts.
        assert_eq!(differences(&old, &[extent(0, 100, 15)], 0, 10), []);
        assert_eq!(differences(&[extent(0, 100, 40)], &[extent(5, 105, 20)], 10, 20), []);
        assert_eq!(differences(&[], &old, 5, 25), [Part { start: 5, end: 10 }, Part { start: 20, end: 25 }]);
    }
}
