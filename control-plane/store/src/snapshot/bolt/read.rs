//! The reader. The file is not trusted: every offset is checked, every page is visited at most once, and memory holds
//! one page with its overflow per level of the tree.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{BRANCH, BUCKET_HEADER, ELEMENT, IS_BUCKET, LEAF, META, Meta, PAGE_HEADER, u16_at, u32_at, u64_at};

/// The deepest tree that is read; a page has two children at least, so no real tree comes close.
const DEEPEST: usize = 64;

/// Bytes that can be read at any offset.
pub trait ReadAt {
    fn length(&self) -> io::Result<u64>;

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl ReadAt for &[u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// An opened file.
#[derive(Debug)]
pub struct Database<R> {
    file: R,
    length: u64,
    meta: Meta,
}

/// A bucket: the page of its root, or the page inside the value that names it.
#[derive(Debug)]
pub enum Bucket {
    Root(u64),
    Inline(Vec<u8>),
}

impl<R: ReadAt> Database<R> {
    /// Reads the metas. `length` is that of the database, which may be shorter than the file.
    pub fn open(file: R, length: u64) -> Result<Database<R>, String> {
        let meta = newest_meta(&file, length).ok_or("it is no bbolt file, or both of its metas are damaged")?;
        if meta.pages.checked_mul(u64::from(meta.page_bytes)).is_none_or(|end| end > length) {
            return Err(format!("it is cut off: it has {length} bytes, and {} pages", meta.pages));
        }
        Ok(Database { file, length, meta })
    }

    /// Returns a top-level bucket by its name.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, String> {
        let mut found = None;
        self.visit(&Bucket::Root(self.meta.root), &mut |element| {
            if element.key == name && element.flags & IS_BUCKET != 0 {
                found = Some(element.value.to_vec());
            }
            Ok(())
        })?;
        let Some(value) = found else { return Ok(None) };
        let root = u64_at(&value, 0).ok_or("a bucket has no root")?;
        if root != 0 {
            return Ok(Some(Bucket::Root(root)));
        }
        Ok(Some(Bucket::Inline(value.get(BUCKET_HEADER..).ok_or("a bucket has no page")?.to_vec())))
    }

    /// Passes the keys and values of a bucket to `visit`, in order.
    pub fn for_each(
        &self,
        bucket: &Bucket,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.visit(bucket, &mut |element| match element.flags & IS_BUCKET {
            0 => visit(element.key, element.value),
            _ => Ok(()),
        })
    }

    fn visit(
        &self,
        bucket: &Bucket,
        visit: &mut dyn FnMut(&LeafElement<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut walk = Walk { database: self, visited: 0, last: None };
        match bucket {
            Bucket::Root(page) => walk.page(*page, 0, visit),
            Bucket::Inline(page) => walk.elements(page, 0, visit),
        }
    }

    /// Reads a page with its overflow.
    fn page(&self, id: u64) -> Result<Vec<u8>, String> {
        let damaged = || format!("page {id} is damaged");
        if id < 2 || id >= self.meta.pages {
            return Err(format!("page {id} does not exist"));
        }
        let bytes = u64::from(self.meta.page_bytes);
        let offset = id * bytes;
        let mut header = [0; PAGE_HEADER];
        self.file.read_at(offset, &mut header).map_err(|error| format!("page {id} cannot be read: {error}"))?;
        let overflow = u64::from(u32_at(&header, 12).ok_or_else(damaged)?);
        let size = (overflow + 1) * bytes;
        if u64_at(&header, 0) != Some(id) || offset + size > self.length {
            return Err(damaged());
        }
        let mut page = vec![0; usize::try_from(size).map_err(|_| damaged())?];
        self.file.read_at(offset, &mut page).map_err(|error| format!("page {id} cannot be read: {error}"))?;
        Ok(page)
    }
}

/// Returns the valid meta with the higher transaction. Without the first, the page size is unknown: the second lies at
/// the end of a first page of any size.
fn newest_meta(file: &impl ReadAt, length: u64) -> Option<Meta> {
    let at = |offset: u64| {
        let mut bytes = [0; PAGE_HEADER + META];
        (offset + bytes.len() as u64 <= length).then_some(())?;
        file.read_at(offset, &mut bytes).ok()?;
        Meta::parse(&bytes[PAGE_HEADER..])
    };
    let first = at(0);
    let second = match first {
        Some(meta) => at(u64::from(meta.page_bytes)),
        None => {
            let sizes = (9..=20).map(|power| 1_u64 << power);
            sizes.into_iter().find_map(|size| at(size).filter(|meta| u64::from(meta.page_bytes) == size))
        }
    };
    first.into_iter().chain(second).max_by_key(|meta| meta.transaction)
}

struct LeafElement<'a> {
    flags: u32,
    key: &'a [u8],
    value: &'a [u8],
}

/// A walk through the pages of one bucket.
struct Walk<'a, R> {
    database: &'a Database<R>,
    /// The number of pages so far; a tree has at most as many as the file, so a cycle ends.
    visited: u64,
    /// The last key, which the next one must follow.
    last: Option<Vec<u8>>,
}

impl<R: ReadAt> Walk<'_, R> {
    fn page(
        &mut self,
        id: u64,
        depth: usize,
        visit: &mut dyn FnMut(&LeafElement<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let page = self.database.page(id)?;
        self.visited += page.len() as u64 / u64::from(self.database.meta.page_bytes);
        if self.visited > self.database.meta.pages || depth > DEEPEST {
            return Err("its pages form a circle".to_owned());
        }
        self.elements(&page, depth, visit)
    }

    fn elements(
        &mut self,
        page: &[u8],
        depth: usize,
        visit: &mut dyn FnMut(&LeafElement<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let damaged = || "an element of a page is damaged".to_owned();
        let kind = u16_at(page, 8).ok_or_else(damaged)?;
        let count = usize::from(u16_at(page, 10).ok_or_else(damaged)?);
        for number in 0..count {
            let head = PAGE_HEADER + number * ELEMENT;
            match kind {
                LEAF => {
                    let element = leaf_element(page, head).ok_or_else(damaged)?;
                    if self.last.as_deref().is_some_and(|last| last >= element.key) {
                        return Err("its keys are not in order".to_owned());
                    }
                    self.last = Some(element.key.to_vec());
                    visit(&element)?;
                }
                BRANCH => {
                    let child = u64_at(page, head + 8).ok_or_else(damaged)?;
                    self.page(child, depth + 1, visit)?;
                }
                _ => return Err("a page of a bucket is neither branch nor leaf".to_owned()),
            }
        }
        Ok(())
    }
}

fn leaf_element(page: &[u8], head: usize) -> Option<LeafElement<'_>> {
    let flags = u32_at(page, head)?;
    let position = head.checked_add(u32_at(page, head + 4)? as usize)?;
    let key_end = position.checked_add(u32_at(page, head + 8)? as usize)?;
    let value_end = key_end.checked_add(u32_at(page, head + 12)? as usize)?;
    Some(LeafElement { flags, key: page.get(position..key_end)?, value: page.get(key_end..value_end)? })
}
