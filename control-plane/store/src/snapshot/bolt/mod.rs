//! bbolt files: the format of etcd's database and of its snapshots. Pure; a reader and a writer, and no database.
//!
//! ```text
//! page 0, 1   metas: page size, root bucket, freelist, number of pages, transaction; the valid one with the higher
//!             transaction counts
//! page 2…     freelist, leaves, branches
//! ```
//!
//! A page begins with its id, its kind, its number of elements and the number of pages that it overflows into.
//! Elements are heads of fixed size, which point to their keys and values behind them. A bucket is a tree of pages whose
//! root is named in a leaf of the parent bucket, or a single leaf inside that value. All numbers are little-endian.

mod read;
mod write;

pub use read::{Bucket, Database, ReadAt};
pub use write::Writer;

/// The page size of the files that the writer makes, and of every file that etcd makes on x86 and most of ARM.
pub const PAGE_BYTES: usize = 4096;

const PAGE_HEADER: usize = 16;
/// The head of an element, of a leaf as of a branch.
const ELEMENT: usize = 16;
/// A bucket in the value of a leaf's element: its root page and its sequence.
const BUCKET_HEADER: usize = 16;
/// The fields of a meta, with its checksum.
const META: usize = 64;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META_PAGE: u16 = 0x04;
const FREELIST: u16 = 0x10;

/// The flag of an element whose value is a bucket.
const IS_BUCKET: u32 = 0x01;

/// The fields of a meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    page_bytes: u32,
    root: u64,
    freelist: u64,
    /// The number of pages; the file may be longer.
    pages: u64,
    transaction: u64,
}

impl Meta {
    fn encode(&self) -> [u8; META] {
        let mut bytes = [0; META];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.root.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.freelist.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.pages.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.transaction.to_le_bytes());
        let sum = fnv1a(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Meta> {
        let bytes = bytes.get(..META)?;
        let is_valid = u32_at(bytes, 0)? == MAGIC
            && u32_at(bytes, 4)? == VERSION
            && u64_at(bytes, 56)? == fnv1a(&bytes[..56])
            && u32_at(bytes, 8)?.is_power_of_two()
            && (512..=1 << 20).contains(&u32_at(bytes, 8)?);
        is_valid.then_some(Meta {
            page_bytes: u32_at(bytes, 8)?,
            root: u64_at(bytes, 16)?,
            freelist: u64_at(bytes, 32)?,
            pages: u64_at(bytes, 40)?,
            transaction: u64_at(bytes, 48)?,
        })
    }
}

/// Returns the 64-bit FNV-1a hash, the checksum of a meta.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
