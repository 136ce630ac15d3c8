//! Image archives, as `docker save`, `podman save`, `skopeo` and `buildah` write them.
//!
//! The archive is extracted into a staging folder first, because its entries come in any order; then either
//! `manifest.json` (docker) or `index.json` (OCI) lists its images. No name of the archive ever becomes a path, and
//! every document that is read into memory has a limit.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::config::{MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES, Manifest};
use super::digest::{Digest, shortened};
use super::reference::Reference;
use super::room::{Room, Roomy};
use super::tarball::{self, malformed};
use crate::Error;

/// The most entries of an archive, whose names are held in memory: enough for thousands of layers.
const MAX_ENTRIES: usize = 16_384;
/// The longest name of an entry.
const MAX_NAME: usize = 1024;

/// An image whose parts are in a staging folder.
#[derive(Debug)]
pub(super) struct StagedImage {
    pub config: Vec<u8>,
    /// Layer archives, compressed or not, lowest first.
    pub layers: Vec<PathBuf>,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
}

/// Extracts an archive and finds its images.
pub(super) fn read(archive: impl Read, staging: &Path) -> Result<Vec<StagedImage>, Error> {
    let extracted = Extracted::new(decompress(archive)?, staging)?;
    if extracted.has("manifest.json") {
        return docker_images(&extracted);
    }
    if extracted.has("index.json") {
        return oci_images(&extracted);
    }
    Err(Error::Image("neither manifest.json nor index.json is in the archive".into()))
}

/// Returns a reader of gzip, zstd or plain data, by the first bytes. The windows of zstd are limited to its default of
/// 128 MiB.
pub(super) fn decompress<'a>(stream: impl Read + 'a) -> Result<Box<dyn Read + 'a>, Error> {
    let mut stream = BufReader::with_capacity(1 << 16, stream);
    let start = std::io::BufRead::fill_buf(&mut stream).map_err(Error::system("read an archive"))?;
    let gzip = start.starts_with(&[0x1f, 0x8b]);
    let zstandard = start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    if gzip {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(stream)));
    }
    if zstandard {
        let decoder = zstd::Decoder::with_buffer(stream).map_err(Error::system("start zstd"))?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(stream))
}

/// The files of an archive, on disk under numbers so that no name of the archive becomes a path.
struct Extracted {
    files: BTreeMap<String, PathBuf>,
}

/// A name that is a link to another name.
struct Link {
    name: String,
    target: String,
}

impl Extracted {
    fn new(archive: impl Read, staging: &Path) -> Result<Self, Error> {
        let directory = File::open(staging).map_err(Error::file("open", staging))?;
        let mut room = Room::on(&directory).map_err(Error::file("open", staging))?;
        let mut files = BTreeMap::new();
        let mut links = Vec::new();
        let mut count = 0;
        tarball::for_each(archive, |entry| {
            count += 1;
            if count > MAX_ENTRIES {
                return Err(Error::Image(format!("the archive has more than {MAX_ENTRIES} entries")));
            }
            room.entry().map_err(Error::file("write to", staging))?;
            let name = named(&entry.path().map_err(malformed)?)?;
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    let path = staging.join(count.to_string());
                    write(entry, &path, &mut room)?;
                    files.insert(name, path);
                }
                tar::EntryType::Symlink | tar::EntryType::Link => links.push(link(entry, name)?),
                // Its zeros would be read one by one.
                tar::EntryType::GNUSparse => return Err(Error::Image(format!("{name:?} is a sparse file"))),
                _ => {}
            }
            Ok(())
        })?;
        // Old docker archives name a shared layer by a link.
        for link in links {
            if let Some(path) = files.get(&link.target).cloned() {
                files.insert(link.name, path);
            }
        }
        Ok(Self { files })
    }

    fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    fn path(&self, name: &str) -> Result<PathBuf, Error> {
        let found = self.files.get(&normal(Path::new(name)));
        found.cloned().ok_or_else(|| Error::Image(format!("{:?} is missing in the archive", shortened(name))))
    }

    /// Reads a document of at most `limit` bytes.
    fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let path = self.path(name)?;
        let size = fs::metadata(&path).map_err(Error::file("read", &path))?.len();
        if size > limit {
            return Err(Error::Image(format!("{name:?} has {size} bytes, and may have {limit}")));
        }
        fs::read(&path).map_err(Error::file("read", path))
    }

    /// Reads a blob by its digest and verifies it.
    fn blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
        let bytes = self.read(&blob_name(digest), limit)?;
        if Digest::of(&bytes) != *digest {
            return Err(Error::Image(format!("blob {digest} has another content than its name says")));
        }
        Ok(bytes)
    }
}

fn write(entry: &mut impl Read, path: &Path, room: &mut Room) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::file("create", path))?;
    std::io::copy(&mut Roomy { inner: entry, room }, &mut file).map_err(Error::file("write", path))?;
    Ok(())
}

fn link(entry: &tar::Entry<'_, impl Read>, name: String) -> Result<Link, Error> {
    let target = entry.link_name().map_err(malformed)?.unwrap_or_default().into_owned();
    let symbolic = entry.header().entry_type() == tar::EntryType::Symlink;
    let parent = if symbolic { Path::new(&name).parent() } else { None };
    let target = named(&parent.unwrap_or(Path::new("")).join(target))?;
    Ok(Link { name, target })
}

/// Returns the name of an entry, if it is not too long.
fn named(path: &Path) -> Result<String, Error> {
    let name = normal(path);
    if name.len() > MAX_NAME {
        return Err(Error::Image(format!("the name {:?} is too long", shortened(&name))));
    }
    Ok(name)
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn normal(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            Component::ParentDir => {
                parts.pop();
            }
            _ => {}
        }
    }
    parts.join("/")
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

fn docker_images(extracted: &Extracted) -> Result<Vec<StagedImage>, Error> {
    let bytes = extracted.read("manifest.json", MAX_MANIFEST_BYTES)?;
    let images: Vec<DockerImage> =
        serde_json::from_slice(&bytes).map_err(|error| Error::Image(format!("manifest.json: {error}")))?;
    images
        .into_iter()
        .map(|image| {
            let layers = image.layers.iter().map(|layer| extracted.path(layer)).collect::<Result<_, _>>()?;
            let tags = image.repo_tags.unwrap_or_default();
            Ok(StagedImage {
                config: extracted.read(&image.config, MAX_CONFIG_BYTES)?,
                layers,
                tags: tags.iter().map(|tag| normal_tag(tag)).collect::<Result<_, _>>()?,
                digests: Vec::new(),
            })
        })
        .collect()
}

fn oci_images(extracted: &Extracted) -> Result<Vec<StagedImage>, Error> {
    let index = Manifest::parse(&extracted.read("index.json", MAX_MANIFEST_BYTES)?)?;
    let mut images = Vec::new();
    for entry in &index.manifests {
        if entry.platform.as_ref().is_some_and(|platform| platform.os == "unknown") {
            continue; // An attestation, not an image.
        }
        let mut digest = entry.digest;
        let mut manifest = Manifest::parse(&extracted.blob(&digest, MAX_MANIFEST_BYTES)?)?;
        if manifest.config.is_none() {
            let fitting = manifest.for_this_machine().ok_or_else(|| {
                Error::Image(format!("no manifest for linux/{} in {digest}", super::config::ARCHITECTURE))
            })?;
            digest = fitting.digest;
            manifest = Manifest::parse(&extracted.blob(&digest, MAX_MANIFEST_BYTES)?)?;
        }
        let config = manifest.config.ok_or_else(|| Error::Image(format!("{digest} is not an image manifest")))?;
        let layers = manifest.layers.iter().map(|layer| extracted.path(&blob_name(&layer.digest)));
        let tags = oci_tags(&entry.annotations)?;
        images.push(StagedImage {
            config: extracted.blob(&config.digest, MAX_CONFIG_BYTES)?,
            layers: layers.collect::<Result<_, _>>()?,
            digests: tags
                .iter()
                .filter_map(|tag| Reference::parse(tag).ok())
                .map(|reference| format!("{}@{}", reference.name(), entry.digest))
                .collect(),
            tags,
        });
    }
    Ok(images)
}

/// Returns the tags of an image. containerd's annotation holds the whole name; the standard one often only the tag.
fn oci_tags(annotations: &BTreeMap<String, String>) -> Result<Vec<String>, Error> {
    let full = annotations.get("io.containerd.image.name");
    let standard = annotations.get("org.opencontainers.image.ref.name").filter(|name| name.contains([':', '/']));
    full.or(standard).map(|name| normal_tag(name)).into_iter().collect()
}

fn normal_tag(tag: &str) -> Result<String, Error> {
    let reference = Reference::parse(tag)?;
    Ok(reference.tagged().unwrap_or_else(|| reference.to_string()))
}
