//! Sparse files of layers: files with holes, of which an archive holds the data alone.
//!
//! GNU tar writes them in four forms. The `tar` package reads the old one, of a header type of its own, and fills the
//! holes with zeros; the three that are regular files with records in their PAX headers (0.0, 0.1 and 1.0) are read
//! here. A few bytes of an archive claim files of any size: holes must never be read without need, and are never
//! written to the disk.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The block size of a map before the data.
const BLOCK: usize = 512;
/// The longest map; the records of a PAX header are not longer either.
const MAX_MAP_BYTES: usize = 1 << 20;

/// A sparse file as its PAX records describe it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sparse {
    /// The file's own name; the entry's name is for readers that do not support the form.
    pub name: Option<PathBuf>,
    /// The file's size with its holes.
    pub size: u64,
    /// The parts with data; `None` if a map precedes the data.
    parts: Option<Vec<Part>>,
}

/// A part of a sparse file that holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    offset: u64,
    length: u64,
}

/// The PAX records of a header.
#[derive(Default)]
struct Records {
    major: Vec<u8>,
    minor: Vec<u8>,
    name: Vec<u8>,
    size: Option<u64>,
    real_size: Option<u64>,
    map: Vec<u64>,
    has_map: bool,
}

impl Sparse {
    /// Reads the records of an entry; returns `None` for a file without holes.
    pub fn of(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Option<Sparse>> {
        let mut records = Records::default();
        for extension in entry.pax_extensions()?.into_iter().flatten() {
            let extension = extension?;
            records.take(extension.key_bytes(), extension.value_bytes())?;
        }
        records.sparse(entry.size())
    }

    /// Writes the file: data at its offset, holes between.
    pub fn write(&self, content: &mut impl Read, file: &mut File) -> io::Result<()> {
        let parts = match &self.parts {
            Some(parts) => parts.clone(),
            None => read_map(content)?,
        };
        check(&parts, self.size)?;
        file.set_len(self.size)?;
        for part in parts {
            file.seek(SeekFrom::Start(part.offset))?;
            if io::copy(&mut content.take(part.length), file)? != part.length {
                return Err(invalid("a sparse file with less data than its map says"));
            }
        }
        Ok(())
    }
}

impl Records {
    fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match key {
            b"GNU.sparse.major" => self.major = value.to_vec(),
            b"GNU.sparse.minor" => self.minor = value.to_vec(),
            b"GNU.sparse.name" => self.name = value.to_vec(),
            b"GNU.sparse.size" => self.size = Some(number(value)?),
            b"GNU.sparse.realsize" => self.real_size = Some(number(value)?),
            b"GNU.sparse.map" => {
                self.has_map = true;
                self.map = value.split(|byte| *byte == b',').map(number).collect::<io::Result<_>>()?;
            }
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.has_map = true;
                let is_offset = key == b"GNU.sparse.offset";
                if is_offset != self.map.len().is_multiple_of(2) {
                    return Err(invalid("the map of a sparse file is out of order"));
                }
                self.map.push(number(value)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes a sparse file of the records. Distinguishes the forms as Go does, whose reader other runtimes use.
    fn sparse(self, entry_size: u64) -> io::Result<Option<Sparse>> {
        let is_inside = match (self.major.as_slice(), self.minor.as_slice()) {
            (b"0", b"0" | b"1") => false,
            (b"1", b"0") => true,
            (b"", b"") if self.has_map => false,
            _ => return Ok(None),
        };
        let name = Some(self.name).filter(|name| !name.is_empty());
        Ok(Some(Sparse {
            name: name.map(|name| PathBuf::from(OsString::from_vec(name))),
            size: self.size.or(self.real_size).unwrap_or(entry_size),
            parts: if is_inside { None } else { Some(parts(&self.map)?) },
        }))
    }
}

/// Writes a sparse file of the old form, which the `tar` package filled with zeros: zeros become holes again.
pub(super) fn write_with_holes(mut content: impl Read, file: &File, size: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    file.set_len(size)?;
    let mut buffer = vec![0; ZEROS.len()];
    let mut offset = 0;
    loop {
        let read = content.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        if buffer[..read] != ZEROS[..read] {
            file.write_all_at(&buffer[..read], offset)?;
        }
        offset += read as u64;
    }
}

/// Reads the map before the data: the number of parts, then offset and length of each, a number per line, in whole
/// blocks.
fn read_map(content: &mut impl Read) -> io::Result<Vec<Part>> {
    let mut numbers = Vec::new();
    let mut line = Vec::new();
    let mut wanted = 1;
    for _ in 0..MAX_MAP_BYTES / BLOCK {
        let mut block = [0; BLOCK];
        content.read_exact(&mut block)?;
        for byte in block {
            if numbers.len() == wanted {
                break;
            }
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            numbers.push(number(&line)?);
            line.clear();
            if let [count] = numbers[..] {
                wanted = usize::try_from(count)
                    .ok()
                    .and_then(|count| count.checked_mul(2)?.checked_add(1))
                    .ok_or_else(too_long)?;
            }
        }
        if numbers.len() == wanted {
            return parts(&numbers[1..]);
        }
    }
    Err(too_long())
}

fn parts(numbers: &[u64]) -> io::Result<Vec<Part>> {
    if !numbers.len().is_multiple_of(2) {
        return Err(invalid("the map of a sparse file is out of order"));
    }
    Ok(numbers.chunks_exact(2).map(|pair| Part { offset: pair[0], length: pair[1] }).collect())
}

/// Checks that the data is in order and within the file.
fn check(parts: &[Part], size: u64) -> io::Result<()> {
    let mut end = 0;
    for part in parts {
        if part.offset < end {
            return Err(invalid("the map of a sparse file is out of order"));
        }
        end = part
            .offset
            .checked_add(part.length)
            .filter(|end| *end <= size)
            .ok_or_else(|| invalid("the map of a sparse file leads beyond the file's end"))?;
    }
    Ok(())
}

/// Parses a decimal number without a sign.
fn number(bytes: &[u8]) -> io::Result<u64> {
    let digits = std::str::from_utf8(bytes).ok().filter(|bytes| bytes.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| invalid("a sparse file with a number that is none"))
}

fn too_long() -> io::Error {
    invalid("the map of a sparse file is longer than any")
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an entry with these records and this content, as Go and GNU tar write it.
    fn archive(records: &[(&str, &str)], content: &[u8]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let records = records.iter().map(|(key, value)| (*key, value.as_bytes()));
        builder.append_pax_extensions(records).expect("memory is writable");
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, "GNUSparseFile.0/f", content).expect("memory is writable");
        builder.into_inner().expect("memory is writable")
    }

    /// Returns the name and content of the only file of an archive.
    fn unpacked(archive: &[u8]) -> io::Result<(Option<PathBuf>, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let mut entry = archive.entries()?.next().expect("an entry")?;
        let sparse = Sparse::of(&mut entry)?.expect("a sparse file");
        let mut file = tempfile::tempfile()?;
        sparse.write(&mut entry, &mut file)?;
        let mut content = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut content)?;
        Ok((sparse.name, content))
    }

    fn map(lines: &str) -> Vec<u8> {
        let mut map = lines.as_bytes().to_vec();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        map
    }

    #[test]
    fn every_form_is_read() {
        let expected = (Some(PathBuf::from("d/f")), b"\0\0ab\0\0\0c\0".to_vec());
        let version =
            |major, minor| [("GNU.sparse.major", major), ("GNU.sparse.minor", minor), ("GNU.sparse.name", "d/f")];
        let inside = [&version("1", "0")[..], &[("GNU.sparse.realsize", "9")]].concat();
        let content = [map("2\n2\n2\n7\n1\n"), b"abc".to_vec()].concat();
        assert_eq!(unpacked(&archive(&inside, &content)).expect("1.0"), expected);
        let listed = [&version("0", "1")[..], &[("GNU.sparse.size", "9"), ("GNU.sparse.map", "2,2,7,1")]].concat();
        assert_eq!(unpacked(&archive(&listed, b"abc")).expect("0.1"), expected);
        let repeated = [
            ("GNU.sparse.name", "d/f"),
            ("GNU.sparse.size", "9"),
            ("GNU.sparse.offset", "2"),
            ("GNU.sparse.numbytes", "2"),
            ("GNU.sparse.offset", "7"),
            ("GNU.sparse.numbytes", "1"),
        ];
        assert_eq!(unpacked(&archive(&repeated, b"abc")).expect("0.0"), expected);
    }

    #[test]
    fn malformed_maps_are_refused() {
        let inside = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9")];
        for (lines, expected) in [
            ("", "number that is none"),
            ("x\n", "number that is none"),
            ("+1\n0\n1\n", "number that is none"),
            ("18446744073709551615\n", "longer than any"),
            ("1\n9\n1\n", "beyond the file's end"),
            ("1\n18446744073709551615\n1\n", "beyond the file's end"),
            ("2\n2\n2\n1\n1\n", "out of order"),
            ("1\n0\n5\n", "less data"),
        ] {
            let lines = if lines.is_empty() { "\n" } else { lines };
            let error =
                unpacked(&archive(&inside, &[map(lines), b"abc".to_vec()].concat())).expect_err(lines).to_string();
            assert!(error.contains(expected), "{lines:?}: {error}");
        }
        let endless = [b"99999999\n".to_vec(), b"1\n".repeat(MAX_MAP_BYTES)].concat();
        let error = unpacked(&archive(&inside, &endless)).expect_err("endless").to_string();
        assert!(error.contains("longer than any"), "{error}");
    }

    #[test]
    fn zeros_become_holes() {
        use std::os::unix::fs::MetadataExt;
        let size = 8 << 20;
        let file = tempfile::tempfile().expect("a file");
        let content = io::repeat(0).take(size - 4).chain(&b"data"[..]);
        write_with_holes(content, &file, size).expect("written");
        let found = file.metadata().expect("metadata");
        assert_eq!(found.len(), size);
        assert!(found.blocks() * 512 < size / 2, "{} blocks", found.blocks());
        let mut end = [0; 4];
        file.read_exact_at(&mut end, size - 4).expect("the end");
        assert_eq!(&end, b"data");
    }
}
