//! Pulling an image from a registry.
//!
//! Manifests and blobs are verified against their digests before anything is installed, and no blob is read further
//! than the size in its descriptor. Layers that came from this repository before are not downloaded; an interrupted
//! download resumes where it stopped.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use super::config::{ARCHITECTURE, Descriptor, ImageConfig, Manifest};
use super::digest::Digest;
use super::layer::MAX_LAYER_BYTES;
use super::layers::Source;
use super::reference::Reference;
use super::registry::{Content, Failure, Pace, Registry};
use super::room::Room;
use super::{ImageRecord, ImageStore, Names};
use crate::Error;

/// The layers that are pulled at once, as in containerd.
const CONCURRENT_LAYERS: usize = 3;
/// The number of times that a download is resumed without progress.
const ATTEMPTS: u32 = 5;
/// The least number of bytes that counts as progress; otherwise a registry could close the connection after each byte.
const PROGRESS: u64 = 64 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The credentials of a pull.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PullAuth {
    /// No credentials.
    #[default]
    Anonymous,
    /// A user with a password.
    Basic(String, String),
    /// A token that the registry takes unchanged.
    Token(String),
}

/// Pulls an image from the mirrors of its registry, else from the registry itself. The content is verified in each
/// case.
pub(super) async fn pull(store: &ImageStore, image: &str, auth: PullAuth) -> Result<ImageRecord, Error> {
    let reference = Reference::parse(image)?;
    for mirror in &store.registry(&reference.registry).mirrors {
        match pull_from(store, &reference, mirror, PullAuth::Anonymous).await {
            Ok(record) => return Ok(record),
            Err(error) => tracing::debug!(%error, mirror, "a mirror does not have the image"),
        }
    }
    pull_from(store, &reference, &reference.registry, auth).await
}

/// Pulls manifest, configuration and missing layers, and records the image.
async fn pull_from(
    store: &ImageStore,
    reference: &Reference,
    host: &str,
    auth: PullAuth,
) -> Result<ImageRecord, Error> {
    let registry = Registry::new(store.registry(host), reference, host, auth)?;
    let (manifest, digest) = manifest(&registry, reference).await?;
    let descriptor = manifest.config.as_ref().ok_or_else(|| registry.refuse("not an image manifest"))?;
    let config_bytes = registry.config(descriptor).await?;
    let config = ImageConfig::parse(&config_bytes, manifest.layers.len())?;
    let diff_ids = config.rootfs.diff_ids;
    let registry = &registry;
    let pairs = manifest.layers.into_iter().zip(diff_ids.clone());
    let layers = pairs.map(|(blob, diff_id)| async move { layer(store, registry, &blob, diff_id).await });
    futures::stream::iter(layers).buffer_unordered(CONCURRENT_LAYERS).try_collect::<Vec<()>>().await?;
    let tags = reference.tagged().filter(|_| reference.digest.is_none()).into_iter().collect();
    let digests = vec![format!("{}@{digest}", reference.name())];
    store.record(&config_bytes, Names { tags, digests }, diff_ids, false)
}

/// Returns the manifest for this machine, and the digest of the reference (of the index, if there is one: that is the
/// digest that users pin).
async fn manifest(registry: &Registry, reference: &Reference) -> Result<(Manifest, Digest), Error> {
    let (bytes, digest) = match (&reference.digest, &reference.tag) {
        (Some(wanted), _) => registry.manifest(&wanted.to_string(), Some(wanted)).await?,
        (None, Some(tag)) => registry.manifest(tag, None).await?,
        (None, None) => registry.manifest("latest", None).await?,
    };
    let manifest = Manifest::parse(&bytes)?;
    if manifest.config.is_some() {
        return Ok((manifest, digest));
    }
    let fitting = manifest
        .for_this_machine()
        .ok_or_else(|| registry.refuse(format!("no match for platform in manifest: linux/{ARCHITECTURE}")))?;
    let (bytes, _) = registry.manifest(&fitting.digest.to_string(), Some(&fitting.digest)).await?;
    Ok((Manifest::parse(&bytes)?, digest))
}

/// Downloads to a file, then unpacks; the unpacker verifies the digest of the unpacked content.
async fn layer(store: &ImageStore, registry: &Registry, blob: &Descriptor, diff_id: Digest) -> Result<(), Error> {
    let source = Source { repository: registry.source(), blob: blob.digest };
    if store.has_layer_of(&diff_id, &source) {
        return Ok(());
    }
    let staging = store.staging()?;
    let path = staging.path().join("blob");
    Download::new(registry, blob, &path, staging.path()).await?.run().await?;
    let store = store.clone();
    let installed = tokio::task::spawn_blocking(move || {
        let blob = std::fs::File::open(&path).map_err(Error::file("open", &path))?;
        super::forget_blob(&path);
        store.provide_layer(&diff_id, blob, Some(&source))
    });
    installed.await.map_err(|error| registry.refuse(error.to_string()))??;
    drop(staging);
    Ok(())
}

/// A download of a blob to a file.
struct Download<'a> {
    registry: &'a Registry,
    blob: &'a Descriptor,
    path: &'a Path,
    file: tokio::fs::File,
    room: Room,
    have: u64,
    hasher: Sha256,
}

impl<'a> Download<'a> {
    async fn new(registry: &'a Registry, blob: &'a Descriptor, path: &'a Path, staging: &Path) -> Result<Self, Error> {
        if blob.size > MAX_LAYER_BYTES {
            return Err(registry.refuse(format!("blob {} is larger than a layer may be", blob.digest)));
        }
        let directory = std::fs::File::open(staging).map_err(Error::file("open", staging))?;
        let room = Room::on(&directory).map_err(Error::file("open", staging))?;
        room.fits(blob.size).map_err(|error| registry.refuse(format!("blob {}: {error}", blob.digest)))?;
        let file = tokio::fs::File::create(path).await.map_err(Error::file("create", path))?;
        Ok(Self { registry, blob, path, file, room, have: 0, hasher: Sha256::new() })
    }

    /// Downloads the whole blob. Resumes an interrupted download where it stopped; gives up on a registry that sends
    /// nothing more, or more than the descriptor's size.
    async fn run(mut self) -> Result<(), Error> {
        let mut furthest = 0;
        let mut failures = 0;
        loop {
            let broken = match self.fetch().await {
                Ok(()) if self.have == self.blob.size => return self.finish().await,
                Ok(()) => format!("it ended after {} of {} bytes", self.have, self.blob.size),
                Err(Failure::Connection(broken)) => broken,
                Err(Failure::Refused(error)) => return Err(error),
            };
            failures = if self.have >= furthest + PROGRESS { 1 } else { failures + 1 };
            furthest = furthest.max(self.have);
            if failures > ATTEMPTS {
                return Err(self.registry.refuse(format!("blob {}: {broken}", self.blob.digest)));
            }
            tracing::debug!(blob = %self.blob.digest, have = self.have, broken, "a download broke off");
            tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(failures - 1)).await;
        }
    }

    /// Appends the content that the registry sends from the current offset on.
    async fn fetch(&mut self) -> Result<(), Failure> {
        let mut response = match self.registry.blob(&self.blob.digest, self.have).await? {
            Content::Rest(response) => response,
            Content::Whole(response) => {
                self.restart().await?;
                response
            }
        };
        let mut pace = Pace::new(self.registry.stall_timeout, Instant::now());
        while let Some(chunk) = response.chunk().await.map_err(|error| self.registry.connection_failure(&error))? {
            self.add(&chunk).await?;
            if !pace.is_kept(chunk.len(), Instant::now()) {
                return Err(Failure::Connection("the registry is too slow".into()));
            }
        }
        Ok(())
    }

    async fn add(&mut self, chunk: &[u8]) -> Result<(), Error> {
        let digest = self.blob.digest;
        self.have += chunk.len() as u64;
        if self.have > self.blob.size {
            let size = self.blob.size;
            let longer = format!("blob {digest} is longer than the {size} bytes that the manifest says");
            return Err(self.registry.refuse(longer));
        }
        self.room.take(chunk.len() as u64).map_err(|error| self.registry.refuse(format!("blob {digest}: {error}")))?;
        self.hasher.update(chunk);
        self.file.write_all(chunk).await.map_err(Error::file("write", self.path))
    }

    /// Starts again from the beginning: the registry cannot send a part.
    async fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).await.map_err(Error::file("truncate", self.path))?;
        self.file.seek(std::io::SeekFrom::Start(0)).await.map_err(Error::file("rewind", self.path))?;
        self.have = 0;
        self.hasher = Sha256::new();
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), Error> {
        self.file.flush().await.map_err(Error::file("write", self.path))?;
        let found = Digest::finish(std::mem::take(&mut self.hasher));
        if found != self.blob.digest {
            return Err(self.registry.refuse(format!("blob {} has the content of {found}", self.blob.digest)));
        }
        Ok(())
    }
}
