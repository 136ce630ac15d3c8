//! The credentials of requests to AWS: fixed ones, those of a file, of a web identity, or of the instance itself.
//!
//! Temporary credentials are renewed before they expire, and after AWS refused them.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use corten_outbound::https::Endpoint;
use corten_outbound::sign::{self, Credentials};
use corten_outbound::xml;
use http_body_util::Full;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::error::Error;
use crate::form::form_request;

/// The time before the expiry at which credentials are renewed.
const EARLY: SignedDuration = SignedDuration::from_mins(5);
/// The time after which a file is read again.
const FILE_LIFETIME: SignedDuration = SignedDuration::from_mins(5);
/// The time within which the metadata service and STS answer.
const ANSWER: Duration = Duration::from_secs(10);
const MOST_DOCUMENT: usize = 256 << 10;
const MOST_FILE: u64 = 256 << 10;

/// The source of credentials.
pub enum Source {
    Fixed(Credentials),
    /// A shared credentials file, and the profile in it.
    File {
        path: PathBuf,
        profile: String,
    },
    /// A role that is assumed with a token, which a kubelet or another issuer keeps fresh in a file.
    WebIdentity {
        token_file: PathBuf,
        role: String,
        session: String,
        sts: Endpoint,
    },
    /// The role of the instance that this process runs on.
    Instance(Metadata),
}

/// The identity of this process at AWS.
pub struct Identity {
    source: Source,
    held: Mutex<Option<Held>>,
}

#[derive(Clone)]
struct Held {
    credentials: Credentials,
    until: Timestamp,
}

impl Identity {
    pub fn new(source: Source) -> Identity {
        Identity { source, held: Mutex::new(None) }
    }

    /// Returns credentials that are valid now.
    pub async fn credentials(&self) -> Result<Credentials, Error> {
        let now = Timestamp::now();
        if let Some(held) = self.held().as_ref().filter(|held| now < held.until) {
            return Ok(held.credentials.clone());
        }
        let fetched = self.fetch(now).await.map_err(Error::Denied)?;
        *self.held() = Some(fetched.clone());
        Ok(fetched.credentials)
    }

    /// Forgets the credentials, which AWS refused.
    pub fn forget(&self) {
        *self.held() = None;
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn fetch(&self, now: Timestamp) -> Result<Held, String> {
        match &self.source {
            Source::Fixed(credentials) => Ok(Held { credentials: credentials.clone(), until: Timestamp::MAX }),
            Source::File { path, profile } => {
                let text = read(path).await?;
                let credentials = Credentials::parse(&text, profile)
                    .ok_or_else(|| format!("{} has no complete profile {profile:?}", path.display()))?;
                Ok(Held { credentials, until: now.saturating_add(FILE_LIFETIME).unwrap_or(now) })
            }
            Source::WebIdentity { token_file, role, session, sts } => {
                assume(sts, role, session, read(token_file).await?.trim()).await
            }
            Source::Instance(metadata) => metadata.credentials().await,
        }
    }
}

/// Reads a small file.
async fn read(path: &PathBuf) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    if tokio::fs::metadata(path).await.map_err(failed)?.len() > MOST_FILE {
        return Err(format!("{} is too large", path.display()));
    }
    tokio::fs::read_to_string(path).await.map_err(failed)
}

/// Assumes a role with a web identity.
async fn assume(sts: &Endpoint, role: &str, session: &str, token: &str) -> Result<Held, String> {
    let mut body = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15".to_owned();
    for (name, value) in [("RoleArn", role), ("RoleSessionName", session), ("WebIdentityToken", token)] {
        body.push_str(&format!("&{name}={}", sign::encode(value, false)));
    }
    let path = format!("{}/", sts.prefix());
    let request = form_request(&path, sts.authority()).body(Full::new(body.into()));
    let request = request.map_err(|error| error.to_string())?;
    let answer = sts.send(request, ANSWER).await.map_err(|reason| format!("STS: {reason}"))?;
    let status = answer.head.status;
    let document = answer.text(MOST_DOCUMENT).await?;
    let text = |name: &str| xml::first(&document, name).unwrap_or_default();
    if !status.is_success() {
        return Err(format!("STS refuses the web identity for {role}: {status} {} {}", text("Code"), text("Message")));
    }
    held(&text("AccessKeyId"), &text("SecretAccessKey"), &text("SessionToken"), &text("Expiration"))
        .ok_or_else(|| "STS gave no complete credentials".to_owned())
}

/// Returns temporary credentials; none if a part is missing.
fn held(access_key: &str, secret_key: &str, token: &str, expiration: &str) -> Option<Held> {
    let until: Timestamp = expiration.parse().ok()?;
    let credentials = Credentials {
        access_key: access_key.to_owned(),
        secret_key: secret_key.to_owned(),
        session_token: Some(token.to_owned()).filter(|token| !token.is_empty()),
    };
    let is_complete = !access_key.is_empty() && !secret_key.is_empty();
    is_complete.then(|| Held { credentials, until: until.saturating_sub(EARLY).unwrap_or(until) })
}

/// The metadata service of an instance, in its second version.
pub struct Metadata(pub Endpoint);

impl Metadata {
    /// Returns the region of the instance.
    pub async fn region(&self) -> Result<String, String> {
        self.get("/latest/meta-data/placement/region").await
    }

    async fn credentials(&self) -> Result<Held, String> {
        let folder = "/latest/meta-data/iam/security-credentials/";
        let roles = self.get(folder).await?;
        let role = roles.lines().next().unwrap_or_default().trim().to_owned();
        let document = self.get(&format!("{folder}{}", sign::encode(&role, false))).await?;
        let document: Value = serde_json::from_str(&document).map_err(|_| "the metadata service gave no JSON")?;
        let text = |name: &str| document[name].as_str().unwrap_or_default();
        held(text("AccessKeyId"), text("SecretAccessKey"), text("Token"), text("Expiration"))
            .ok_or_else(|| "the metadata service gave no complete credentials".to_owned())
    }

    /// Reads a path with a fresh session token.
    pub async fn get(&self, path: &str) -> Result<String, String> {
        let session = http::Request::put("/latest/api/token").header("x-aws-ec2-metadata-token-ttl-seconds", "60");
        let token = self.send(session).await?;
        self.send(http::Request::get(path).header("x-aws-ec2-metadata-token", token.trim())).await
    }

    async fn send(&self, request: http::request::Builder) -> Result<String, String> {
        let request = request.header("host", self.0.authority()).body(Full::new(Bytes::new()));
        let request = request.map_err(|error| error.to_string())?;
        let path = request.uri().path().to_owned();
        let failed = |reason: String| format!("the metadata service of the instance: {path}: {reason}");
        let answer = self.0.send(request, ANSWER).await.map_err(failed)?;
        let status = answer.head.status;
        let text = answer.text(MOST_DOCUMENT).await.map_err(failed)?;
        if status.is_success() { Ok(text) } else { Err(failed(status.to_string())) }
    }
}
