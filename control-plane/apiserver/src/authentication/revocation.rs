//! Revoked nodes: certificates of a node that were signed before its revocation are refused, those of a later join are
//! not.
//!
//! A ConfigMap lists the nodes, each with the time of its revocation, so that every server knows them. A certificate
//! names its node by its subject; the time of its signature follows from its validity.

use std::collections::BTreeMap;

use corten_meta::Value;
use jiff::{SignedDuration, Timestamp};

use crate::registry::Registry;

/// The ConfigMap of revoked nodes in kube-system: the name of a node, and the time of its revocation.
pub const REVOKED_NODES: &str = "corten-revoked-nodes";
/// The time before its signature from which a certificate is valid, as upstream's signers have it.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// The users of a node: its kubelet, and its other components.
const PREFIXES: [&str; 2] = ["system:node:", "system:corten:"];

/// The revoked nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations(BTreeMap<String, Timestamp>);

impl Revocations {
    /// Reads the revoked nodes of the cache.
    pub fn cached(registry: &Registry) -> Revocations {
        let object = registry.cached("", "v1", "configmaps", "kube-system", REVOKED_NODES);
        object.map_or_else(Revocations::default, |object| Revocations::read(&object.value()))
    }

    /// Reads the revoked nodes of a ConfigMap. A node whose time cannot be read is revoked for ever.
    fn read(object: &Value) -> Revocations {
        let data = object["data"].as_object().into_iter().flatten();
        let entry = |(node, time): (&String, &Value)| {
            let time = time.as_str().and_then(|time| time.trim().parse().ok());
            (node.clone(), time.unwrap_or(Timestamp::MAX))
        };
        Revocations(data.map(entry).collect())
    }

    /// Reports whether the certificate of a user is revoked.
    pub fn contains(&self, user: &str, der: &[u8]) -> bool {
        if self.0.is_empty() || !PREFIXES.iter().any(|prefix| user.starts_with(prefix)) {
            return false;
        }
        let node = user.rsplit(':').next().unwrap_or_default();
        let Some(revoked) = self.0.get(node) else { return false };
        signed(der).is_none_or(|signed| signed <= *revoked)
    }
}

/// Returns the time at which a certificate was signed.
fn signed(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let from = Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?;
    from.checked_add(BACKDATE).ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::json;

    use super::*;

    /// Returns a certificate that was signed at this second.
    fn certificate(second: u64) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        let from = SystemTime::UNIX_EPOCH + Duration::from_secs(second) - Duration::from_secs(300);
        params.not_before = from.into();
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn certificates_signed_before_the_revocation_of_their_node_are_refused() {
        let at = Timestamp::from_second(1_000_000).unwrap();
        let revoked = Revocations::read(&json!({"data": {"n1": at.to_string(), "broken": "yesterday"}}));
        for (user, second, expected) in [
            ("system:node:n1", 999_999, true),
            ("system:node:n1", 1_000_000, true),
            ("system:node:n1", 1_000_001, false),
            ("system:corten:dns:n1", 999_999, true),
            ("system:corten:proxy:n1", 1_000_001, false),
            ("system:node:n2", 1, false),
            ("system:node:broken", 2_000_000, true),
            ("jane", 1, false),
            ("oidc:n1", 1, false),
        ] {
            assert_eq!(revoked.contains(user, &certificate(second)), expected, "{user} {second}");
        }
        assert!(revoked.contains("system:node:n1", b"no certificate"));
        assert_eq!(Revocations::read(&json!({})), Revocations::default());
    }
}
