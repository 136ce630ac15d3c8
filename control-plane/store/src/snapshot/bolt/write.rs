//! The writer: buckets of sorted elements, written once from front to back; only the metas are written last.
//!
//! Pages are filled, and none is left free, so a file takes little more than its data.

use std::io::{self, Error, ErrorKind, Seek, SeekFrom, Write};

use super::{BRANCH, BUCKET_HEADER, ELEMENT, FREELIST, IS_BUCKET, LEAF, META_PAGE, Meta, PAGE_BYTES, PAGE_HEADER};

const FREELIST_PAGE: u64 = 2;
/// The first page after the metas and the freelist.
const FIRST_PAGE: u64 = 3;
/// The most elements of a page. The format has room for a few more.
const MOST_ELEMENTS: usize = 0xFFF0;
/// The longest key of the format.
const LONGEST_KEY: usize = 32_768;
/// The longest value of the format.
const LONGEST_VALUE: usize = (1 << 31) - 2;

/// A file that is being written.
#[derive(Debug)]
pub struct Writer<W> {
    file: W,
    next_page: u64,
    buckets: Vec<Element>,
}

/// An element of a leaf.
#[derive(Debug)]
struct Element {
    flags: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Element {
    fn size(&self) -> usize {
        ELEMENT + self.key.len() + self.value.len()
    }
}

/// A page as its parent names it.
#[derive(Debug)]
struct Child {
    first_key: Vec<u8>,
    page: u64,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a file.
    pub fn new(mut file: W) -> io::Result<Writer<W>> {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&[0; 2 * PAGE_BYTES])?;
        file.write_all(&page(FREELIST_PAGE, FREELIST, 0, 1))?;
        Ok(Writer { file, next_page: FIRST_PAGE, buckets: Vec::new() })
    }

    /// Writes a bucket. Its name and its keys must follow those before in order.
    pub fn bucket(&mut self, name: &[u8], elements: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> io::Result<()> {
        if self.buckets.last().is_some_and(|last| last.key.as_slice() >= name) {
            return Err(invalid("the buckets are not in order"));
        }
        let elements = elements.into_iter().map(|(key, value)| Element { flags: 0, key, value });
        let root = self.tree(elements)?;
        let mut value = root.to_le_bytes().to_vec();
        value.resize(BUCKET_HEADER, 0);
        self.buckets.push(Element { flags: IS_BUCKET, key: name.to_vec(), value });
        Ok(())
    }

    /// Writes the root and the metas; returns the file and its length.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        let buckets = std::mem::take(&mut self.buckets);
        let root = self.tree(buckets)?;
        let pages = self.next_page;
        self.file.seek(SeekFrom::Start(0))?;
        for number in 0..2 {
            let meta =
                Meta { page_bytes: PAGE_BYTES as u32, root, freelist: FREELIST_PAGE, pages, transaction: number };
            let mut bytes = page(number, META_PAGE, 0, 1);
            let encoded = meta.encode();
            bytes[PAGE_HEADER..PAGE_HEADER + encoded.len()].copy_from_slice(&encoded);
            self.file.write_all(&bytes)?;
        }
        self.file.seek(SeekFrom::End(0))?;
        self.file.flush()?;
        Ok((self.file, pages * PAGE_BYTES as u64))
    }

    /// Writes the tree of a bucket, leaves first; returns its root.
    fn tree(&mut self, elements: impl IntoIterator<Item = Element>) -> io::Result<u64> {
        let mut children = Vec::new();
        let mut waiting: Vec<Element> = Vec::new();
        let mut last = Vec::new();
        let mut size = PAGE_HEADER;
        for element in elements {
            check(&last, &element)?;
            last.clone_from(&element.key);
            let is_full = size + element.size() > PAGE_BYTES || waiting.len() == MOST_ELEMENTS;
            if is_full && !waiting.is_empty() {
                children.push(self.leaf(&waiting)?);
                waiting.clear();
                size = PAGE_HEADER;
            }
            size += element.size();
            waiting.push(element);
        }
        if !waiting.is_empty() || children.is_empty() {
            children.push(self.leaf(&waiting)?);
        }
        while children.len() > 1 {
            children = self.branches(children)?;
        }
        Ok(children.first().map_or(0, |root| root.page))
    }

    /// Writes the branches above some pages, each with two children at least.
    fn branches(&mut self, children: Vec<Child>) -> io::Result<Vec<Child>> {
        let longest = children.iter().map(|child| child.first_key.len()).max().unwrap_or_default();
        let most = ((PAGE_BYTES - PAGE_HEADER) / (ELEMENT + longest)).clamp(2, MOST_ELEMENTS);
        // Children spread evenly, so that the last branch is not left with one of them.
        let parents = children.len().div_ceil(most);
        let each = children.len().div_ceil(parents).max(2);
        let mut written = Vec::with_capacity(parents);
        let mut rest = children.as_slice();
        while !rest.is_empty() {
            // A last child alone joins the branch before it.
            let count = if rest.len() == each + 1 { rest.len() } else { each.min(rest.len()) };
            let (group, after) = rest.split_at(count);
            written.push(self.branch(group)?);
            rest = after;
        }
        Ok(written)
    }

    fn leaf(&mut self, elements: &[Element]) -> io::Result<Child> {
        let mut heads = Vec::with_capacity(elements.len() * ELEMENT);
        let mut data = Vec::new();
        for (number, element) in elements.iter().enumerate() {
            let position = (elements.len() - number) * ELEMENT + data.len();
            heads.extend_from_slice(&element.flags.to_le_bytes());
            heads.extend_from_slice(&length(position)?);
            heads.extend_from_slice(&length(element.key.len())?);
            heads.extend_from_slice(&length(element.value.len())?);
            data.extend_from_slice(&element.key);
            data.extend_from_slice(&element.value);
        }
        let first_key = elements.first().map(|element| element.key.clone()).unwrap_or_default();
        let page = self.write(LEAF, elements.len(), &heads, &data)?;
        Ok(Child { first_key, page })
    }

    fn branch(&mut self, children: &[Child]) -> io::Result<Child> {
        let mut heads = Vec::with_capacity(children.len() * ELEMENT);
        let mut data = Vec::new();
        for (number, child) in children.iter().enumerate() {
            let position = (children.len() - number) * ELEMENT + data.len();
            heads.extend_from_slice(&length(position)?);
            heads.extend_from_slice(&length(child.first_key.len())?);
            heads.extend_from_slice(&child.page.to_le_bytes());
            data.extend_from_slice(&child.first_key);
        }
        let first_key = children.first().map(|child| child.first_key.clone()).unwrap_or_default();
        let page = self.write(BRANCH, children.len(), &heads, &data)?;
        Ok(Child { first_key, page })
    }

    /// Writes a page with as many pages of overflow as it needs; returns its id.
    fn write(&mut self, kind: u16, count: usize, heads: &[u8], data: &[u8]) -> io::Result<u64> {
        let id = self.next_page;
        let pages = (PAGE_HEADER + heads.len() + data.len()).div_ceil(PAGE_BYTES);
        let count = u16::try_from(count).map_err(|_| invalid("a page has too many elements"))?;
        let mut bytes = page(id, kind, count, pages);
        bytes[PAGE_HEADER..PAGE_HEADER + heads.len()].copy_from_slice(heads);
        bytes[PAGE_HEADER + heads.len()..PAGE_HEADER + heads.len() + data.len()].copy_from_slice(data);
        self.file.write_all(&bytes)?;
        self.next_page += pages as u64;
        Ok(id)
    }
}

/// Returns an empty page of `pages` pages.
fn page(id: u64, kind: u16, count: u16, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE_BYTES];
    bytes[0..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..10].copy_from_slice(&kind.to_le_bytes());
    bytes[10..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..16].copy_from_slice(&((pages - 1) as u32).to_le_bytes());
    bytes
}

/// Checks that an element fits the format and follows the last key, which is empty before the first one.
fn check(last: &[u8], element: &Element) -> io::Result<()> {
    if element.key.is_empty() || element.key.len() > LONGEST_KEY {
        return Err(invalid("a key is empty or too long"));
    }
    if element.value.len() > LONGEST_VALUE {
        return Err(invalid("a value is too long"));
    }
    if last >= element.key.as_slice() {
        return Err(invalid("the keys are not in order"));
    }
    Ok(())
}

fn length(length: usize) -> io::Result<[u8; 4]> {
    u32::try_from(length).map(u32::to_le_bytes).map_err(|_| invalid("a page is too big"))
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}
