//! The check that a kubelet's certificate belongs to the intended node.
//!
//! TLS has verified the chain and the address before this runs. A node may report the address of another node, and the
//! authority that signed kubelets in older versions also signs other servers: so the subject must be the node itself,
//! and the older authority is trusted only for certificates that it signed before kubelets had an authority of their
//! own.

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::KubeletClient;
use crate::error::Error;

/// The trusted authorities of kubelets.
pub struct KubeletAuthorities {
    /// The subjects of the kubelets' authorities.
    subjects: Vec<Vec<u8>>,
    /// The time until which the older authority signed kubelets.
    signed_before: Option<Timestamp>,
}

impl KubeletAuthorities {
    pub fn new(config: &KubeletClient) -> Result<KubeletAuthorities, Error> {
        let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
        let mut subjects = Vec::new();
        for der in CertificateDer::pem_slice_iter(config.ca.as_bytes()) {
            let der = der.map_err(|e| tls(&e))?;
            let (_, certificate) = X509Certificate::from_der(&der).map_err(|e| tls(&e))?;
            subjects.push(certificate.subject().as_raw().to_vec());
        }
        Ok(KubeletAuthorities { subjects, signed_before: config.retired.as_ref().map(|retired| retired.signed_before) })
    }

    /// Checks the certificate of the node's kubelet.
    pub fn check(&self, der: &[u8], node: &str) -> Result<(), String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let subject = certificate.subject();
        let names: Vec<&str> = subject.iter_common_name().filter_map(|name| name.as_str().ok()).collect();
        let is_node = subject.iter_organization().any(|group| group.as_str() == Ok("system:nodes"));
        if names != [format!("system:node:{node}")] || !is_node {
            return Err(format!("certificate is valid for {}, not system:node:{node}", names.join(", ")));
        }
        if self.subjects.iter().any(|own| own == certificate.issuer().as_raw()) {
            return Ok(());
        }
        let signed = Timestamp::from_second(certificate.validity().not_before.timestamp()).ok();
        match signed.zip(self.signed_before) {
            Some((signed, limit)) if signed < limit => Ok(()),
            _ => Err("certificate signed by unknown authority".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RetiredAuthority;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        (pem.clone(), Issuer::from_ca_cert_pem(&pem, key).unwrap())
    }

    fn leaf(issuer: &Issuer<'_, KeyPair>, name: &str, group: &str, from: i64) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["10.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let from = std::time::UNIX_EPOCH + std::time::Duration::from_secs(from.unsigned_abs());
        params.not_before = from.into();
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().to_vec()
    }

    #[test]
    fn only_the_nodes_own_certificate_is_accepted() {
        let (ca, kubelets) = authority("kubelet-ca");
        let (old, cluster) = authority("kubernetes");
        let retired = RetiredAuthority { ca: old, signed_before: Timestamp::from_second(1000).unwrap() };
        let certificate = String::new();
        let key = String::new();
        let client = KubeletClient { ca, retired: Some(retired), certificate, key };
        let authorities = KubeletAuthorities::new(&client).unwrap();
        let alone = KubeletAuthorities::new(&KubeletClient { retired: None, ..client }).unwrap();
        let n1 = "system:node:n1";
        let nodes = "system:nodes";
        for (issuer, name, group, from, with, without) in [
            (&kubelets, n1, nodes, 5000, true, true),
            (&kubelets, "system:node:n2", nodes, 5000, false, false),
            (&kubelets, n1, "other", 5000, false, false),
            (&cluster, n1, nodes, 900, true, false),
            (&cluster, n1, nodes, 1000, false, false),
            (&cluster, "kube-apiserver", "", 900, false, false),
        ] {
            let der = leaf(issuer, name, group, from);
            assert_eq!(authorities.check(&der, "n1").is_ok(), with, "{name} {group} {from}");
            assert_eq!(alone.check(&der, "n1").is_ok(), without, "{name} {group} {from}");
        }
    }
}
