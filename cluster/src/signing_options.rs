//! The flags of the CAs that sign approved certificate requests: one for all signers, or one for each signer. The flags
//! and their rules are upstream's.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use corten_controllers::{SigningAuthorities, SigningAuthority};

use crate::files;

/// The flag of the CA for all signers.
const ALL: &str = "cluster_signing_cert_file";

/// The flags.
#[derive(Debug, Clone, Default, Args)]
pub struct SigningOptions {
    /// The CA certificate for the certificate requests of every Kubernetes signer.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// The private key of that CA.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// The CA certificate of the signer kubernetes.io/kubelet-serving: `pki/kubelet-ca.crt` of Corten's API server.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_serving_key_file", conflicts_with = ALL)]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// The private key of that CA.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_serving_cert_file")]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// The CA certificate of the signer kubernetes.io/kube-apiserver-client-kubelet.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_client_key_file", conflicts_with = ALL)]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// The private key of that CA.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_client_cert_file")]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// The CA certificate of the signer kubernetes.io/kube-apiserver-client.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kube_apiserver_client_key_file", conflicts_with = ALL)]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// The private key of that CA.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kube_apiserver_client_cert_file")]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// The CA certificate of the signer kubernetes.io/legacy-unknown.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_legacy_unknown_key_file", conflicts_with = ALL)]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// The private key of that CA.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_legacy_unknown_cert_file")]
    pub cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

impl SigningOptions {
    /// Reads the CAs of the flags.
    pub fn read(&self) -> Result<SigningAuthorities> {
        if let Some(authority) = read(&self.cluster_signing_cert_file, &self.cluster_signing_key_file)? {
            return Ok(SigningAuthorities::all(authority));
        }
        Ok(SigningAuthorities {
            kubelet_serving: read(
                &self.cluster_signing_kubelet_serving_cert_file,
                &self.cluster_signing_kubelet_serving_key_file,
            )?,
            kubelet_client: read(
                &self.cluster_signing_kubelet_client_cert_file,
                &self.cluster_signing_kubelet_client_key_file,
            )?,
            api_client: read(
                &self.cluster_signing_kube_apiserver_client_cert_file,
                &self.cluster_signing_kube_apiserver_client_key_file,
            )?,
            legacy: read(
                &self.cluster_signing_legacy_unknown_cert_file,
                &self.cluster_signing_legacy_unknown_key_file,
            )?,
        })
    }
}

fn read(certificate: &Option<PathBuf>, key: &Option<PathBuf>) -> Result<Option<SigningAuthority>> {
    let (Some(certificate), Some(key)) = (certificate, key) else { return Ok(None) };
    Ok(Some(SigningAuthority { certificate: files::read(certificate)?, key: files::read(key)? }))
}
