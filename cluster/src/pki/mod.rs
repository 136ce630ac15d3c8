//! Certificates: the cluster's CAs and keys on disk, and the leaf certificates that the CAs sign.
//!
//! Only the CAs and keys are kept: they are the cluster's identity and never depend on an address. Leaf certificates are
//! signed at every start and again long before they expire. CAs and keys rotate while the cluster runs: a process follows
//! their files ([`live`]).
//!
//! Must never: write a private key that others can read, or replace a CA that exists outside of a rotation.

pub mod authority;
pub mod keys;
pub mod live;
pub mod rotation;
pub mod validity;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_apiserver::EncryptionKey;

pub use authority::{Authority, self_signed};
use keys::KeyRing;
pub use live::Authorities;

use crate::private;
pub use crate::private::write as write_private;

/// The file of the keys of ServiceAccount tokens.
pub const SERVICE_ACCOUNT_KEYS: &str = "sa.key";
/// The file of the keys that encrypt Secrets.
pub const ENCRYPTION_KEYS: &str = "secrets.key";

/// A certificate with its private key, both in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// The subject and the names of a leaf certificate.
pub struct Leaf<'a> {
    pub common_name: &'a str,
    pub organizations: &'a [&'a str],
    /// DNS names and addresses; a leaf certificate with any of them is a server's.
    pub names: Vec<String>,
}

impl<'a> Leaf<'a> {
    /// Returns a client's subject: its user name and its groups.
    pub fn client(user: &'a str, groups: &'a [&'a str]) -> Leaf<'a> {
        Leaf { common_name: user, organizations: groups, names: Vec::new() }
    }
}

/// The cluster's CAs and keys.
pub struct Pki {
    /// Signs the servers of the control plane, and all clients.
    pub cluster: Authority,
    /// Signs the APIs of kubelets. Only the API server trusts it, and only for kubelets: a stolen node that gets a
    /// certificate for another name cannot act as the API server for any client.
    pub kubelet: Authority,
    /// Signs the API server's identity towards aggregated API servers.
    pub front_proxy: Authority,
    /// The keys of ServiceAccount tokens. The first signs, all verify.
    pub service_account_keys: Vec<String>,
    /// The keys of Secrets at rest. The first encrypts, all decrypt.
    pub encryption_keys: Vec<EncryptionKey>,
    /// The hash of all of it.
    pub digest: String,
}

impl Pki {
    /// Opens the CAs in `dir`, and creates the missing ones. Completes a rotation that was interrupted.
    pub fn open(dir: &Path) -> Result<Pki> {
        let mut files = rotation::Files::lock(dir)?;
        files.recover()?;
        let service_accounts = ring_or(dir, SERVICE_ACCOUNT_KEYS, keys::make_service_account_key, keys::parse_pem)?;
        let encryption = ring_or(dir, ENCRYPTION_KEYS, keys::make_encryption_key, keys::parse_lines)?;
        let mut pki = Pki {
            cluster: Authority::open(dir, "ca", "kubernetes")?,
            kubelet: Authority::open(dir, "kubelet-ca", "kubelet-ca")?,
            front_proxy: Authority::open(dir, "front-proxy-ca", "front-proxy-ca")?,
            service_account_keys: service_accounts.texts(),
            encryption_keys: keys::encryption_keys(&encryption)?,
            digest: String::new(),
        };
        pki.digest = digest(dir)?;
        Ok(pki)
    }

    /// Sets the lifetime of leaf certificates.
    pub fn with_leaf_lifetime(self, lifetime: Duration) -> Pki {
        Pki {
            cluster: self.cluster.with_leaf_lifetime(lifetime),
            kubelet: self.kubelet.with_leaf_lifetime(lifetime),
            front_proxy: self.front_proxy.with_leaf_lifetime(lifetime),
            ..self
        }
    }
}

/// Returns the hash of the files of authorities and keys.
pub fn digest(dir: &Path) -> Result<String> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let authorities = rotation::AUTHORITIES
        .iter()
        .flat_map(|(file, _)| [format!("{file}.crt"), format!("{file}.key"), format!("{file}-cross.crt")]);
    for name in authorities.chain([SERVICE_ACCOUNT_KEYS.to_owned(), ENCRYPTION_KEYS.to_owned()]) {
        let content = match std::fs::read(dir.join(&name)) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", dir.join(&name).display())),
        };
        context.update(&(content.len() as u64).to_be_bytes());
        context.update(&content);
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads a file of keys; a missing one is created.
fn ring_or(
    dir: &Path,
    file: &str,
    make: fn() -> Result<String>,
    parse: fn(&str) -> Result<KeyRing>,
) -> Result<KeyRing> {
    let path = dir.join(file);
    parse(&text_or(&path, make)?).with_context(|| format!("{} is damaged", path.display()))
}

/// Returns the content of the file; a missing file is created with the result of `make`.
fn text_or(path: &Path, make: impl FnOnce() -> Result<String>) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = make()?;
            private::write(path, text.as_bytes())?;
            Ok(text)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use validity::Validity;

    #[test]
    fn authorities_are_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path()).unwrap();
        let second = Pki::open(dir.path()).unwrap();
        assert_eq!(first.cluster.certificate, second.cluster.certificate);
        assert_eq!(first.kubelet.certificate, second.kubelet.certificate);
        assert_ne!(first.kubelet.certificate, first.cluster.certificate);
        assert_eq!(first.encryption_keys, second.encryption_keys);
        assert_eq!(first.service_account_keys, second.service_account_keys);
        assert_eq!(first.digest, second.digest);
    }

    #[test]
    fn a_leaf_certificate_has_user_group_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path()).unwrap();
        let leaf = Leaf {
            common_name: "system:node:n1",
            organizations: &["system:nodes"],
            names: vec!["n1".into(), "10.0.0.1".into()],
        };
        let identity = pki.cluster.issue(&leaf).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(identity.certificate.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let subject = certificate.subject().to_string();
        assert!(subject.contains("CN=system:node:n1"), "{subject}");
        assert!(subject.contains("O=system:nodes"), "{subject}");
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 2);
        let purposes = certificate.extended_key_usage().unwrap().unwrap();
        assert!(purposes.value.server_auth && !purposes.value.client_auth, "a server is not a client");
    }

    #[test]
    fn a_damaged_key_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.key"), "nonsense").unwrap();
        let error = Pki::open(dir.path()).err().unwrap();
        assert!(format!("{error:#}").contains("ca.key is not a private key"), "{error:#}");
    }

    /// Five years of a machine that sleeps for days and weeks: whenever it has been awake for as long as the longest wait
    /// between two looks, every certificate is valid.
    #[test]
    fn years_of_renewals_leave_no_expired_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let month = Duration::from_secs(30 * 24 * 60 * 60);
        let pki = Pki::open(dir.path()).unwrap().with_leaf_lifetime(month);
        let leaves = [Leaf::client("jane", &[]), Leaf::client("system:node:n1", &["system:nodes"])];
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        let end = start + SignedDuration::from_hours(5 * 365 * 24);
        let mut now = start;
        let mut renewals = 0;
        let mut seed: u64 = 42;
        let mut current: Vec<Option<Validity>> = vec![None; leaves.len()];
        while now < end {
            for (leaf, validity) in leaves.iter().zip(&mut current) {
                if validity.is_none_or(|validity| validity.renewal() <= now) {
                    let identity = pki.cluster.issue_at(leaf, now).unwrap();
                    *validity = Validity::of_pem(identity.certificate.as_bytes());
                    renewals += 1;
                }
                let validity = validity.unwrap();
                assert!(validity.from <= now && now < validity.until, "expired at {now}");
                assert!(!validity.is_ending(now));
            }
            // Awake until the next renewal, or asleep for up to forty days.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let next = current.iter().flatten().map(Validity::renewal).min().unwrap();
            let days = (seed >> 33) % 40;
            now = match days % 4 {
                0 => now + SignedDuration::from_hours(days as i64 * 24 + 1),
                _ => next.max(now) + SignedDuration::try_from(validity::LONGEST_WAIT).unwrap(),
            };
        }
        assert!((60..200).contains(&renewals), "{renewals} renewals of two certificates in five years");
    }
}
