//! The hash of a CA's public key, by which a cluster is known.

use anyhow::{Context, Result};
use ring::digest;

/// Returns the hash of a CA's public key, in the form of `--discovery-token-ca-cert-hash`.
pub fn hash(authority: &str) -> Result<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(authority.as_bytes()).context("the authority is no certificate")?;
    let certificate = pem.parse_x509().context("the authority is no certificate")?;
    let digest = digest::digest(&digest::SHA256, certificate.public_key().raw);
    Ok(format!("sha256:{}", digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}
