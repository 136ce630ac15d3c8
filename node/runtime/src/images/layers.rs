//! The unpacked layers of the image store, one folder each, named by the whole digest of the layer.
//!
//! A folder holds the files (`d`), their disk usage (`size`), and the repositories that the layer came from
//! (`sources`). Invariant: a folder gets its name only after all of it was verified and is on disk.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;

use super::digest::Digest;
use super::index::Index;
use super::unpacking::Task;
use super::{ImageStore, layer, unpacker};
use crate::Error;
use crate::paths::{sync_directory, write_atomically};

/// The most sources that a layer remembers; a pull from a forgotten one downloads the layer again.
const MAX_SOURCES: usize = 64;

/// A repository that a layer came from, and the blob that held it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// `registry/repository`.
    pub repository: String,
    /// The digest of the blob, compressed as it came.
    pub blob: Digest,
}

impl Source {
    fn line(&self) -> String {
        format!("{} {}", self.repository, self.blob)
    }
}

impl ImageStore {
    /// An empty layer, by its name in overlay mounts: overlayfs needs two layers where none is writable, and not the
    /// same one twice.
    pub(crate) const EMPTY_LAYER: &str = "../empty";

    /// Returns the folder that holds all layers; layers are named relative to it in overlay mounts.
    pub(crate) fn layers_folder(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// Returns the path of a layer's files, relative to the folder of layers.
    pub(crate) fn layer_name(diff_id: &Digest) -> String {
        format!("{}/d", diff_id.hex())
    }

    fn layer_folder(&self, diff_id: &Digest) -> PathBuf {
        self.layers_folder().join(diff_id.hex())
    }

    pub(super) fn has_layer(&self, diff_id: &Digest) -> bool {
        self.layer_folder(diff_id).is_dir()
    }

    /// Fails if a layer is missing. Called under the lock: the layers stay for the record that needs them.
    pub(super) fn require_layers(&self, layers: &[Digest]) -> Result<(), Error> {
        match layers.iter().find(|layer| !self.has_layer(layer)) {
            Some(layer) => Err(Error::Image(format!("layer {layer} was removed meanwhile"))),
            None => Ok(()),
        }
    }

    /// Installs a layer from its blob. If the layer exists already, the blob still has to prove that it has the same
    /// content: a configuration may name any digest.
    pub(super) fn provide_layer(&self, diff_id: &Digest, blob: File, source: Option<&Source>) -> Result<(), Error> {
        if self.has_layer(diff_id) {
            unpacker::run(self, blob, diff_id, Task::Verify)?;
        } else {
            self.install_layer(diff_id, blob)?;
        }
        match source {
            Some(source) => self.remember_source(diff_id, source),
            None => Ok(()),
        }
    }

    /// Unpacks a layer into a staging folder, verifies it, and moves it into place.
    fn install_layer(&self, diff_id: &Digest, blob: File) -> Result<(), Error> {
        let staging = self.staging()?;
        let files = staging.path().join("d");
        fs::create_dir(&files).map_err(Error::file("create", &files))?;
        let size = unpacker::run(self, blob, diff_id, Task::Unpack(&files))?;
        let sizes = format!("{} {}", size.bytes, size.inodes);
        let path = staging.path().join("size");
        fs::write(&path, sizes).map_err(Error::file("write", path))?;
        // One sync for all files: one for each would take as long as the unpacking.
        let folder = File::open(staging.path()).map_err(Error::file("open", staging.path()))?;
        rustix::fs::syncfs(&folder).map_err(Error::system("sync a layer"))?;
        let place = self.layer_folder(diff_id);
        match fs::rename(staging.path(), &place) {
            // Another process was faster with the same layer.
            Err(_) if place.is_dir() => Ok(()),
            renamed => renamed.map_err(Error::file("move to", &place)),
        }?;
        sync_directory(&self.layers_folder())
    }

    /// Reports whether the layer exists and came from this source before.
    pub(super) fn has_layer_of(&self, diff_id: &Digest, source: &Source) -> bool {
        let line = source.line();
        self.sources(diff_id).contains(&line)
    }

    fn sources(&self, diff_id: &Digest) -> Vec<String> {
        let content = fs::read_to_string(self.layer_folder(diff_id).join("sources")).unwrap_or_default();
        content.lines().map(str::to_owned).collect()
    }

    fn remember_source(&self, diff_id: &Digest, source: &Source) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut lines = self.sources(diff_id);
        let line = source.line();
        lines.retain(|known| *known != line);
        lines.push(line);
        let first = lines.len().saturating_sub(MAX_SOURCES);
        write_atomically(&self.layer_folder(diff_id).join("sources"), lines[first..].join("\n").as_bytes())
    }

    /// Returns the disk usage of a layer, as counted when it was unpacked.
    pub(super) fn layer_size(&self, diff_id: &Digest) -> layer::Size {
        let content = fs::read_to_string(self.layer_folder(diff_id).join("size")).unwrap_or_default();
        let mut numbers = content.split_whitespace().map(|number| number.parse().unwrap_or(0));
        layer::Size { bytes: numbers.next().unwrap_or(0), inodes: numbers.next().unwrap_or(0) }
    }

    /// Removes the layers that neither an image nor a container needs.
    pub(super) fn collect_layers(&self, index: &Index, in_use: &BTreeSet<Digest>) -> Result<(), Error> {
        let leased = self.leased_layers()?;
        let kept = leased.iter().chain(in_use).copied();
        let needed: BTreeSet<String> = index.layers().into_iter().chain(kept).map(|layer| layer.hex()).collect();
        let folder = self.layers_folder();
        for entry in fs::read_dir(&folder).map_err(Error::file("list", &folder))? {
            let entry = entry.map_err(Error::file("list", &folder))?;
            if !entry.file_name().to_str().is_some_and(|name| needed.contains(name)) {
                // A rename first: a crash in the middle must not leave half a layer in its place.
                let trash = self.staging()?;
                let target = trash.path().join("layer");
                fs::rename(entry.path(), &target).map_err(Error::file("remove", entry.path()))?;
            }
        }
        Ok(())
    }
}
