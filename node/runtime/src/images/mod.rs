//! The image store: images, their configurations and their unpacked layers.
//!
//! One directory serves the daemon and the command line at once: every change happens under a file lock, is prepared in
//! `tmp/`, and becomes visible by a rename after all files that it refers to are on disk. A crash leaves at most
//! garbage in `tmp/`, which is removed when the store is opened after no import can still be using it. Layers are kept
//! unpacked and shared by their digest (`layers`); compressed blobs are not kept, because nothing on a node reads them
//! again.
//!
//! Invariant: a layer is in its place only if its whole content had the digest that names the place, and an image gets
//! a layer only if its archive or its registry brought that content. Naming a digest is not enough: another tenant's
//! private layer may be on the node.

mod archive;
pub(crate) mod challenge;
mod config;
mod digest;
mod index;
mod layer;
mod layers;
mod pull;
mod reference;
pub(crate) mod registry;
mod room;
mod sparse;
mod tarball;
#[cfg(not(test))]
mod unpacker;
pub(crate) mod unpacking;

/// The unpacker of unit tests, which have no binary to start again: it unpacks in the process of the test.
#[cfg(test)]
mod unpacker {
    use super::*;

    pub fn run(_: &ImageStore, blob: File, digest: &Digest, task: unpacking::Task<'_>) -> Result<layer::Size, Error> {
        unpacking::work(blob, digest, task)
    }
}

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use config::{ImageConfig, ProcessConfig};
pub use digest::Digest;
pub use index::ImageRecord;
use index::Index;
pub use pull::PullAuth;
pub use reference::Reference;
pub use registry::RegistryConfig;

use crate::Error;
use crate::paths::{replace, write_durably};

/// The age of an abandoned import or pull: none takes this long.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The interval at which a pull checks that its store still exists.
const REMOVAL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The images on disk. Cheap to open; any number of processes may have it open.
#[derive(Debug, Clone)]
pub struct ImageStore {
    root: PathBuf,
    /// The directory as it was opened: another one may be at the same path later.
    opened: Arc<File>,
    registries: Arc<Vec<RegistryConfig>>,
    /// The binary that is started again to unpack; it must call `reexec` first.
    program: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The names that the archive gives it: tags, else digests.
    pub names: Vec<String>,
    /// The image, with all its names in this store.
    pub image: ImageRecord,
}

/// The names of an added image.
#[derive(Debug, Default)]
struct Names {
    tags: Vec<String>,
    digests: Vec<String>,
}

impl ImageStore {
    /// Opens the store, creating it if it is new. Only root may enter it: layers hold set-user-id programs and devices.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let root = root.into();
        for folder in ["blobs/sha256", "layers", "leases", "tmp", "empty"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).map_err(Error::file("set the mode of", &root))?;
        let opened = Arc::new(File::open(&root).map_err(Error::file("open", &root))?);
        let store = Self { root, opened, registries: Arc::default(), program: "/proc/self/exe".into() };
        store.remove_abandoned();
        store.forget_incomplete()?;
        Ok(store)
    }

    /// Removes the staging folders of crashed imports and pulls.
    fn remove_abandoned(&self) {
        let entries = fs::read_dir(self.root.join("tmp")).into_iter().flatten().flatten();
        for entry in entries {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let abandoned = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED_AFTER));
            if abandoned && let Err(error) = corten_files::remove_tree(&entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "an abandoned import could not be removed");
            }
        }
    }

    /// Removes images from the index that are incomplete: of an older layout, or damaged. They are pulled or imported
    /// again.
    fn forget_incomplete(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let index = self.load()?;
        let is_complete = |image: &ImageRecord| {
            self.blob(&image.id).exists() && image.layers.iter().all(|layer| self.has_layer(layer))
        };
        let (complete, incomplete): (Vec<_>, Vec<_>) = index.images.into_iter().partition(is_complete);
        if incomplete.is_empty() {
            return Ok(());
        }
        for image in &incomplete {
            tracing::warn!(image = %image.id, names = ?image.tags, "an image is incomplete and is forgotten");
        }
        self.save(&Index { images: complete })
    }

    /// Sets how to reach registries that are not plain public ones.
    #[must_use]
    pub fn with_registries(mut self, registries: Vec<RegistryConfig>) -> Self {
        self.registries = Arc::new(registries);
        self
    }

    /// Sets the binary that is started again to unpack layers; it must call `reexec` first. The default is this binary.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    fn registry(&self, host: &str) -> RegistryConfig {
        self.registries.iter().find(|entry| entry.host == host).cloned().unwrap_or_default()
    }

    /// Imports every image of a docker or OCI archive, plain or compressed, and returns them. Imported images are
    /// pinned.
    pub fn import_archive(&self, archive: impl Read) -> Result<Vec<Imported>, Error> {
        let staging = self.staging()?;
        let found = archive::read(archive, staging.path())?;
        if found.is_empty() {
            return Err(Error::Image("the archive holds no image".into()));
        }
        let mut blobs = Blobs::default();
        for path in found.iter().flat_map(|image| &image.layers) {
            *blobs.uses.entry(path.clone()).or_default() += 1;
        }
        found.into_iter().map(|image| self.import(image, &mut blobs)).collect()
    }

    /// Makes a staged image visible: layers, then configuration, then index.
    fn import(&self, staged: archive::StagedImage, blobs: &mut Blobs) -> Result<Imported, Error> {
        let config = ImageConfig::parse(&staged.config, staged.layers.len())?;
        let layers = config.rootfs.diff_ids;
        for (diff_id, path) in layers.iter().zip(&staged.layers) {
            let blob = File::open(path).map_err(Error::file("open", path))?;
            let left = blobs.uses.entry(path.clone()).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                forget_blob(path);
            }
            let proof = (*diff_id, path.clone());
            if !blobs.proven.contains(&proof) || !self.has_layer(diff_id) {
                self.provide_layer(diff_id, blob, None)?;
                blobs.proven.insert(proof);
            }
        }
        let names = if staged.tags.is_empty() { staged.digests.clone() } else { staged.tags.clone() };
        let added = Names { tags: staged.tags, digests: staged.digests };
        let image = self.record(&staged.config, added, layers, true)?;
        Ok(Imported { names, image })
    }

    /// Pulls an image from its registry and returns it. Fails when the store is removed during the pull.
    pub async fn pull(&self, reference: &str, auth: PullAuth) -> Result<ImageRecord, Error> {
        let pulled = tokio::select! {
            pulled = pull::pull(self, reference, auth) => pulled,
            removed = self.removal() => Err(removed),
        };
        // An error that is caused by the removal of the store reports that.
        pulled.map_err(|error| self.require().err().unwrap_or(error))
    }

    /// Waits until the store is removed.
    async fn removal(&self) -> Error {
        loop {
            tokio::time::sleep(REMOVAL_CHECK_INTERVAL).await;
            if let Err(error) = self.require() {
                return error;
            }
        }
    }

    /// Fails if the directory that was opened no longer exists.
    fn require(&self) -> Result<(), Error> {
        let opened = self.opened.metadata().map_err(Error::file("look at", &self.root))?;
        match fs::metadata(&self.root) {
            Ok(found) if found.ino() == opened.ino() && found.dev() == opened.dev() => Ok(()),
            _ => Err(Error::State(format!("the image store {} was removed meanwhile", self.root.display()))),
        }
    }

    /// Returns every image.
    pub fn list(&self) -> Result<Vec<ImageRecord>, Error> {
        Ok(self.load()?.images)
    }

    /// Returns the image of a name, a digest or an id.
    pub fn find(&self, image: &str) -> Result<Option<ImageRecord>, Error> {
        Ok(self.load()?.find(image).cloned())
    }

    /// Removes an image and the layers that only it needs; returns the removed image. Layers that a container uses, by
    /// its lease or because they are in `in_use`, stay until a later removal.
    pub fn remove(&self, image: &str, in_use: &BTreeSet<Digest>) -> Result<Option<ImageRecord>, Error> {
        let _lock = self.lock()?;
        let mut index = self.load()?;
        let Some(removed) = index.remove(image) else { return Ok(None) };
        self.save(&index)?;
        self.remove_blob(&removed.id);
        self.collect_layers(&index, in_use)?;
        Ok(Some(removed))
    }

    /// Keeps the layers of a container until `release`, even if their images are removed.
    pub(crate) fn lease(&self, container: &str, layers: &[Digest]) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.require_layers(layers)?;
        let lines: Vec<String> = layers.iter().map(Digest::to_string).collect();
        replace(&self.root.join("leases").join(container), lines.join("\n").as_bytes())
    }

    /// Releases the layers of a container.
    pub(crate) fn release(&self, container: &str) -> Result<(), Error> {
        let path = self.root.join("leases").join(container);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
            _ => Ok(()),
        }
    }

    fn leased_layers(&self) -> Result<BTreeSet<Digest>, Error> {
        let folder = self.root.join("leases");
        let mut layers = BTreeSet::new();
        for entry in fs::read_dir(&folder).map_err(Error::file("list", &folder))?.flatten() {
            // A lease that is released right now needs nothing any more.
            let content = fs::read_to_string(entry.path()).unwrap_or_default();
            layers.extend(content.lines().filter_map(|line| line.parse::<Digest>().ok()));
        }
        Ok(layers)
    }

    /// Returns the configuration of an image.
    pub(crate) fn config(&self, id: &Digest) -> Result<ImageConfig, Error> {
        let path = self.blob(id);
        let bytes = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Image(format!("configuration of {id}: {error}")))
    }

    /// Returns the bytes and inodes of all images.
    pub(crate) fn usage(&self) -> Result<layer::Size, Error> {
        let mut total = layer::Size::default();
        for layer in self.load()?.layers() {
            let size = self.layer_size(&layer);
            total.bytes += size.bytes;
            total.inodes += size.inodes;
        }
        Ok(total)
    }

    /// Adds an image whose layers exist, or adds names to it.
    fn record(&self, config: &[u8], names: Names, layers: Vec<Digest>, pinned: bool) -> Result<ImageRecord, Error> {
        let id = Digest::of(config);
        let _lock = self.lock()?;
        self.require_layers(&layers)?;
        write_durably(&self.blob(&id), config)?;
        let size = layers.iter().map(|layer| self.layer_size(layer).bytes).sum();
        let mut index = self.load()?;
        index.add(ImageRecord { id, tags: names.tags, digests: names.digests, size, layers, pinned });
        self.save(&index)?;
        index.find(&id.to_string()).cloned().ok_or_else(|| Error::NotFound { kind: "image", id: id.to_string() })
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    fn remove_blob(&self, digest: &Digest) {
        if let Err(error) = fs::remove_file(self.blob(digest)) {
            tracing::warn!(%digest, %error, "an image's configuration could not be removed");
        }
    }

    fn load(&self) -> Result<Index, Error> {
        let path = self.root.join("index.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| Error::Image(format!("image index: {error}"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Index::default()),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    fn save(&self, index: &Index) -> Result<(), Error> {
        let bytes = serde_json::to_vec(index).map_err(|error| Error::Image(format!("image index: {error}")))?;
        write_durably(&self.root.join("index.json"), &bytes)
    }

    /// Waits for the lock of the index, which is held for milliseconds.
    fn lock(&self) -> Result<File, Error> {
        let path = self.root.join("lock");
        let file = File::create(&path).map_err(Error::file("create", &path))?;
        file.lock().map_err(Error::file("lock", &path))?;
        Ok(file)
    }

    fn staging(&self) -> Result<Staging, Error> {
        Staging::create(&self.root.join("tmp"))
    }
}

/// The layers' blobs of an archive.
#[derive(Default)]
struct Blobs {
    /// How often each one is still needed.
    uses: BTreeMap<PathBuf, usize>,
    /// Those that had the content of a layer: images that share it need not prove it again.
    proven: BTreeSet<(Digest, PathBuf)>,
}

/// Removes the name of an open blob before its last use, so that it is not written to disk with its layer.
fn forget_blob(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a blob stays until its import ends");
    }
}

/// A folder in `tmp/` that is removed when it goes out of use, moved away or not.
struct Staging(PathBuf);

impl Staging {
    fn create(parent: &Path) -> Result<Self, Error> {
        let path = parent.join(uuid::Uuid::new_v4().simple().to_string());
        fs::create_dir(&path).map_err(Error::file("create", &path))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = corten_files::remove_tree(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a docker archive with one image of one layer.
    fn archive(tag: &str, file: &str) -> Vec<u8> {
        let entry = |builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, content).expect("append");
        };
        let mut layer = tar::Builder::new(Vec::new());
        entry(&mut layer, file, b"content");
        let layer = layer.into_inner().expect("a layer");
        let config = serde_json::json!({"rootfs": {"diff_ids": [Digest::of(&layer)]}}).to_string();
        let manifest = serde_json::json!([{"Config": "c.json", "RepoTags": [tag], "Layers": ["l/layer.tar"]}]);
        let mut image = tar::Builder::new(Vec::new());
        entry(&mut image, "l/layer.tar", &layer);
        entry(&mut image, "c.json", config.as_bytes());
        entry(&mut image, "manifest.json", manifest.to_string().as_bytes());
        image.into_inner().expect("an archive")
    }

    fn layer_count(store: &ImageStore) -> usize {
        fs::read_dir(store.layers_folder()).expect("layers").count()
    }

    #[test]
    fn a_removed_image_leaves_shared_layers() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: unpacking a layer changes owners, which needs root");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = ImageStore::open(folder.path()).expect("a store");
        let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut compressed, &archive("one", "file")).expect("compress");
        let compressed = compressed.finish().expect("compress");
        let first = store.import_archive(compressed.as_slice()).expect("import").remove(0).image;
        assert_eq!(first.tags, ["docker.io/library/one:latest"]);
        assert!(first.pinned && first.size == 7);
        let again = store.import_archive(archive("two", "file").as_slice()).expect("import").remove(0);
        assert_eq!(again.names, ["docker.io/library/two:latest"], "the names of the archive alone");
        let again = again.image;
        assert_eq!((again.id == first.id, again.tags.len(), layer_count(&store)), (true, 2, 1));
        store.import_archive(archive("other", "another").as_slice()).expect("import");
        assert_eq!((store.list().expect("list").len(), layer_count(&store)), (2, 2));

        store.lease("container", &first.layers).expect("lease");
        assert!(store.remove("one", &BTreeSet::new()).expect("remove").is_some());
        assert_eq!(layer_count(&store), 2, "a container stands on the layer");
        store.release("container").expect("release");
        assert!(store.remove("other", &BTreeSet::new()).expect("remove").is_some());
        assert_eq!(layer_count(&store), 0);
        assert!(store.remove("other", &BTreeSet::new()).expect("remove").is_none());
        assert_eq!(fs::read_dir(folder.path().join("tmp")).expect("tmp").count(), 0, "nothing is left behind");

        let old = folder.path().join("tmp/old");
        let new = folder.path().join("tmp/new");
        for path in [&old, &new] {
            fs::create_dir(path).expect("a folder");
        }
        let long_ago = std::time::SystemTime::now() - 2 * ABANDONED_AFTER;
        fs::File::open(&old).expect("open").set_modified(long_ago).expect("make it old");
        ImageStore::open(folder.path()).expect("open again");
        assert!(!old.exists() && new.exists(), "only the abandoned one is removed");
    }

    #[test]
    fn a_layer_with_another_content_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = ImageStore::open(folder.path()).expect("a store");
        let mut image = archive("bad", "file");
        let position = image.windows(7).position(|bytes| bytes == b"content").expect("the file");
        image[position] = b'C';
        if nix::unistd::geteuid().is_root() {
            let error = store.import_archive(image.as_slice()).expect_err("a wrong digest").to_string();
            assert!(error.contains("has the content of"), "{error}");
        }
        assert!(store.import_archive(&b"no archive at all"[..]).is_err());
        assert!(store.list().expect("list").is_empty() && layer_count(&store) == 0);
    }

    #[test]
    fn naming_the_digest_of_a_known_layer_does_not_give_it() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: unpacking a layer changes owners, which needs root");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = ImageStore::open(folder.path()).expect("a store");
        let private = store.import_archive(archive("private", "secret").as_slice()).expect("import").remove(0).image;
        // The same configuration, with another layer: one byte of the file differs.
        let mut forged = archive("forged", "secret");
        let position = forged.windows(7).position(|bytes| bytes == b"content").expect("the file");
        forged[position] = b'C';
        let error = store.import_archive(forged.as_slice()).expect_err("no proof").to_string();
        assert!(error.contains("has the content of"), "{error}");
        assert_eq!(store.list().expect("list"), std::slice::from_ref(&private));

        let source = layers::Source { repository: "host/team/app".into(), blob: Digest::of(b"blob") };
        let layer = private.layers[0];
        assert!(!store.has_layer_of(&layer, &source));
        for _ in 0..2 {
            let blob = folder.path().join("blob");
            fs::write(&blob, b"another content").expect("a blob");
            let blob = fs::File::open(blob).expect("open");
            assert!(store.provide_layer(&layer, blob, Some(&source)).is_err());
            assert!(!store.has_layer_of(&layer, &source), "a false blob is no source");
        }
    }

    #[test]
    fn an_image_without_its_layers_is_forgotten() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: unpacking a layer changes owners, which needs root");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = ImageStore::open(folder.path()).expect("a store");
        let image = store.import_archive(archive("one", "file").as_slice()).expect("import").remove(0).image;
        store.import_archive(archive("two", "other").as_slice()).expect("import");
        corten_files::remove_tree(&store.layers_folder().join(image.layers[0].hex())).expect("a damaged store");
        let opened = ImageStore::open(folder.path()).expect("open again");
        let names: Vec<_> = opened.list().expect("list").into_iter().flat_map(|image| image.tags).collect();
        assert_eq!(names, ["docker.io/library/two:latest"]);
        assert!(opened.require().is_ok());
        corten_files::remove_tree(folder.path()).expect("remove the store");
        assert!(opened.require().expect_err("gone").to_string().contains("was removed meanwhile"));
        assert!(opened.import_archive(archive("three", "file").as_slice()).is_err());
        assert!(!folder.path().exists(), "a removed store is not made again");
    }
}
