//! Pulling an image from a registry.
//!
//! Manifests and blobs are verified against their digests before anything is installed, and no blob is
//! read further than its descriptor says. Layers that the node already has are not asked for; a
//! download that breaks off goes on where it was.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use oci_client::client::{BlobResponse, Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use super::config::{ARCHITECTURE, Descriptor, ImageConfig, Manifest};
use super::reference::Reference;
use super::{ImageRecord, ImageStore, sha256};
use crate::Error;

const MANIFEST_TYPES: &[&str] = &[
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// As many layers at once as containerd pulls.
const CONCURRENT_LAYERS: usize = 3;
/// No configuration of an image is larger; upstream's runtimes draw the line there too.
const MAX_CONFIG_BYTES: u64 = 8 << 20;
/// How often a download is taken up again without having got any further.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// How long a registry may be silent, unless its settings say otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to reach one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryConfig {
    /// The registry's host, with its port, as it stands in references.
    pub host: String,
    /// Other hosts that are asked before the registry itself, one after the other. What they are and whom they know is
    /// said by entries of their own; the registry's credentials are never shown to them.
    pub mirrors: Vec<String>,
    /// Speak HTTP without TLS.
    pub plain_http: bool,
    /// Do not verify the registry's certificate.
    pub insecure_skip_verify: bool,
    /// A certificate authority, PEM, beside the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// User and password for requests that bring no credentials of their own.
    pub basic_auth: Option<(String, String)>,
    /// How long it may send nothing before a download is taken up again, or given up; a minute if it is not said.
    pub stall_timeout: Option<Duration>,
}

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PullAuth {
    /// Nobody in particular.
    #[default]
    Anonymous,
    /// A user with a password.
    Basic(String, String),
    /// A token that the registry takes as it is.
    Token(String),
}

/// From the mirrors of its registry, else from the registry itself. Whoever answers, the content is verified.
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

/// Manifest, configuration, missing layers, record.
async fn pull_from(
    store: &ImageStore,
    reference: &Reference,
    host: &str,
    auth: PullAuth,
) -> Result<ImageRecord, Error> {
    let registry = Registry::new(store, reference, host, auth)?;
    let (manifest, digest) = registry.manifest().await?;
    let config = manifest.config.as_ref().ok_or_else(|| registry.refuse("not an image manifest"))?;
    let config_bytes = registry.blob(config).await?;
    let config: ImageConfig = serde_json::from_slice(&config_bytes).map_err(|error| registry.refuse(error))?;
    if config.rootfs.diff_ids.len() != manifest.layers.len() {
        return Err(registry.refuse("configuration and manifest name different layers"));
    }
    let pairs: Vec<_> = manifest.layers.iter().cloned().zip(config.rootfs.diff_ids.clone()).collect();
    let registry = &registry;
    let layers = pairs.into_iter().map(|(blob, diff_id)| async move { registry.layer(store, &blob, &diff_id).await });
    futures::stream::iter(layers).buffer_unordered(CONCURRENT_LAYERS).try_collect::<Vec<()>>().await?;
    let size = config.rootfs.diff_ids.iter().map(|layer| store.layer_size(layer)).sum();
    let tags = reference.tagged().filter(|_| reference.digest.is_none()).into_iter().collect();
    let digests = vec![format!("{}@{digest}", reference.name())];
    store.record(&config_bytes, tags, digests, config.rootfs.diff_ids, size, false)
}

/// A client of the one registry that a reference names.
struct Registry {
    client: oci_client::Client,
    image: oci_client::Reference,
    auth: RegistryAuth,
    shown: String,
    patience: Duration,
}

impl Registry {
    fn new(store: &ImageStore, reference: &Reference, host: &str, auth: PullAuth) -> Result<Self, Error> {
        // reqwest takes the process' provider; a second installation is refused, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = store.registry(host);
        let host = host.to_owned();
        let patience = settings.stall_timeout.unwrap_or(PATIENCE);
        let auth = match (auth, settings.basic_auth) {
            (PullAuth::Basic(user, password), _) => RegistryAuth::Basic(user, password),
            (PullAuth::Token(token), _) => RegistryAuth::Bearer(token),
            (PullAuth::Anonymous, Some((user, password))) => RegistryAuth::Basic(user, password),
            (PullAuth::Anonymous, None) => RegistryAuth::Anonymous,
        };
        let config = ClientConfig {
            protocol: if settings.plain_http { ClientProtocol::Http } else { ClientProtocol::Https },
            accept_invalid_certificates: settings.insecure_skip_verify,
            extra_root_certificates: settings
                .ca_pem
                .map(|data| Certificate { encoding: CertificateEncoding::Pem, data })
                .into_iter()
                .collect(),
            connect_timeout: Some(Duration::from_secs(30)),
            read_timeout: Some(patience),
            user_agent: concat!("corten/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let image = match &reference.digest {
            Some(digest) => oci_client::Reference::with_digest(host, reference.repository.clone(), digest.clone()),
            None => {
                let tag = reference.tag.clone().unwrap_or_else(|| "latest".into());
                oci_client::Reference::with_tag(host, reference.repository.clone(), tag)
            }
        };
        let client = oci_client::Client::try_from(config)
            .map_err(|error| Error::Pull { reference: reference.to_string(), message: error.to_string() })?;
        Ok(Self { client, image, auth, shown: reference.to_string(), patience })
    }

    fn refuse(&self, message: impl ToString) -> Error {
        Error::Pull { reference: self.shown.clone(), message: message.to_string() }
    }

    /// What happened to a request, down to its cause: the library's own words end before it.
    fn trouble(&self, error: &(dyn std::error::Error + 'static)) -> String {
        let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
        let mut told: Vec<String> = Vec::new();
        for cause in causes {
            if !told.iter().any(|said| said.contains(&cause)) {
                told.push(cause);
            }
        }
        if told.last().is_some_and(|last| last.ends_with("timed out")) {
            return format!("{} sent nothing for {:?}", self.image.registry(), self.patience);
        }
        told.join(": ")
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        self.refuse(self.trouble(error))
    }

    /// The manifest for this machine, and the digest that the reference leads to (of the index, if
    /// there is one: that is what users pin).
    async fn manifest(&self) -> Result<(Manifest, String), Error> {
        let (manifest, digest) = self.fetch(&self.image).await?;
        if manifest.config.is_some() {
            return Ok((manifest, digest));
        }
        let fitting = manifest
            .for_this_machine()
            .ok_or_else(|| self.refuse(format!("no match for platform in manifest: linux/{ARCHITECTURE}")))?;
        let image = oci_client::Reference::with_digest(
            self.image.registry().to_string(),
            self.image.repository().to_string(),
            fitting.digest.clone(),
        );
        Ok((self.fetch(&image).await?.0, digest))
    }

    async fn fetch(&self, image: &oci_client::Reference) -> Result<(Manifest, String), Error> {
        let fetched = self.client.pull_manifest_raw(image, &self.auth, MANIFEST_TYPES).await;
        let (bytes, _) = fetched.map_err(|error| self.failed(&error))?;
        let digest = sha256(&bytes);
        if image.digest().is_some_and(|wanted| wanted != digest) {
            return Err(self.refuse(format!("the manifest has the digest {digest}")));
        }
        Ok((serde_json::from_slice(&bytes).map_err(|error| self.refuse(error))?, digest))
    }

    /// A small blob: the configuration.
    async fn blob(&self, blob: &Descriptor) -> Result<Vec<u8>, Error> {
        if blob.size > MAX_CONFIG_BYTES {
            return Err(self.refuse(format!("blob {} is too large for a configuration", blob.digest)));
        }
        let stream = self.client.pull_blob_stream(&self.image, &descriptor(blob)).await;
        let mut stream = stream.map_err(|error| self.failed(&error))?.stream;
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| self.failed(&error))?);
            if bytes.len() as u64 > blob.size {
                return Err(self.too_long(blob));
            }
        }
        if sha256(&bytes) != blob.digest {
            return Err(self.refuse(format!("blob {} has another content than its digest says", blob.digest)));
        }
        Ok(bytes)
    }

    /// Downloads to a file, then unpacks; the digest of the unpacked content is verified there.
    async fn layer(&self, store: &ImageStore, blob: &Descriptor, diff_id: &str) -> Result<(), Error> {
        if store.has_layer(diff_id) {
            return Ok(());
        }
        let staging = store.staging()?;
        let path = staging.path().join("blob");
        self.download(blob, &path).await?;
        let (store, diff_id) = (store.clone(), diff_id.to_string());
        tokio::task::spawn_blocking(move || install(&store, &diff_id, path))
            .await
            .map_err(|error| self.refuse(error))??;
        drop(staging);
        Ok(())
    }

    fn too_long(&self, blob: &Descriptor) -> Error {
        self.refuse(format!("blob {} is longer than the {} bytes that the manifest says", blob.digest, blob.size))
    }

    /// Downloads the whole blob. What breaks off is taken up again where it was; a registry that gives
    /// nothing more, or more than it said, is given up.
    async fn download(&self, blob: &Descriptor, path: &Path) -> Result<(), Error> {
        let mut file = tokio::fs::File::create(path).await.map_err(Error::file("create", path))?;
        let (mut have, mut failures) = (0, 0);
        loop {
            let before = have;
            let broken = match self.fetch_from(blob, &mut file, path, &mut have).await? {
                None if have == blob.size => return file.flush().await.map_err(Error::file("write", path)),
                None => format!("it ended after {have} of {} bytes", blob.size),
                Some(broken) => broken,
            };
            failures = if have > before { 1 } else { failures + 1 };
            if failures > ATTEMPTS {
                return Err(self.refuse(format!("blob {}: {broken}", blob.digest)));
            }
            tracing::debug!(image = self.shown, have, broken, "a download broke off and is taken up again");
            tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(failures - 1)).await;
        }
    }

    /// Adds to the file what the registry sends from here on. What is wrong with the connection is told,
    /// what is wrong with the blob or with our disk is an error.
    async fn fetch_from(
        &self,
        blob: &Descriptor,
        file: &mut tokio::fs::File,
        path: &Path,
        have: &mut u64,
    ) -> Result<Option<String>, Error> {
        let asked = match *have {
            0 => self.client.pull_blob_stream(&self.image, &descriptor(blob)).await.map(BlobResponse::Full),
            from => self.client.pull_blob_stream_partial(&self.image, &descriptor(blob), from, None).await,
        };
        let mut stream = match asked {
            Err(error @ (OciDistributionError::RequestError(_) | OciDistributionError::IoError(_))) => {
                return Ok(Some(self.trouble(&error)));
            }
            // The registry refuses; asking again would not change its mind.
            Err(error) => return Err(self.failed(&error)),
            Ok(BlobResponse::Partial(stream)) => stream.stream,
            Ok(BlobResponse::Full(stream)) => {
                // It cannot send a part: everything begins anew.
                file.set_len(0).await.map_err(Error::file("truncate", path))?;
                file.seek(std::io::SeekFrom::Start(0)).await.map_err(Error::file("rewind", path))?;
                *have = 0;
                stream.stream
            }
        };
        while let Some(chunk) = stream.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => return Ok(Some(self.trouble(&error))),
            };
            *have += chunk.len() as u64;
            if *have > blob.size {
                return Err(self.too_long(blob));
            }
            file.write_all(&chunk).await.map_err(Error::file("write", path))?;
        }
        Ok(None)
    }
}

fn install(store: &ImageStore, diff_id: &str, path: PathBuf) -> Result<(), Error> {
    let blob = std::fs::File::open(&path).map_err(Error::file("open", &path))?;
    store.install_layer(diff_id, blob)
}

fn descriptor(blob: &Descriptor) -> OciDescriptor {
    OciDescriptor {
        digest: blob.digest.clone(),
        size: i64::try_from(blob.size).unwrap_or(i64::MAX),
        ..OciDescriptor::default()
    }
}
