//! The certificate of a node's own API.

use std::net::IpAddr;

use anyhow::Result;
use corten_kubelet::Tls;

use crate::pki::{Identity, Leaf, Pki};

/// Returns the subject and the names of a certificate of a node's own API.
pub fn leaf<'a>(user: &'a str, name: &str, addresses: &[IpAddr]) -> Leaf<'a> {
    let mut names = vec![name.to_owned()];
    names.extend(addresses.iter().map(IpAddr::to_string));
    Leaf { common_name: user, organizations: &["system:nodes"], names }
}

/// Issues the certificate of a node's own API.
pub fn serving(pki: &Pki, name: &str, addresses: &[IpAddr]) -> Result<Tls> {
    let user = format!("system:node:{name}");
    let Identity { certificate, key } = pki.kubelet.issue(&leaf(&user, name, addresses))?;
    Ok(Tls { certificate, key, client_ca: pki.cluster.certificate.clone() })
}
