//! The certificate authority: its certificate and key, and the certificates it signs.
//!
//! A certificate is encoded by hand, so that subject, key and names of a request pass into it byte for byte; all else
//! in the request is left out.

use std::time::Duration;

use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use rcgen::{KeyPair, SigningKey};
use ring::rand::{SecureRandom, SystemRandom};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::request::Request;

/// Clocks differ: a certificate is valid from a little before it is signed.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// Lifetimes shorter than this are not shortened by the backdating.
const SHORT: SignedDuration = SignedDuration::from_hours(8);
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);

/// The bits of the key usage extension, in their order.
const KEY_USAGES: [&str; 9] = [
    "digital signature",
    "content commitment",
    "key encipherment",
    "data encipherment",
    "key agreement",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
];
const EXTENDED_KEY_USAGES: [(&str, &[u64]); 13] = [
    ("any", &[2, 5, 29, 37, 0]),
    ("server auth", &[1, 3, 6, 1, 5, 5, 7, 3, 1]),
    ("client auth", &[1, 3, 6, 1, 5, 5, 7, 3, 2]),
    ("code signing", &[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ("email protection", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("s/mime", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("ipsec end system", &[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ("ipsec tunnel", &[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ("ipsec user", &[1, 3, 6, 1, 5, 5, 7, 3, 7]),
    ("timestamping", &[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ("ocsp signing", &[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    ("microsoft sgc", &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
    ("netscape sgc", &[2, 16, 840, 1, 113_730, 4, 1]),
];

/// A certificate authority.
pub struct Authority {
    key: KeyPair,
    name: Vec<u8>,
    key_identifier: Option<Vec<u8>>,
    not_after: Timestamp,
    /// The longest lifetime of a signed certificate.
    lifetime: SignedDuration,
}

impl Authority {
    pub fn new(certificate: &str, key: &str, lifetime: Duration) -> Result<Authority, String> {
        let key = read_key(key)?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|error| error.to_string())?;
        let (_, parsed) = X509Certificate::from_der(&pem.contents).map_err(|error| error.to_string())?;
        let identifier = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
            _ => None,
        });
        let not_after = parsed.validity().not_after.timestamp();
        Ok(Authority {
            key,
            name: parsed.subject().as_raw().to_vec(),
            key_identifier: identifier,
            not_after: Timestamp::from_second(not_after).map_err(|error| error.to_string())?,
            lifetime: lifetime.try_into().map_err(|_| "the lifetime of certificates is too long".to_owned())?,
        })
    }

    /// Signs the certificate for a request; returns it in PEM.
    pub fn sign(
        &self,
        request: &Request,
        usages: &[String],
        expiration_seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, String> {
        let (from, until) = self.validity(expiration_seconds, now)?;
        let algorithm = self.algorithm()?;
        let body = sequence(&[
            element(0xa0, &element(0x02, &[2])),
            element(0x02, &serial()?),
            algorithm.clone(),
            self.name.clone(),
            sequence(&[time(from), time(until)]),
            request.subject.clone(),
            request.public_key.clone(),
            element(0xa3, &sequence(&self.extensions(request, usages)?)),
        ]);
        let signature = self.key.sign(&body).map_err(|error| error.to_string())?;
        let certificate = sequence(&[body, algorithm, element(0x03, &[&[0], signature.as_slice()].concat())]);
        Ok(pem(&certificate))
    }

    fn validity(&self, expiration_seconds: Option<i32>, now: Timestamp) -> Result<(Timestamp, Timestamp), String> {
        if now >= self.not_after {
            return Err(format!(
                "refusing to sign a certificate that expired in the past: NotAfter={}",
                self.not_after
            ));
        }
        let requested = expiration_seconds.map(|seconds| SignedDuration::from_secs(seconds.into()));
        let lifetime = requested.map_or(self.lifetime, |requested| requested.max(SHORTEST).min(self.lifetime));
        let until = if lifetime < SHORT { now + lifetime } else { now + lifetime - BACKDATE };
        Ok((now - BACKDATE, until.min(self.not_after)))
    }

    fn algorithm(&self) -> Result<Vec<u8>, String> {
        let (arcs, null): (&[u64], bool) = match self.key.algorithm() {
            kind if kind == &rcgen::PKCS_ECDSA_P256_SHA256 => (&[1, 2, 840, 10045, 4, 3, 2], false),
            kind if kind == &rcgen::PKCS_ECDSA_P384_SHA384 => (&[1, 2, 840, 10045, 4, 3, 3], false),
            kind if kind == &rcgen::PKCS_ED25519 => (&[1, 3, 101, 112], false),
            kind if kind == &rcgen::PKCS_RSA_SHA256 => (&[1, 2, 840, 113_549, 1, 1, 11], true),
            _ => return Err("the authority's key is of a kind that cannot sign".to_owned()),
        };
        let parameters = if null { vec![0x05, 0x00] } else { Vec::new() };
        Ok(sequence(&[object_identifier(arcs), parameters]))
    }

    fn extensions(&self, request: &Request, usages: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let (bits, purposes) = sort_usages(usages)?;
        let mut extensions = Vec::new();
        if bits != 0 {
            extensions.push(extension(&[2, 5, 29, 15], true, &key_usage(bits)));
        }
        if !purposes.is_empty() {
            extensions.push(extension(&[2, 5, 29, 37], false, &sequence(&purposes)));
        }
        // Basic constraints: not a certificate authority.
        extensions.push(extension(&[2, 5, 29, 19], true, &sequence(&[])));
        if let Some(identifier) = &self.key_identifier {
            extensions.push(extension(&[2, 5, 29, 35], false, &sequence(&[element(0x80, identifier)])));
        }
        if let Some(names) = &request.alternative_names {
            extensions.push(extension(&[2, 5, 29, 17], false, names));
        }
        Ok(extensions)
    }
}

/// Reads a private key in PKCS#8, or in the format of its algorithm, as `openssl` and kubeadm write it.
fn read_key(pem: &str) -> Result<KeyPair, String> {
    let key = pem.find("PRIVATE KEY-----").and_then(|at| pem[..at].rfind("-----BEGIN")).map_or(pem, |at| &pem[at..]);
    let (_, own) = x509_parser::pem::parse_x509_pem(key.as_bytes()).map_err(|error| error.to_string())?;
    let rsa = || sequence(&[object_identifier(&[1, 2, 840, 113_549, 1, 1, 1]), vec![0x05, 0x00]]);
    let curve = |arcs: &[u64]| sequence(&[object_identifier(&[1, 2, 840, 10045, 2, 1]), object_identifier(arcs)]);
    let kinds = match own.label.as_str() {
        "RSA PRIVATE KEY" => vec![rsa()],
        "EC PRIVATE KEY" => vec![curve(&[1, 2, 840, 10045, 3, 1, 7]), curve(&[1, 3, 132, 0, 34])],
        _ => return KeyPair::try_from(own.contents).map_err(|error| error.to_string()),
    };
    let wrapped = |kind| sequence(&[element(0x02, &[0]), kind, element(0x04, &own.contents)]);
    let keys = kinds.into_iter().map(|kind| KeyPair::try_from(wrapped(kind)));
    keys.reduce(Result::or).map_or(Err("no private key".to_owned()), |key| key.map_err(|error| error.to_string()))
}

/// Converts usages to key usage bits and extended key usages.
fn sort_usages(usages: &[String]) -> Result<(u16, Vec<Vec<u8>>), String> {
    let (mut bits, mut purposes) = (0u16, Vec::new());
    for usage in usages {
        let name = if usage == "signing" { KEY_USAGES[0] } else { usage.as_str() };
        let purpose = EXTENDED_KEY_USAGES.iter().find(|(known, _)| *known == name);
        match (KEY_USAGES.iter().position(|known| *known == name), purpose) {
            (Some(bit), _) => bits |= 0x8000 >> bit,
            (None, Some((_, arcs))) => purposes.push(object_identifier(arcs)),
            (None, None) => return Err(format!("unrecognized usage values: [{usage:?}]")),
        }
    }
    Ok((bits, purposes))
}

/// Encodes a DER bit string without trailing zeros.
fn key_usage(bits: u16) -> Vec<u8> {
    let length = if bits & 0xff == 0 { 1 } else { 2 };
    let bytes = &bits.to_be_bytes()[..length];
    let unused = bytes.last().map_or(0, |last| last.trailing_zeros() as u8);
    element(0x03, &[&[unused], bytes].concat())
}

fn extension(arcs: &[u64], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if critical { vec![0x01, 0x01, 0xff] } else { Vec::new() };
    sequence(&[object_identifier(arcs), critical, element(0x04, value)])
}

/// Returns a random positive serial number.
fn serial() -> Result<Vec<u8>, String> {
    let mut bytes = vec![0u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the system gives no random numbers".to_owned())?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(bytes)
}

/// Encodes a DER time: years up to 2049 have two digits, later ones four.
fn time(at: Timestamp) -> Vec<u8> {
    let year: i32 = at.strftime("%Y").to_string().parse().unwrap_or(0);
    if year < 2050 {
        element(0x17, at.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        element(0x18, at.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

fn object_identifier(arcs: &[u64]) -> Vec<u8> {
    let first = arcs.first().copied().unwrap_or(0) * 40 + arcs.get(1).copied().unwrap_or(0);
    let mut bytes = Vec::new();
    for arc in std::iter::once(first).chain(arcs.iter().skip(2).copied()) {
        let groups = (64 - arc.leading_zeros()).div_ceil(7).max(1);
        bytes.extend((0..groups).rev().map(|group| {
            let low = ((arc >> (group * 7)) & 0x7f) as u8;
            if group == 0 { low } else { low | 0x80 }
        }));
    }
    element(0x06, &bytes)
}

fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

/// Encodes one DER element.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match content.len() {
        short @ 0..=127 => bytes.push(short as u8),
        long => {
            let length: Vec<u8> = long.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            bytes.push(0x80 | length.len() as u8);
            bytes.extend(length);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut lines = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        lines.extend(line.iter().map(|byte| char::from(*byte)));
        lines.push('\n');
    }
    lines + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::request;
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa};

    fn authority() -> (String, Authority) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        let year = Duration::from_secs(365 * 24 * 3600);
        (certificate.clone(), Authority::new(&certificate, &key.serialize_pem(), year).unwrap())
    }

    fn signed(authority: &Authority, seconds: Option<i32>) -> Vec<u8> {
        let pem = request("jane", "developers", &["jane.example", "10.0.0.7"]);
        let usages = ["digital signature", "decipher only", "client auth"].map(str::to_owned);
        let request = Request::parse(pem.as_bytes()).unwrap();
        let certificate = authority.sign(&request, &usages, seconds, Timestamp::now()).unwrap();
        x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap().1.contents
    }

    #[test]
    fn a_signed_certificate_is_what_was_asked_for_and_verifies() {
        let (own, authority) = authority();
        let der = signed(&authority, None);
        let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
        assert!(rest.is_empty());
        let (_, own) = x509_parser::pem::parse_x509_pem(own.as_bytes()).unwrap();
        let (_, own) = X509Certificate::from_der(&own.contents).unwrap();
        certificate.verify_signature(Some(own.public_key())).unwrap();
        assert_eq!(certificate.issuer().to_string(), own.subject().to_string());
        assert_eq!(certificate.subject().to_string(), "O=developers, CN=jane");
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && usage.decipher_only() && !usage.key_encipherment());
        let purposes = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(purposes.client_auth && !purposes.server_auth);
        assert!(!certificate.is_ca());
        let names = certificate.subject_alternative_name().unwrap().unwrap().value;
        assert_eq!(names.general_names.len(), 2);
    }

    #[test]
    fn a_life_is_as_long_as_asked_within_bounds() {
        let (_, authority) = authority();
        let hour = 3600;
        for (requested, expected) in [
            (None, 365 * 24 * hour),
            (Some(2 * hour), 2 * hour + 300),
            (Some(1), 900),
            (Some(i32::MAX), 365 * 24 * hour),
        ] {
            let der = signed(&authority, requested);
            let (_, certificate) = X509Certificate::from_der(&der).unwrap();
            let validity = certificate.validity();
            let life = validity.not_after.timestamp() - validity.not_before.timestamp();
            assert_eq!(life, i64::from(expected), "{requested:?}");
        }
    }

    /// Keys that openssl wrote, generated for this test.
    #[test]
    fn keys_are_read_in_the_form_of_their_kind() {
        let (certificate, _) = authority();
        let keys = [
            (include_str!("testdata/rsa.key"), &rcgen::PKCS_RSA_SHA256),
            (include_str!("testdata/p256.key"), &rcgen::PKCS_ECDSA_P256_SHA256),
            (include_str!("testdata/p384.key"), &rcgen::PKCS_ECDSA_P384_SHA384),
        ];
        for (key, algorithm) in keys {
            let authority = Authority::new(&certificate, key, Duration::from_secs(3600)).unwrap();
            assert!(authority.key.algorithm() == algorithm, "{:?}", authority.key.algorithm());
            let der = signed(&authority, None);
            X509Certificate::from_der(&der).unwrap();
        }
        for bad in ["", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n", &certificate] {
            assert!(Authority::new(&certificate, bad, Duration::from_secs(3600)).is_err());
        }
    }

    #[test]
    fn unknown_usages_are_refused() {
        assert_eq!(sort_usages(&["magic".to_owned()]), Err("unrecognized usage values: [\"magic\"]".to_owned()));
        assert_eq!(object_identifier(&[1, 2, 840, 10045, 4, 3, 2]), [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]);
    }
}
