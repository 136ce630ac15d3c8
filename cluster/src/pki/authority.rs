//! A certificate authority: its certificate and key, and the leaf certificates that it signs.
//!
//! While an authority is being rotated its file holds the new certificate and the old one, which are both trusted, and a
//! cross certificate goes with every leaf certificate: the new authority's name and key, signed by the old one. A peer
//! that knows only the old authority therefore trusts the leaf certificates of the new one.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::validity::Validity;
use super::{Identity, Leaf, text_or};

const DAY: SignedDuration = SignedDuration::from_hours(24);
const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// The lifetime of leaf certificates without a flag.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// One authority: its certificates in PEM and the key to sign with.
pub struct Authority {
    /// The certificates to trust, the signing one first.
    pub certificate: String,
    /// The cross certificate that goes with leaf certificates; empty outside of a rotation.
    cross: String,
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
        let certificate = text_or(&certificate_path, || {
            Ok(authority_params(name, corten_meta::time::now()).self_signed(&key)?.pem())
        })?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)
            .with_context(|| format!("{} is not a certificate authority", certificate_path.display()))?;
        let cross = std::fs::read_to_string(cross_path(dir, file)).unwrap_or_default();
        Ok(Authority { certificate, cross, issuer, leaf_lifetime: LEAF_LIFETIME })
    }

    /// Reads an authority that is not on the disk yet; `cross` is empty outside of a rotation.
    pub fn parse(certificate: &str, key: &str, cross: &str) -> Result<Authority> {
        let key = KeyPair::from_pem(key).context("the key of an authority is damaged")?;
        let issuer =
            Issuer::from_ca_cert_pem(certificate, key).context("the certificate of an authority is damaged")?;
        let certificate = certificate.to_owned();
        Ok(Authority { certificate, cross: cross.to_owned(), issuer, leaf_lifetime: LEAF_LIFETIME })
    }

    /// Sets the lifetime of leaf certificates.
    pub fn with_leaf_lifetime(self, leaf_lifetime: Duration) -> Authority {
        Authority { leaf_lifetime, ..self }
    }

    /// Returns the time at which a leaf certificate that is signed now is renewed.
    pub fn renewal(&self) -> Timestamp {
        Validity::starting(corten_meta::time::now(), self.leaf_lifetime).renewal()
    }

    /// Returns the key in PEM, for the controller that signs approved requests.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Returns the time when the authority was created.
    pub fn made(&self) -> Result<Timestamp> {
        let validity = Validity::of_pem(self.certificate.as_bytes()).context("the authority is damaged")?;
        Ok(validity.from.checked_add(DAY)?)
    }

    /// Reports whether this authority replaced another one.
    pub fn is_successor(&self) -> bool {
        let name = || {
            let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes()).ok()?;
            Some(pem.parse_x509().ok()?.subject().to_string())
        };
        name().is_some_and(|name| name.contains('@'))
    }

    /// Signs a leaf certificate with a new key.
    pub fn issue(&self, leaf: &Leaf<'_>) -> Result<Identity> {
        self.issue_at(leaf, corten_meta::time::now())
    }

    /// Signs a leaf certificate with a new key, at a time.
    pub fn issue_at(&self, leaf: &Leaf<'_>, now: Timestamp) -> Result<Identity> {
        self.sign(leaf_params(leaf, Validity::starting(now, self.leaf_lifetime))?)
    }

    /// Signs a leaf that is both a server's and a client's, as members of etcd are to each other.
    pub fn issue_for_both(&self, leaf: &Leaf<'_>) -> Result<Identity> {
        let mut params = leaf_params(leaf, Validity::starting(corten_meta::time::now(), self.leaf_lifetime))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate()?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem() + &self.cross, key: key.serialize_pem() })
    }

    /// Makes the authority that replaces this one.
    pub fn successor(&self, name: &str, now: Timestamp) -> Result<Successor> {
        let key = KeyPair::generate()?;
        // The names differ, so that a verifier never takes one for the other.
        let params = authority_params(&format!("{name}@{}", now.as_second()), now);
        let certificate = params.self_signed(&key)?.pem();
        let cross = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Successor { certificate, key: key.serialize_pem(), cross })
    }
}

/// An authority that replaces another one, in PEM.
pub struct Successor {
    pub certificate: String,
    pub key: String,
    /// The same name and key, signed by the authority that is replaced.
    pub cross: String,
}

/// Returns the path of the cross certificate of an authority.
pub fn cross_path(dir: &Path, file: &str) -> std::path::PathBuf {
    dir.join(format!("{file}-cross.crt"))
}

/// Returns a self-signed leaf certificate.
pub fn self_signed(leaf: &Leaf<'_>) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let validity = Validity::starting(corten_meta::time::now(), LEAF_LIFETIME);
    let certificate = leaf_params(leaf, validity)?.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn leaf_params(leaf: &Leaf<'_>, validity: Validity) -> Result<CertificateParams> {
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
    params.not_before = SystemTime::from(validity.from).into();
    params.not_after = SystemTime::from(validity.until).into();
    Ok(params)
}

fn authority_params(name: &str, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = SystemTime::from(now - DAY).into();
    params.not_after = SystemTime::from(now + AUTHORITY_LIFETIME).into();
    params
}
