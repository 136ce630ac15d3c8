//! Image archives: what `docker save`, `podman save`, `skopeo` and `buildah` write.
//!
//! The archive is spread out into a staging folder first, because its entries come in any order;
//! then either `manifest.json` (docker) or `index.json` (OCI) says what images it holds. Only names
//! that look like blobs are read: an archive cannot make the importer open anything else.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::config::Manifest;
use super::reference::Reference;
use super::sha256;
use crate::Error;

/// An image whose parts are in a staging folder.
#[derive(Debug)]
pub(super) struct StagedImage {
    pub config: Vec<u8>,
    /// Layer archives, compressed or not, lowest first.
    pub layers: Vec<PathBuf>,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
}

/// Spreads an archive out and finds its images.
pub(super) fn read(archive: impl Read, staging: &Path) -> Result<Vec<StagedImage>, Error> {
    let spread = Spread::new(decompress(archive)?, staging)?;
    if spread.has("manifest.json") {
        return docker_images(&spread);
    }
    if spread.has("index.json") {
        return oci_images(&spread);
    }
    Err(Error::Image("neither manifest.json nor index.json is in the archive".into()))
}

/// Reads gzip, zstd or plain, by the first bytes.
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
struct Spread {
    files: BTreeMap<String, PathBuf>,
}

impl Spread {
    fn new(archive: impl Read, staging: &Path) -> Result<Self, Error> {
        let malformed = |error: std::io::Error| Error::Image(format!("malformed archive: {error}"));
        let mut files = BTreeMap::new();
        let mut links = Vec::new();
        let mut archive = tar::Archive::new(archive);
        for (number, entry) in archive.entries().map_err(malformed)?.enumerate() {
            let mut entry = entry.map_err(malformed)?;
            let name = normal(&entry.path().map_err(malformed)?);
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    let path = staging.join(number.to_string());
                    let mut file = File::create(&path).map_err(Error::file("create", &path))?;
                    std::io::copy(&mut entry, &mut file).map_err(malformed)?;
                    files.insert(name, path);
                }
                tar::EntryType::Symlink | tar::EntryType::Link => {
                    let target = entry.link_name().map_err(malformed)?.unwrap_or_default().into_owned();
                    let symbolic = entry.header().entry_type() == tar::EntryType::Symlink;
                    let parent = if symbolic { Path::new(&name).parent() } else { None };
                    links.push((name.clone(), normal(&parent.unwrap_or(Path::new("")).join(target))));
                }
                _ => {}
            }
        }
        // Old docker archives name a shared layer by a link.
        for (name, target) in links {
            if let Some(path) = files.get(&target).cloned() {
                files.insert(name, path);
            }
        }
        Ok(Self { files })
    }

    fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    fn path(&self, name: &str) -> Result<PathBuf, Error> {
        let found = self.files.get(&normal(Path::new(name)));
        found.cloned().ok_or_else(|| Error::Image(format!("{name:?} is missing in the archive")))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = self.path(name)?;
        fs::read(&path).map_err(Error::file("read", path))
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T, Error> {
        serde_json::from_slice(&self.read(name)?).map_err(|error| Error::Image(format!("{name}: {error}")))
    }

    /// A blob by its digest, verified.
    fn blob(&self, digest: &str) -> Result<Vec<u8>, Error> {
        let bytes = self.read(&blob_name(digest))?;
        if sha256(&bytes) != digest {
            return Err(Error::Image(format!("blob {digest} has another content than its name says")));
        }
        Ok(bytes)
    }
}

fn blob_name(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
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

fn docker_images(spread: &Spread) -> Result<Vec<StagedImage>, Error> {
    let images: Vec<DockerImage> = spread.json("manifest.json")?;
    images
        .into_iter()
        .map(|image| {
            let layers = image.layers.iter().map(|layer| spread.path(layer)).collect::<Result<_, _>>()?;
            let tags = image.repo_tags.unwrap_or_default();
            Ok(StagedImage {
                config: spread.read(&image.config)?,
                layers,
                tags: tags.iter().map(|tag| normal_tag(tag)).collect::<Result<_, _>>()?,
                digests: Vec::new(),
            })
        })
        .collect()
}

fn oci_images(spread: &Spread) -> Result<Vec<StagedImage>, Error> {
    let index: Manifest = spread.json("index.json")?;
    let mut images = Vec::new();
    for entry in &index.manifests {
        if entry.platform.as_ref().is_some_and(|platform| platform.os == "unknown") {
            continue; // An attestation, not an image.
        }
        let mut digest = entry.digest.clone();
        let mut manifest: Manifest = parse(&spread.blob(&digest)?)?;
        if manifest.config.is_none() {
            let fitting = manifest.for_this_machine().ok_or_else(|| {
                Error::Image(format!("no manifest for linux/{} in {digest}", super::config::ARCHITECTURE))
            })?;
            digest = fitting.digest.clone();
            manifest = parse(&spread.blob(&digest)?)?;
        }
        let config = manifest.config.ok_or_else(|| Error::Image(format!("{digest} is not an image manifest")))?;
        let layers = manifest.layers.iter().map(|layer| spread.path(&blob_name(&layer.digest)));
        let tags = oci_tags(&entry.annotations)?;
        images.push(StagedImage {
            config: spread.blob(&config.digest)?,
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

/// containerd's annotation holds the whole name; the standard one often only the tag.
fn oci_tags(annotations: &BTreeMap<String, String>) -> Result<Vec<String>, Error> {
    let whole = annotations.get("io.containerd.image.name");
    let standard = annotations.get("org.opencontainers.image.ref.name").filter(|name| name.contains([':', '/']));
    whole.or(standard).map(|name| normal_tag(name)).into_iter().collect()
}

fn normal_tag(tag: &str) -> Result<String, Error> {
    let reference = Reference::parse(tag)?;
    Ok(reference.tagged().unwrap_or_else(|| reference.to_string()))
}

fn parse(bytes: &[u8]) -> Result<Manifest, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Image(format!("malformed manifest: {error}")))
}
