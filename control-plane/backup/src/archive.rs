//! The plaintext of a backup: the manifest, the small files, and the snapshot of the store, one after the other.
//!
//! ```text
//! entry: kind u8 | name length u16 | name | size u64 | bytes
//! ```
//!
//! The manifest comes first, the snapshot last, then an entry of kind 0. Small files are held in memory, within limits;
//! the snapshot is copied.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::container::{Header, Opener, Sealer};
use crate::{Fault, Secret};

const END: u8 = 0;
const MANIFEST: u8 = 1;
const FILE: u8 = 2;
const SNAPSHOT: u8 = 3;

const MOST_NAME: usize = 255;
const MOST_FILES: usize = 1000;
/// The most bytes of one small file: far more than a certificate or a configuration takes.
pub const MOST_FILE_BYTES: u64 = 4 << 20;
/// The largest snapshot: the largest database that etcd recommends.
const MOST_SNAPSHOT_BYTES: u64 = 8 << 30;

/// The facts about a backup that only its secret reveals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Manifest {
    /// The name of the server's node.
    pub node: String,
    /// The prefix of all keys in the store.
    pub prefix: String,
    /// The cluster's settings, which this package does not read.
    pub settings: serde_json::Value,
    /// The flags that the server was started with.
    pub flags: Vec<String>,
}

/// The content of a new backup.
pub struct Contents {
    pub header: Header,
    pub manifest: Manifest,
    /// The small files by name, such as `pki/ca.key`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The snapshot, read from its beginning.
    pub snapshot: File,
    pub snapshot_bytes: u64,
}

impl Contents {
    /// Writes the backup.
    pub fn write(&mut self, output: impl Write, secret: &Secret) -> io::Result<()> {
        let mut sealer = Sealer::new(output, &self.header, secret)?;
        put(&mut sealer, MANIFEST, "manifest.json", &serde_json::to_vec(&self.manifest)?)?;
        for (name, bytes) in &self.files {
            put(&mut sealer, FILE, name, bytes)?;
        }
        begin(&mut sealer, SNAPSHOT, "snapshot.db", self.snapshot_bytes)?;
        let copied = io::copy(&mut (&mut self.snapshot).take(self.snapshot_bytes), &mut sealer)?;
        if copied != self.snapshot_bytes {
            return Err(io::Error::other("the snapshot became shorter while it was copied"));
        }
        begin(&mut sealer, END, "", 0)?;
        sealer.finish().map(drop)
    }
}

fn put(output: &mut impl Write, kind: u8, name: &str, bytes: &[u8]) -> io::Result<()> {
    begin(output, kind, name, bytes.len() as u64)?;
    output.write_all(bytes)
}

fn begin(output: &mut impl Write, kind: u8, name: &str, size: u64) -> io::Result<()> {
    let length = u16::try_from(name.len()).ok().filter(|length| usize::from(*length) <= MOST_NAME);
    let length = length.ok_or_else(|| Fault::TooLarge(format!("the name {name:?}")))?;
    output.write_all(&[kind])?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(name.as_bytes())?;
    output.write_all(&size.to_le_bytes())
}

/// The begin of an entry.
struct Entry {
    kind: u8,
    name: String,
    size: u64,
}

/// A backup that its secret has opened, read up to the snapshot.
pub struct Opened<R> {
    pub header: Header,
    pub manifest: Manifest,
    pub files: BTreeMap<String, Vec<u8>>,
    pub snapshot_bytes: u64,
    input: Opener<R>,
}

impl<R: Read> Opened<R> {
    /// Opens a backup.
    pub fn new(input: R, secret: &Secret) -> io::Result<Opened<R>> {
        let mut input = Opener::new(input, secret)?;
        let header = input.header().clone();
        let first = entry(&mut input)?;
        if first.kind != MANIFEST {
            return Err(Fault::Damaged("it does not begin with its manifest".to_owned()).into());
        }
        let bytes = content(&mut input, &first)?;
        let manifest = serde_json::from_slice(&bytes);
        let manifest = manifest.map_err(|error| Fault::Damaged(format!("its manifest makes no sense: {error}")))?;
        let mut files = BTreeMap::new();
        loop {
            let next = entry(&mut input)?;
            match next.kind {
                FILE if files.len() < MOST_FILES => {
                    let bytes = content(&mut input, &next)?;
                    files.insert(next.name, bytes);
                }
                FILE => return Err(Fault::TooLarge(format!("more than {MOST_FILES} files")).into()),
                SNAPSHOT if next.size <= MOST_SNAPSHOT_BYTES => {
                    return Ok(Opened { header, manifest, files, snapshot_bytes: next.size, input });
                }
                SNAPSHOT => return Err(Fault::TooLarge(format!("a snapshot of {} bytes", next.size)).into()),
                _ => return Err(Fault::Damaged("it has no snapshot".to_owned()).into()),
            }
        }
    }

    /// Copies the snapshot, and reads to the end: only then the backup is known to be complete.
    pub fn copy_snapshot(mut self, output: &mut impl Write) -> io::Result<()> {
        let copied = io::copy(&mut (&mut self.input).take(self.snapshot_bytes), output)?;
        if copied != self.snapshot_bytes || entry(&mut self.input)?.kind != END {
            return Err(Fault::Damaged("its snapshot ends too early".to_owned()).into());
        }
        let mut rest = [0; 1];
        match self.input.read(&mut rest)? {
            0 => Ok(()),
            _ => Err(Fault::Damaged("something follows its end".to_owned()).into()),
        }
    }
}

fn entry(input: &mut impl Read) -> io::Result<Entry> {
    let ended = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Damaged("its content ends too early".to_owned()).into(),
        _ => error,
    };
    let mut head = [0; 3];
    input.read_exact(&mut head).map_err(ended)?;
    let length = usize::from(u16::from_le_bytes([head[1], head[2]]));
    if length > MOST_NAME {
        return Err(Fault::TooLarge("the name of a file".to_owned()).into());
    }
    let mut name = vec![0; length];
    input.read_exact(&mut name).map_err(ended)?;
    let mut size = [0; 8];
    input.read_exact(&mut size).map_err(ended)?;
    let name = String::from_utf8(name).map_err(|_| Fault::Damaged("the name of a file is no text".to_owned()))?;
    Ok(Entry { kind: head[0], name, size: u64::from_le_bytes(size) })
}

fn content(input: &mut impl Read, entry: &Entry) -> io::Result<Vec<u8>> {
    if entry.size > MOST_FILE_BYTES {
        return Err(Fault::TooLarge(format!("the file {:?} of {} bytes", entry.name, entry.size)).into());
    }
    let mut bytes = Vec::new();
    input.take(entry.size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != entry.size {
        return Err(Fault::Damaged(format!("the file {:?} ends too early", entry.name)).into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;
    use crate::error::fault_of;

    fn secret() -> Secret {
        Secret::key_file(vec![1; 32]).unwrap()
    }

    fn contents() -> Contents {
        let mut snapshot = tempfile::tempfile().unwrap();
        snapshot.write_all(&[5; 200_000]).unwrap();
        snapshot.rewind().unwrap();
        Contents {
            header: Header::new(jiff::Timestamp::UNIX_EPOCH, "1.2.3", "c", &secret()).unwrap(),
            manifest: Manifest { node: "node-of-the-manifest".to_owned(), ..Manifest::default() },
            files: [("pki/ca.key", "key"), ("pki/ca.crt", "")]
                .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
                .into(),
            snapshot,
            snapshot_bytes: 200_000,
        }
    }

    #[test]
    fn a_backup_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        contents().write(&mut bytes, &secret()).unwrap();
        let opened = Opened::new(&bytes[..], &secret()).unwrap();
        let expected = contents();
        assert_eq!((&opened.manifest, &opened.files), (&expected.manifest, &expected.files));
        let mut snapshot = Vec::new();
        opened.copy_snapshot(&mut snapshot).unwrap();
        assert_eq!(snapshot, vec![5; 200_000]);
        // Long enough that ciphertext does not contain it by chance.
        let name = expected.manifest.node.as_bytes();
        assert!(!bytes.windows(name.len()).any(|part| part == name), "the manifest is not in the clear");
    }

    #[test]
    fn a_snapshot_that_becomes_shorter_is_noticed() {
        let mut shorter = contents();
        shorter.snapshot.set_len(100).unwrap();
        assert!(shorter.write(&mut Vec::new(), &secret()).is_err());
    }

    #[test]
    fn content_without_a_snapshot_is_refused() {
        for entries in
            [&[][..], &[(MANIFEST, "{}")], &[(FILE, "x")], &[(MANIFEST, "{}"), (END, "")], &[(MANIFEST, "no")]]
        {
            let mut bytes = Vec::new();
            let mut sealer = Sealer::new(&mut bytes, &contents().header, &secret()).unwrap();
            for (kind, text) in entries {
                put(&mut sealer, *kind, "name", text.as_bytes()).unwrap();
            }
            sealer.finish().unwrap();
            let error = Opened::new(&bytes[..], &secret()).err().unwrap();
            assert!(matches!(fault_of(&error), Some(Fault::Damaged(_))), "{entries:?}: {error}");
        }
    }
}
