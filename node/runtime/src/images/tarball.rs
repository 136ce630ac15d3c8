//! A reader of tar archives that an attacker may have written.
//!
//! The reader of the `tar` package keeps long names and extended attributes of an entry in memory, however long their
//! headers claim they are. Here it reads through a meter that ends the archive when the headers before one entry are
//! longer than any valid ones.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use crate::Error;

/// The most bytes of headers before one entry: names, link targets, extended attributes, maps of sparse files.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// An entry of an archive.
pub(super) type Entry<'a, R> = tar::Entry<'a, Metered<R>>;

/// Calls `visit` for each entry in order, and skips the rest of its content.
pub(super) fn for_each<R: Read>(
    archive: R,
    mut visit: impl FnMut(&mut Entry<'_, R>) -> Result<(), Error>,
) -> Result<(), Error> {
    let allowed = Rc::new(Cell::new(None));
    let mut archive = tar::Archive::new(Metered { inner: archive, allowed: allowed.clone() });
    let mut entries = archive.entries().map_err(malformed)?;
    loop {
        allowed.set(Some(MAX_HEADER_BYTES));
        let Some(entry) = entries.next() else { return Ok(()) };
        let mut entry = entry.map_err(malformed)?;
        allowed.set(None);
        visit(&mut entry)?;
        skip_rest(&mut entry)?;
    }
}

/// Skips the rest of an entry. The zeros of a sparse file are as many as its header claims, and are not in the archive:
/// they are not read.
fn skip_rest<R: Read>(entry: &mut Entry<'_, R>) -> Result<(), Error> {
    if entry.header().entry_type() == tar::EntryType::GNUSparse && entry.read(&mut [0]).map_err(malformed)? != 0 {
        return Err(Error::Image("a sparse file that nobody reads".to_owned()));
    }
    io::copy(entry, &mut io::sink()).map_err(malformed)?;
    Ok(())
}

pub(super) fn malformed(source: io::Error) -> Error {
    Error::Image(format!("malformed archive: {source}"))
}

/// A reader that passes on a limited number of bytes; `None` is any number.
pub(super) struct Metered<R> {
    inner: R,
    allowed: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if let Some(allowed) = self.allowed.get() {
            let left = allowed.checked_sub(read as u64).ok_or_else(too_long)?;
            self.allowed.set(Some(left));
        }
        Ok(read)
    }
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the headers of an entry are longer than {MAX_HEADER_BYTES} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an archive with one extension header of this kind and length, followed by a file.
    fn archive(kind: u8, length: u64) -> impl Read {
        let mut extension = tar::Header::new_gnu();
        extension.as_mut_bytes()[156] = kind;
        extension.set_size(length);
        extension.set_cksum();
        let mut file = tar::Header::new_gnu();
        file.set_path("file").expect("a name");
        file.set_size(0);
        file.set_cksum();
        let content = io::repeat(b'0').take(length.next_multiple_of(512));
        let start = io::Cursor::new(*extension.as_bytes());
        let end = io::Cursor::new(*file.as_bytes());
        start.chain(content).chain(end).chain(io::repeat(0).take(1024))
    }

    #[test]
    fn headers_have_a_limit_and_content_has_none() {
        for kind in [b'L', b'K', b'x'] {
            let error = for_each(archive(kind, 3 << 30), |_| Ok(())).expect_err("too long").to_string();
            assert!(error.contains("longer than"), "{error}");
        }
        let mut names = Vec::new();
        for_each(archive(b'L', 300), |entry| {
            names.push(entry.path_bytes().len());
            Ok(())
        })
        .expect("a long name");
        assert_eq!(names, [300]);
        let mut entries = 0;
        for_each(archive(b'0', 64 << 20), |_| {
            entries += 1;
            Ok(())
        })
        .expect("a large file");
        assert_eq!(entries, 2);
    }
}
