//! Certificates: the cluster's CAs on disk, and the leaf certificates that they sign.
//!
//! Only the CAs and the ServiceAccount key are kept: they are the cluster's identity and never depend on an address.
//! Leaf certificates are signed at every start and again long before they expire, so there is nothing to rotate by
//! hand, and a changed host address takes effect at the next start.
//!
//! Must never: write a private key that others can read, or replace a CA that exists.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::private;
pub use crate::private::write as write_private;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The number of renewals of a leaf certificate in its lifetime while the cluster runs.
const RENEWALS: u32 = 12;

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
    /// Signs ServiceAccount tokens.
    pub service_account_key: String,
    /// Encrypts Secrets at rest.
    pub secrets_key: [u8; 32],
}

impl Pki {
    /// Opens the CAs in `dir`, and creates the missing ones.
    pub fn open(dir: &Path) -> Result<Pki> {
        private::directory(dir)?;
        Ok(Pki {
            cluster: Authority::open(dir, "ca", "kubernetes")?,
            kubelet: Authority::open(dir, "kubelet-ca", "kubelet-ca")?,
            front_proxy: Authority::open(dir, "front-proxy-ca", "front-proxy-ca")?,
            service_account_key: text_or(&dir.join("sa.key"), || Ok(KeyPair::generate()?.serialize_pem()))?,
            secrets_key: secrets_key(&dir.join("secrets.key"))?,
        })
    }
}

/// One CA: its certificate in PEM and the key to sign with.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
    leaf_lifetime: Duration,
}

impl Authority {
    /// Opens the authority in `dir`, or makes it.
    pub fn open(dir: &Path, file: &str, name: &str) -> Result<Authority> {
        let certificate_path = dir.join(format!("{file}.crt"));
        let key_path = dir.join(format!("{file}.key"));
        let key = KeyPair::from_pem(&text_or(&key_path, || Ok(KeyPair::generate()?.serialize_pem()))?)
            .with_context(|| format!("{} is not a private key", key_path.display()))?;
        let certificate = text_or(&certificate_path, || Ok(authority_params(name).self_signed(&key)?.pem()))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)
            .with_context(|| format!("{} is not a certificate authority", certificate_path.display()))?;
        Ok(Authority { certificate, issuer, leaf_lifetime: LEAF_LIFETIME })
    }

    /// Reads an authority that is not on the disk yet.
    pub fn parse(certificate: &str, key: &str) -> Result<Authority> {
        let key = KeyPair::from_pem(key).context("the key of an authority is damaged")?;
        let issuer =
            Issuer::from_ca_cert_pem(certificate, key).context("the certificate of an authority is damaged")?;
        Ok(Authority { certificate: certificate.to_owned(), issuer, leaf_lifetime: LEAF_LIFETIME })
    }

    /// Returns the key in PEM, for the controller that signs approved requests.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Returns the time when the CA was created.
    pub fn made(&self) -> Result<Timestamp> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes())?;
        let from = Timestamp::from_second(pem.parse_x509()?.validity().not_before.timestamp())?;
        Ok(from.checked_add(DAY)?)
    }

    /// Returns the interval at which leaf certificates are renewed while the cluster runs.
    pub fn renewal(&self) -> Duration {
        self.leaf_lifetime / RENEWALS
    }

    /// Signs a leaf certificate with a new key.
    pub fn issue(&self, leaf: &Leaf<'_>) -> Result<Identity> {
        self.sign(leaf_params(leaf, self.leaf_lifetime)?)
    }

    /// Signs a leaf that is both a server's and a client's, as members of etcd are to each other.
    pub fn issue_for_both(&self, leaf: &Leaf<'_>) -> Result<Identity> {
        let mut params = leaf_params(leaf, self.leaf_lifetime)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate()?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Returns a self-signed leaf certificate.
pub fn self_signed(leaf: &Leaf<'_>) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let certificate = leaf_params(leaf, LEAF_LIFETIME)?.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn leaf_params(leaf: &Leaf<'_>, lifetime: Duration) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(leaf.names.clone()).context("a certificate name is not valid")?;
    params.distinguished_name.push(DnType::CommonName, leaf.common_name);
    // The library supports one organization per certificate; no component uses groups beyond the first.
    if let Some(group) = leaf.organizations.first() {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let purpose = match leaf.names.is_empty() {
        true => ExtendedKeyUsagePurpose::ClientAuth,
        false => ExtendedKeyUsagePurpose::ServerAuth,
    };
    params.extended_key_usages = vec![purpose];
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + lifetime).into();
    Ok(params)
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + AUTHORITY_LIFETIME).into();
    params
}

fn secrets_key(path: &Path) -> Result<[u8; 32]> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let text = text_or(path, || {
        let mut key = [0u8; 32];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut key)
            .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
        Ok(STANDARD.encode(key))
    })?;
    let bytes = STANDARD.decode(text.trim()).with_context(|| format!("{} is damaged", path.display()))?;
    bytes.try_into().map_err(|_| anyhow::anyhow!("{} is damaged: it does not hold 32 bytes", path.display()))
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
impl Pki {
    /// Returns CAs with leaf certificates that expire during a test.
    pub fn short_lived(dir: &Path, leaf_lifetime: Duration) -> Pki {
        let mut pki = Pki::open(dir).unwrap();
        pki.cluster.leaf_lifetime = leaf_lifetime;
        pki.front_proxy.leaf_lifetime = leaf_lifetime;
        pki.kubelet.leaf_lifetime = leaf_lifetime;
        pki
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path()).unwrap();
        let second = Pki::open(dir.path()).unwrap();
        assert_eq!(first.cluster.certificate, second.cluster.certificate);
        assert_eq!(first.kubelet.certificate, second.kubelet.certificate);
        assert_ne!(first.kubelet.certificate, first.cluster.certificate);
        assert_eq!(first.secrets_key, second.secrets_key);
        assert_eq!(first.service_account_key, second.service_account_key);
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
}
