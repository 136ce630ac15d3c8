//! A repository: opened by its key; volumes are backed up to it and restored from it.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use corten_backup::{Derivation, Keys, Secret};
use futures::{StreamExt, TryStreamExt, stream};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::{CHUNK_BYTES, chunk_count, read_chunk, write_chunk};
use crate::manifest::{Header, MOST_BYTES, MOST_MANIFEST, Manifest, is_backup_id};
use crate::objects::Objects;
use crate::sealed::{self, ChunkId};
use crate::session::{Kind, Session};
use crate::vault::{Clock, Owner, Vault};

const FORMAT: &str = "corten-volume-backups";
const VERSION: u32 = 1;
const CONFIG: &str = "repository";
const MOST_CONFIG: usize = 64 << 10;
/// The directory of manifests.
pub const BACKUPS: &str = "backups/";
/// The directory of chunks.
pub const CHUNKS: &str = "chunks/";
/// The most backups of a repository that are listed.
pub const MOST_BACKUPS: usize = 100_000;
/// The chunks that are handled at a time.
const PARALLEL: usize = 4;

/// The description of a repository, which anyone may read.
#[derive(Serialize, Deserialize)]
struct Config {
    format: String,
    version: u32,
    id: String,
    derivation: Derivation,
    salt: String,
    /// Distinguishes a wrong secret from a damaged repository.
    check: String,
}

/// An opened repository.
pub struct Repository {
    pub(crate) vault: Vault,
    pub id: String,
}

/// The outcome of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The bytes of the volume that are not zero, in whole chunks.
    pub data: u64,
    /// The bytes that the repository lacked, as they were sent.
    pub sent: u64,
}

/// One chunk on its way into the repository.
struct Stored {
    id: Option<ChunkId>,
    data: u64,
    sent: u64,
}

impl Repository {
    /// Opens the repository at a place; makes one where nothing is.
    pub async fn open(objects: Arc<dyn Objects>, secret: &Secret, clock: Clock, owner: Owner) -> Result<Repository> {
        if let Some(bytes) = objects.get(CONFIG, MOST_CONFIG).await? {
            return Repository::unlock(objects, secret, clock, owner, &bytes).await;
        }
        if let Some(name) = objects.list("", 1).await?.first() {
            let message = format!("the place is neither empty nor a repository: it holds {name}");
            return Err(Error::Foreign(message));
        }
        let config = new_config(secret).await?;
        let encoded = serde_json::to_vec(&config).map_err(|error| Error::Invalid(error.to_string()))?;
        objects.put(CONFIG, encoded.into()).await?;
        objects.flush().await?;
        // Of two nodes that make the repository at once, the last one has made it.
        let bytes = objects.get(CONFIG, MOST_CONFIG).await?.unwrap_or_default();
        Repository::unlock(objects, secret, clock, owner, &bytes).await
    }

    async fn unlock(
        objects: Arc<dyn Objects>,
        secret: &Secret,
        clock: Clock,
        owner: Owner,
        bytes: &[u8],
    ) -> Result<Repository> {
        let config: Config = serde_json::from_slice(bytes)
            .map_err(|error| Error::Foreign(format!("the place holds no repository of volume backups: {error}")))?;
        if config.format != FORMAT {
            return Err(Error::Foreign(format!("the place holds a repository of the format {}", config.format)));
        }
        if config.version > VERSION {
            return Err(Error::NewerFormat { found: config.version, known: VERSION });
        }
        let salt = from_hex(&config.salt).ok_or_else(|| Error::damaged(CONFIG, "its salt is not hexadecimal"))?;
        let keys = derived(secret, config.derivation, salt, config.id.clone()).await?;
        match to_hex(&keys.check) == config.check {
            true => Ok(Repository { vault: Vault { objects, keys: Arc::new(keys), owner, clock }, id: config.id }),
            false => Err(Error::WrongSecret),
        }
    }

    /// Backs a volume up under an id. A backup that exists is left as it is. `parents` are earlier backups that probably
    /// share chunks; the ones that exist spare questions.
    pub async fn back_up(&self, id: &str, header: Header, image: File, parents: &[String]) -> Result<Sent> {
        let name = backup_name(id)?;
        if header.bytes > MOST_BYTES {
            return Err(Error::Invalid(format!("a volume of more than {MOST_BYTES} bytes cannot be backed up")));
        }
        let session = Session::begin(&self.vault, Kind::Use).await?;
        let done = self.send(&session, &name, header, image, parents).await;
        session.end().await;
        done
    }

    async fn send(
        &self,
        session: &Session<'_>,
        name: &str,
        header: Header,
        image: File,
        parents: &[String],
    ) -> Result<Sent> {
        if self.vault.objects.exists(name).await? {
            return Ok(Sent::default());
        }
        let known = Arc::new(self.known(parents).await);
        let image = Arc::new(image);
        let count = chunk_count(header.bytes);
        let bytes = header.bytes;
        let stored: Vec<Stored> = stream::iter(0..count)
            .map(|index| self.store(session, image.clone(), bytes, index, known.clone()))
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        let sent =
            Sent { data: stored.iter().map(|one| one.data).sum(), sent: stored.iter().map(|one| one.sent).sum() };
        let manifest = Manifest { header, chunks: stored.into_iter().map(|one| one.id).collect() };
        let sealed = sealed::seal(&self.vault.keys, name, &manifest.encode()?)?;
        let length = sealed.len() as u64;
        self.vault.objects.flush().await?;
        session.check().await?;
        self.vault.objects.put(name, sealed).await?;
        self.vault.objects.flush().await?;
        if let Err(error) = session.check().await {
            // A prune may have run beside the last step, and have deleted chunks that this manifest names.
            self.vault.objects.delete(name).await?;
            return Err(error);
        }
        Ok(Sent { sent: sent.sent + length, ..sent })
    }

    /// Returns the chunks of earlier backups: prune leaves them alone as long as their manifests exist.
    async fn known(&self, parents: &[String]) -> HashSet<ChunkId> {
        let mut known = HashSet::new();
        for parent in parents {
            match self.manifest(parent).await {
                Ok(manifest) => known.extend(manifest.chunks.into_iter().flatten()),
                Err(error) => tracing::debug!(%error, parent, "an earlier backup is no help"),
            }
        }
        known
    }

    /// Stores one chunk of a volume, unless the repository has it.
    async fn store(
        &self,
        session: &Session<'_>,
        image: Arc<File>,
        bytes: u64,
        index: u64,
        known: Arc<HashSet<ChunkId>>,
    ) -> Result<Stored> {
        session.renew().await?;
        let keys = self.vault.keys.clone();
        let read = move || {
            let chunk = read_chunk(&image, bytes, index)?;
            Ok(chunk.map(|chunk| (sealed::chunk_id(&keys, &chunk), chunk)))
        };
        let Some((id, chunk)) = blocking(read).await? else { return Ok(Stored { id: None, data: 0, sent: 0 }) };
        let data = chunk.len() as u64;
        let name = chunk_name(&id);
        if known.contains(&id) || self.vault.objects.exists(&name).await? {
            return Ok(Stored { id: Some(id), data, sent: 0 });
        }
        let keys = self.vault.keys.clone();
        let sealed_name = name.clone();
        let sealed: Bytes = blocking(move || sealed::seal(&keys, &sealed_name, &chunk)).await?;
        let sent = sealed.len() as u64;
        self.vault.objects.put(&name, sealed).await?;
        Ok(Stored { id: Some(id), data, sent })
    }

    /// Reads the manifest of a backup.
    pub async fn manifest(&self, id: &str) -> Result<Manifest> {
        let name = backup_name(id)?;
        let bytes = self.vault.objects.get(&name, MOST_MANIFEST + sealed::OVERHEAD).await?;
        let bytes = bytes.ok_or_else(|| Error::NoBackup(id.to_owned()))?;
        Manifest::decode(&name, &sealed::open(&self.vault.keys, &name, &bytes, MOST_MANIFEST)?)
    }

    /// Writes a backup to the file of a volume, which is empty and at least as large. Every chunk is compared with its
    /// id.
    pub async fn restore(&self, id: &str, image: File) -> Result<Header> {
        let session = Session::begin(&self.vault, Kind::Read).await?;
        let done = self.fetch(&session, id, image).await;
        session.end().await;
        done
    }

    async fn fetch(&self, session: &Session<'_>, id: &str, image: File) -> Result<Header> {
        let manifest = self.manifest(id).await?;
        let failed = |source| Error::Image { action: "written", source };
        let room = image.metadata().map_err(failed)?.len();
        if room < manifest.header.bytes {
            let needed = manifest.header.bytes;
            return Err(Error::Invalid(format!("the backup has {needed} bytes, and the volume only {room}")));
        }
        let image = Arc::new(image);
        let chunks = (0..).zip(manifest.chunks).filter_map(|(index, id)| Some((index, id?)));
        stream::iter(chunks)
            .map(|(index, chunk)| {
                let image = image.clone();
                async move {
                    session.renew().await?;
                    let plaintext = self.chunk(&chunk).await?;
                    blocking(move || write_chunk(&image, index, &plaintext)).await
                }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await?;
        blocking(move || image.sync_all().map_err(failed)).await?;
        Ok(manifest.header)
    }

    /// Reads a chunk, and compares it with its id.
    pub(crate) async fn chunk(&self, id: &ChunkId) -> Result<Vec<u8>> {
        let name = chunk_name(id);
        let most = usize::try_from(CHUNK_BYTES).unwrap_or(usize::MAX);
        let sealed = self.vault.objects.get(&name, most + sealed::OVERHEAD).await?;
        let sealed = sealed.ok_or_else(|| Error::damaged(&name, "it is missing"))?;
        let keys = self.vault.keys.clone();
        let id = *id;
        let opened = move || {
            let plaintext = sealed::open(&keys, &name, &sealed, most)?;
            match sealed::chunk_id(&keys, &plaintext) == id {
                true => Ok(plaintext),
                false => Err(Error::damaged(&name, "its content is not that of its id")),
            }
        };
        blocking(opened).await
    }

    /// Returns the ids of all backups.
    pub async fn list(&self) -> Result<Vec<String>> {
        let names = self.vault.objects.list(BACKUPS, MOST_BACKUPS).await?;
        Ok(names.into_iter().filter_map(|name| Some(name.strip_prefix(BACKUPS)?.to_owned())).collect())
    }

    /// Deletes a backup; its chunks stay until the next prune. An absent backup is the wanted state.
    pub async fn delete(&self, id: &str) -> Result<()> {
        self.vault.objects.delete(&backup_name(id)?).await?;
        self.vault.objects.flush().await
    }
}

fn backup_name(id: &str) -> Result<String> {
    match is_backup_id(id) {
        true => Ok(format!("{BACKUPS}{id}")),
        false => Err(Error::Invalid(format!("{id:?} is not the id of a backup"))),
    }
}

pub fn chunk_name(id: &ChunkId) -> String {
    let hex = to_hex(id);
    format!("{CHUNKS}{}/{hex}", &hex[..2])
}

/// Runs work on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Invalid(format!("the work was interrupted: {error}")))?
}

async fn new_config(secret: &Secret) -> Result<Config> {
    let mut salt = vec![0; corten_backup::SALT_BYTES];
    let failed = |_| Error::Invalid("the system gives no random numbers".to_owned());
    SystemRandom::new().fill(&mut salt).map_err(failed)?;
    let id = uuid::Uuid::new_v4().to_string();
    let derivation = secret.derivation();
    let keys = derived(secret, derivation, salt.clone(), id.clone()).await?;
    Ok(Config {
        format: FORMAT.to_owned(),
        version: VERSION,
        id,
        derivation,
        salt: to_hex(&salt),
        check: to_hex(&keys.check),
    })
}

/// Derives the keys of a repository, which takes a second for a passphrase.
async fn derived(secret: &Secret, derivation: Derivation, salt: Vec<u8>, id: String) -> Result<Keys> {
    let secret = secret.clone();
    let header = format!("{FORMAT} {id}");
    let derive = move || secret.keys(&derivation, &salt, header.as_bytes());
    blocking(move || derive().map_err(|fault| Error::Invalid(format!("the repository's key: {fault}")))).await
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, left) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    left.is_empty().then(|| pairs.iter().map(byte).collect())?
}
