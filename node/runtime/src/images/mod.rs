//! The image store: what images exist, their configurations and their unpacked layers.
//!
//! One directory serves the daemon and the command line at once: every change happens under a file
//! lock, is prepared in `tmp/`, and becomes visible by a rename. A crash leaves at most garbage in
//! `tmp/`, which a later opening removes when nobody can be working on it any more. Layers are kept
//! unpacked and shared by their digest; compressed blobs are not kept, because nothing on a node reads
//! them again.

mod archive;
mod config;
mod index;
mod layer;
mod pull;
mod reference;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub(crate) use config::{ImageConfig, ProcessConfig};
pub use index::ImageRecord;
use index::Index;
pub use pull::{PullAuth, RegistryConfig};
pub use reference::Reference;

use crate::Error;
use crate::paths::write_atomically;

/// No import or pull takes this long.
const ABANDONED_AFTER: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Images on disk. Cheap to open; any number of processes may have it open.
#[derive(Debug, Clone)]
pub struct ImageStore {
    root: PathBuf,
    registries: std::sync::Arc<Vec<RegistryConfig>>,
}

impl ImageStore {
    /// Opens the store, creating it if it is new.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let store = Self { root: root.into(), registries: std::sync::Arc::default() };
        for folder in ["blobs/sha256", "layers", "leases", "tmp", "empty"] {
            let path = store.root.join(folder);
            fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        store.remove_abandoned();
        Ok(store)
    }

    /// Removes what crashed imports and pulls left behind.
    fn remove_abandoned(&self) {
        let entries = fs::read_dir(self.root.join("tmp")).into_iter().flatten().flatten();
        for entry in entries {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let abandoned = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED_AFTER));
            if abandoned && let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "an abandoned import could not be removed");
            }
        }
    }

    /// How to reach registries that are not plain public ones.
    #[must_use]
    pub fn with_registries(mut self, registries: Vec<RegistryConfig>) -> Self {
        self.registries = std::sync::Arc::new(registries);
        self
    }

    fn registry(&self, host: &str) -> RegistryConfig {
        self.registries.iter().find(|entry| entry.host == host).cloned().unwrap_or_default()
    }

    /// Imports every image of a docker or OCI archive, plain or compressed. Imported images are
    /// pinned. Returns what was imported.
    pub fn import_archive(&self, archive: impl Read) -> Result<Vec<ImageRecord>, Error> {
        let staging = self.staging()?;
        let found = archive::read(archive, staging.path())?;
        if found.is_empty() {
            return Err(Error::Image("the archive holds no image".into()));
        }
        found.into_iter().map(|image| self.install(image, true)).collect()
    }

    /// Pulls an image from its registry and returns it.
    pub async fn pull(&self, reference: &str, auth: PullAuth) -> Result<ImageRecord, Error> {
        pull::pull(self, reference, auth).await
    }

    /// Every image.
    pub fn list(&self) -> Result<Vec<ImageRecord>, Error> {
        Ok(self.load()?.images)
    }

    /// The image that a name, a digest or an id leads to.
    pub fn find(&self, image: &str) -> Result<Option<ImageRecord>, Error> {
        Ok(self.load()?.find(image).cloned())
    }

    /// Removes an image and the layers that only it needs. Layers that a container stands on, by its
    /// lease or because they are given in `in_use`, stay until a later removal. Returns the removed
    /// image.
    pub fn remove(&self, image: &str, in_use: &BTreeSet<String>) -> Result<Option<ImageRecord>, Error> {
        let _lock = self.lock()?;
        let mut index = self.load()?;
        let Some(removed) = index.remove(image) else { return Ok(None) };
        self.save(&index)?;
        self.remove_blob(&removed.id);
        self.collect_layers(&index, in_use)?;
        Ok(Some(removed))
    }

    /// Keeps the layers of a container, whoever removes images meanwhile, until `release`.
    pub(crate) fn lease(&self, container: &str, layers: &[String]) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.require_layers(layers)?;
        write_atomically(&self.root.join("leases").join(container), layers.join("\n").as_bytes())
    }

    /// Gives the layers of a container up.
    pub(crate) fn release(&self, container: &str) -> Result<(), Error> {
        let path = self.root.join("leases").join(container);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
            _ => Ok(()),
        }
    }

    fn leased_layers(&self) -> Result<BTreeSet<String>, Error> {
        let folder = self.root.join("leases");
        let mut layers = BTreeSet::new();
        for entry in fs::read_dir(&folder).map_err(Error::file("list", &folder))?.flatten() {
            // A lease that is released right now needs nothing any more.
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            layers.extend(text.lines().map(str::to_string));
        }
        Ok(layers)
    }

    /// Under the lock: what is there now stays there for whoever records that he needs it.
    fn require_layers(&self, layers: &[String]) -> Result<(), Error> {
        match layers.iter().find(|layer| !self.has_layer(layer)) {
            Some(layer) => Err(Error::Image(format!("layer {layer} was removed meanwhile"))),
            None => Ok(()),
        }
    }

    /// The configuration of an image.
    pub(crate) fn config(&self, id: &str) -> Result<ImageConfig, Error> {
        let path = self.blob(id);
        let bytes = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Image(format!("configuration of {id}: {error}")))
    }

    /// The folder that holds all layers; layers are named relative to it in overlay mounts.
    pub(crate) fn layers_folder(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// A layer that holds nothing, by its name in overlay mounts: overlayfs wants two where none is writable, and not the
    /// same one twice.
    pub(crate) const EMPTY_LAYER: &str = "../empty";

    /// Where a layer's files are, relative to the folder of layers. Short, because the options of a
    /// mount hold 4096 bytes for as many as 127 layers.
    pub(crate) fn layer_name(diff_id: &str) -> String {
        format!("{}/d", short(diff_id))
    }

    /// Bytes and inodes that images take.
    pub(crate) fn usage(&self) -> Result<layer::Size, Error> {
        let mut seen = BTreeSet::new();
        let mut total = layer::Size::default();
        for layer in self.load()?.images.iter().flat_map(|image| &image.layers) {
            if seen.insert(layer.clone()) {
                let size = self.layer_sizes(layer);
                total.bytes += size.bytes;
                total.inodes += size.inodes;
            }
        }
        Ok(total)
    }

    /// Makes a staged image visible: layers, then configuration, then index.
    fn install(&self, image: archive::StagedImage, pinned: bool) -> Result<ImageRecord, Error> {
        let config: ImageConfig = serde_json::from_slice(&image.config)
            .map_err(|error| Error::Image(format!("malformed configuration: {error}")))?;
        if config.rootfs.diff_ids.len() != image.layers.len() {
            return Err(Error::Image("configuration and manifest name different layers".into()));
        }
        let mut size = 0;
        for (diff_id, blob) in config.rootfs.diff_ids.iter().zip(&image.layers) {
            if !self.has_layer(diff_id) {
                let blob = File::open(blob).map_err(Error::file("open", blob))?;
                self.install_layer(diff_id, blob)?;
            }
            size += self.layer_size(diff_id);
        }
        self.record(&image.config, image.tags, image.digests, config.rootfs.diff_ids, size, pinned)
    }

    fn record(
        &self,
        config: &[u8],
        tags: Vec<String>,
        digests: Vec<String>,
        layers: Vec<String>,
        size: u64,
        pinned: bool,
    ) -> Result<ImageRecord, Error> {
        let id = sha256(config);
        let _lock = self.lock()?;
        self.require_layers(&layers)?;
        write_atomically(&self.blob(&id), config)?;
        let mut index = self.load()?;
        index.add(ImageRecord { id: id.clone(), tags, digests, size, layers, pinned });
        self.save(&index)?;
        index.find(&id).cloned().ok_or(Error::NotFound { kind: "image", id })
    }

    fn has_layer(&self, diff_id: &str) -> bool {
        self.layers_folder().join(short(diff_id)).exists()
    }

    /// Unpacks a layer beside its place, verifies it, and moves it there.
    fn install_layer(&self, diff_id: &str, blob: impl Read) -> Result<(), Error> {
        if !reference::is_digest(diff_id) {
            return Err(Error::Image(format!("unknown digest {diff_id:?}")));
        }
        let staging = self.staging()?;
        let files = staging.path().join("d");
        fs::create_dir(&files).map_err(Error::file("create", &files))?;
        let mut hashed = Hashing { inner: archive::decompress(blob)?, hasher: Sha256::new() };
        let size = layer::unpack(&mut hashed, &files)?;
        std::io::copy(&mut hashed, &mut std::io::sink()).map_err(Error::system("read the end of a layer"))?;
        let digest = format!("sha256:{:x}", hashed.hasher.finalize());
        if digest != diff_id {
            return Err(Error::Image(format!("layer {diff_id} has the content of {digest}")));
        }
        let sizes = format!("{} {}", size.bytes, size.inodes);
        write_atomically(&staging.path().join("size"), sizes.as_bytes())?;
        let place = self.layers_folder().join(short(diff_id));
        match fs::rename(staging.path(), &place) {
            // Another process was faster with the same layer.
            Err(_) if place.exists() => Ok(()),
            renamed => renamed.map_err(Error::file("move to", &place)),
        }
    }

    fn layer_size(&self, diff_id: &str) -> u64 {
        self.layer_sizes(diff_id).bytes
    }

    /// What a layer takes, as it was counted when it was unpacked.
    fn layer_sizes(&self, diff_id: &str) -> layer::Size {
        let path = self.layers_folder().join(short(diff_id)).join("size");
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or(0));
        layer::Size { bytes: numbers.next().unwrap_or(0), inodes: numbers.next().unwrap_or(0) }
    }

    /// Removes the layers that neither an image nor a container needs.
    fn collect_layers(&self, index: &Index, in_use: &BTreeSet<String>) -> Result<(), Error> {
        let leased = self.leased_layers()?;
        let kept = leased.iter().chain(in_use).map(String::as_str);
        let needed: BTreeSet<&str> = index.layers().into_iter().chain(kept).map(short).collect();
        let folder = self.layers_folder();
        for entry in fs::read_dir(&folder).map_err(Error::file("list", &folder))? {
            let entry = entry.map_err(Error::file("list", &folder))?;
            if !entry.file_name().to_str().is_some_and(|name| needed.contains(name)) {
                // A rename first: a crash in the middle must not leave half a layer in its place.
                let doomed = self.staging()?;
                let target = doomed.path().join("layer");
                fs::rename(entry.path(), &target).map_err(Error::file("remove", entry.path()))?;
            }
        }
        Ok(())
    }

    fn blob(&self, digest: &str) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    fn remove_blob(&self, digest: &str) {
        if let Err(error) = fs::remove_file(self.blob(digest)) {
            tracing::warn!(digest, %error, "an image's configuration could not be removed");
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
        write_atomically(&self.root.join("index.json"), &bytes)
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
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The first 96 bits of a digest name a layer's folder.
fn short(digest: &str) -> &str {
    let hex = digest.trim_start_matches("sha256:");
    &hex[..hex.len().min(24)]
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Hashes what passes through.
struct Hashing<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A docker archive with one image of one layer.
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
        let config = serde_json::json!({"rootfs": {"diff_ids": [sha256(&layer)]}}).to_string();
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
    fn images_come_and_go_and_shared_layers_stay() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: unpacking a layer changes owners, which needs root");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = ImageStore::open(folder.path()).expect("a store");
        let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut compressed, &archive("one", "file")).expect("compress");
        let compressed = compressed.finish().expect("compress");
        let first = store.import_archive(compressed.as_slice()).expect("import").remove(0);
        assert_eq!(first.tags, ["docker.io/library/one:latest"]);
        assert!(first.pinned && first.size == 7);
        let again = store.import_archive(archive("two", "file").as_slice()).expect("import").remove(0);
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

        let (old, new) = (folder.path().join("tmp/old"), folder.path().join("tmp/new"));
        for path in [&old, &new] {
            fs::create_dir(path).expect("a folder");
        }
        let long_ago = std::time::SystemTime::now() - 2 * ABANDONED_AFTER;
        fs::File::open(&old).expect("open").set_modified(long_ago).expect("make it old");
        ImageStore::open(folder.path()).expect("open again");
        assert!(!old.exists() && new.exists(), "only what is abandoned is removed");
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
}
