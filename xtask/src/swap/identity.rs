//! The identities of the parts: certificates of the cluster's authorities, and a kubeconfig for each client.
//!
//! `corten apiserver` makes the authorities at its first start. All further certificates are signed here with openssl, so
//! that parts of both projects have the same files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit_machine::machine::ADDRESS;

use crate::conformance::node::output_of;

/// The URL of the API server.
const SERVER: &str = "https://127.0.0.1:6443";
/// The first address of the Services' range, which is the API server's.
const SERVICE_ADDRESS: &str = "10.96.0.1";

/// The files of all parts.
pub struct Identity {
    /// The directory that `corten apiserver` wrote the authorities to.
    pki: PathBuf,
    dir: PathBuf,
}

impl Identity {
    /// Signs all certificates and writes the kubeconfigs.
    pub fn make(pki: &Path, dir: &Path, node: &str) -> Result<Identity> {
        std::fs::create_dir_all(dir)?;
        let identity = Identity { pki: pki.to_owned(), dir: dir.to_owned() };
        let server =
            format!("DNS:kubernetes,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:{ADDRESS},IP:{SERVICE_ADDRESS}");
        identity.sign("apiserver", "ca", "/CN=kube-apiserver", &server)?;
        identity.sign("apiserver-kubelet-client", "ca", "/O=system:masters/CN=kube-apiserver-kubelet-client", "")?;
        identity.sign("kubelet-serving", "kubelet-ca", &format!("/CN={node}"), &format!("DNS:{node},IP:{ADDRESS}"))?;
        for (name, subject) in [
            ("admin", "/O=system:masters/CN=kubernetes-admin".to_owned()),
            ("controller-manager", "/CN=system:kube-controller-manager".to_owned()),
            ("scheduler", "/CN=system:kube-scheduler".to_owned()),
            ("kubelet", format!("/O=system:nodes/CN=system:node:{node}")),
            ("proxy", "/CN=system:kube-proxy".to_owned()),
        ] {
            identity.sign(name, "ca", &subject, "")?;
            std::fs::write(identity.kubeconfig(name), identity.kubeconfig_of(name))?;
        }
        let mut public = Command::new("openssl");
        public.args(["pkey", "-pubout", "-in"]).arg(pki.join("sa.key")).arg("-out").arg(identity.file("sa.pub"));
        output_of(&mut public)?;
        Ok(identity)
    }

    /// Returns the path of a file that was made here.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the path of a file of the cluster's authorities.
    pub fn authority(&self, name: &str) -> PathBuf {
        self.pki.join(name)
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.conf"))
    }

    /// Signs a certificate with a new key; one with names is a server's.
    fn sign(&self, name: &str, authority: &str, subject: &str, names: &str) -> Result<()> {
        let key = self.file(&format!("{name}.key"));
        let request = self.file(&format!("{name}.csr"));
        let mut make = Command::new("openssl");
        make.args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj"]);
        output_of(make.arg(subject).arg("-keyout").arg(&key).arg("-out").arg(&request))?;
        let usage = if names.is_empty() { "clientAuth" } else { "serverAuth" };
        let mut extensions = format!("extendedKeyUsage={usage}\n");
        if !names.is_empty() {
            extensions.push_str(&format!("subjectAltName={names}\n"));
        }
        let file = self.file(&format!("{name}.ext"));
        std::fs::write(&file, extensions)?;
        let mut sign = Command::new("openssl");
        sign.args(["x509", "-req", "-days", "1", "-CAcreateserial", "-in"]).arg(&request);
        sign.arg("-CA").arg(self.pki.join(format!("{authority}.crt")));
        sign.arg("-CAkey").arg(self.pki.join(format!("{authority}.key")));
        sign.arg("-CAserial").arg(self.file(&format!("{authority}.srl")));
        sign.arg("-extfile").arg(&file).arg("-out").arg(self.file(&format!("{name}.crt")));
        output_of(&mut sign).with_context(|| format!("the certificate of {name}"))?;
        ensure!(key.exists(), "openssl wrote no key of {name}");
        Ok(())
    }

    fn kubeconfig_of(&self, name: &str) -> String {
        format!(
            "apiVersion: v1
kind: Config
current-context: swap
clusters: [{{name: swap, cluster: {{server: '{SERVER}', certificate-authority: '{}'}}}}]
contexts: [{{name: swap, context: {{cluster: swap, user: swap}}}}]
users: [{{name: swap, user: {{client-certificate: '{}', client-key: '{}'}}}}]
",
            self.authority("ca.crt").display(),
            self.file(&format!("{name}.crt")).display(),
            self.file(&format!("{name}.key")).display(),
        )
    }
}
