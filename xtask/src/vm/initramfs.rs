//! The file system of a virtual machine: an archive that the kernel unpacks into memory when it boots.
//!
//! The format is cpio's `newc`, which the kernel reads: a header of hexadecimal numbers, the name, the content, each padded
//! to four bytes. A directory must come before its files, which the order of paths gives.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
/// The most bytes of a file in the format.
const LARGEST: u64 = u32::MAX as u64;

/// The content of a path.
enum Content {
    Directory,
    Link(String),
    Text(Vec<u8>),
    /// A file of the host.
    File(PathBuf),
    /// A program of the host, whose debug information stays there.
    Program(PathBuf),
}

struct Entry {
    mode: u32,
    content: Content,
}

/// The files of a machine by their paths, which begin with `/`.
#[derive(Default)]
pub struct Initramfs(BTreeMap<PathBuf, Entry>);

impl Initramfs {
    pub fn text(&mut self, path: impl Into<PathBuf>, mode: u32, text: &str) {
        self.add(path.into(), REGULAR | mode, Content::Text(text.as_bytes().to_vec()));
    }

    pub fn link(&mut self, path: impl Into<PathBuf>, target: &str) {
        self.add(path.into(), LINK | 0o777, Content::Link(target.to_owned()));
    }

    pub fn empty_directory(&mut self, path: impl Into<PathBuf>) {
        self.add(path.into(), DIRECTORY | 0o755, Content::Directory);
    }

    /// Adds a copy of a file of the host, through links.
    pub fn file(&mut self, path: impl Into<PathBuf>, source: &Path) -> Result<()> {
        let mode = mode_of(source)?;
        self.add(path.into(), mode, Content::File(source.to_owned()));
        Ok(())
    }

    /// Adds a program of the host at its own path.
    pub fn program(&mut self, path: &Path) -> Result<()> {
        let mode = mode_of(path)?;
        self.add(path.to_owned(), mode, Content::Program(path.to_owned()));
        Ok(())
    }

    /// Adds the files of a directory of the host.
    pub fn directory(&mut self, path: impl Into<PathBuf>, source: PathBuf) -> Result<()> {
        let path = path.into();
        for entry in std::fs::read_dir(&source).with_context(|| format!("cannot read {}", source.display()))? {
            let entry = entry?;
            let inside = path.join(entry.file_name());
            match entry.file_type()? {
                kind if kind.is_dir() => self.directory(inside, entry.path())?,
                kind if kind.is_file() => self.file(inside, &entry.path())?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, mode: u32, content: Content) {
        let parents = path.ancestors().skip(1).filter(|parent| parent.parent().is_some());
        for parent in parents {
            let directory = Entry { mode: DIRECTORY | 0o755, content: Content::Directory };
            self.0.entry(parent.to_owned()).or_insert(directory);
        }
        self.0.insert(path, Entry { mode, content });
    }

    /// Writes the archive.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut archive = BufWriter::new(file);
        for (path, entry) in &self.0 {
            let name = path.strip_prefix("/").with_context(|| format!("{} is relative", path.display()))?;
            let content = entry.content.read()?;
            write_entry(&mut archive, &name.to_string_lossy(), entry.mode, &content)?;
        }
        write_entry(&mut archive, "TRAILER!!!", 0, &[])?;
        archive.flush()?;
        Ok(())
    }
}

impl Content {
    fn read(&self) -> Result<Vec<u8>> {
        match self {
            Content::Directory => Ok(Vec::new()),
            Content::Link(target) => Ok(target.as_bytes().to_vec()),
            Content::Text(bytes) => Ok(bytes.clone()),
            Content::File(path) => std::fs::read(path).with_context(|| format!("cannot read {}", path.display())),
            Content::Program(path) => stripped(path),
        }
    }
}

/// Returns a program without debug information, which is most of it.
fn stripped(path: &Path) -> Result<Vec<u8>> {
    let output = tempfile::NamedTempFile::new()?;
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(output.path()).arg(path).stderr(Stdio::null());
    let is_stripped = strip.status().context("strip, which comes with gcc, cannot be run")?.success();
    // A program that strip does not understand is copied as it is.
    let source = if is_stripped { output.path() } else { path };
    std::fs::read(source).with_context(|| format!("cannot read {}", source.display()))
}

fn mode_of(path: &Path) -> Result<u32> {
    let metadata = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(metadata.is_file() && metadata.len() <= LARGEST, "{} is no file for an initramfs", path.display());
    Ok(REGULAR | (metadata.permissions().mode() & 0o777))
}

/// Writes one entry: owner root, one link, no time, no device.
fn write_entry(archive: &mut impl Write, name: &str, mode: u32, content: &[u8]) -> Result<()> {
    ensure!(content.len() as u64 <= LARGEST, "{name} has {} bytes", content.len());
    let length = content.len();
    let name_length = name.len() + 1;
    let header = format!(
        "070701{:08X}{mode:08X}{:08X}{:08X}{:08X}{:08X}{length:08X}{:08X}{:08X}{:08X}{:08X}{name_length:08X}{:08X}",
        0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    );
    let head = header.len() + name_length;
    archive.write_all(header.as_bytes())?;
    archive.write_all(name.as_bytes())?;
    archive.write_all(&[0])?;
    archive.write_all(&[0; 3][..padding(head)])?;
    archive.write_all(content)?;
    archive.write_all(&[0; 3][..padding(length)])?;
    Ok(())
}

/// Returns the bytes up to the next multiple of four.
fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_parents_first_and_is_padded() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Initramfs::default();
        files.text("/a/b/file", 0o755, "hello");
        files.link("/a/link", "b/file");
        let path = dir.path().join("archive");
        files.write(&path).unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let mut names = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let number = |field: usize| {
                let text = std::str::from_utf8(&bytes[at + 6 + field * 8..at + 14 + field * 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701");
            let name = std::str::from_utf8(&bytes[at + 110..at + 110 + number(11) - 1]).unwrap();
            let content = at + (110 + number(11)).next_multiple_of(4);
            names.push(format!(
                "{name} {:o} {}",
                number(1),
                String::from_utf8_lossy(&bytes[content..content + number(6)])
            ));
            at = content + number(6).next_multiple_of(4);
        }
        let expected = ["a 40755 ", "a/b 40755 ", "a/b/file 100755 hello", "a/link 120777 b/file", "TRAILER!!! 0 "];
        assert_eq!(names, expected);
    }
}
