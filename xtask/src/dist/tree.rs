//! Files to pack, by their paths: the same files give the same archive. Everything belongs to root.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Files with their modes and contents.
#[derive(Default)]
pub struct Tree {
    files: BTreeMap<String, (u32, Vec<u8>)>,
    directories: BTreeMap<String, u32>,
}

impl Tree {
    pub fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.files.insert(path.to_owned(), (mode, bytes));
    }

    /// An empty directory.
    pub fn add_directory(&mut self, path: &str, mode: u32) {
        self.directories.insert(path.to_owned(), mode);
    }

    /// The same files in a folder.
    pub fn below(self, folder: &str) -> Tree {
        let files = self.files.into_iter().map(|(path, file)| (format!("{folder}/{path}"), file)).collect();
        let directories = self.directories.into_iter().map(|(path, mode)| (format!("{folder}/{path}"), mode)).collect();
        Tree { files, directories }
    }

    /// The bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.values().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// A tar archive, directories before what is in them; each path begins with the prefix.
    pub fn tar(&self, prefix: &str) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        for directory in self.parents() {
            let mode = self.directories.get(&directory).copied().unwrap_or(0o755);
            let mut header = header(mode, 0);
            header.set_entry_type(tar::EntryType::Directory);
            builder.append_data(&mut header, format!("{prefix}{directory}/"), std::io::empty())?;
        }
        for (path, (mode, bytes)) in &self.files {
            builder.append_data(&mut header(*mode, bytes.len() as u64), format!("{prefix}{path}"), bytes.as_slice())?;
        }
        Ok(builder.into_inner()?)
    }

    pub fn gzipped(&self, prefix: &str) -> Result<Vec<u8>> {
        gzip(&self.tar(prefix)?)
    }

    /// Every directory, parents first.
    fn parents(&self) -> BTreeSet<String> {
        let mut all: BTreeSet<String> = self.directories.keys().cloned().collect();
        for path in self.files.keys().chain(self.directories.keys()) {
            let separators = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
            all.extend(separators);
        }
        all
    }
}

/// Root's, without a time: the time would make every archive another.
fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Compresses by the system's gzip, without a name and a time: a debug build of a library would take minutes.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(bytes)?;
    let output =
        Command::new("gzip").args(["-9", "-n", "-c"]).arg(file.path()).output().context("gzip cannot be run")?;
    ensure!(output.status.success(), "gzip failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
