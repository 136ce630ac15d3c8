//! The certificates in the files of a machine: what each is, who uses it, until when, and which part renews it.

use std::path::{Path, PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::directories::Directories;
use crate::kubeconfig;
use crate::pki::validity::Validity;

/// The renewing part of certificates that the server signs.
const SERVER: &str = "corten server";
/// The renewing part of certificates that a node requests.
const AGENT: &str = "corten agent";
/// The command that replaces authorities.
const ROTATION: &str = "corten ca rotate";

/// The files of certificates, with their users and the part that renews them.
const FILES: [(&str, &str, &str); 17] = [
    ("ca.crt", "all clients, to trust the API server", ROTATION),
    ("kubelet-ca.crt", "the API server, to trust kubelets", ROTATION),
    ("front-proxy-ca.crt", "aggregated API servers, to trust the API server", ROTATION),
    ("etcd-ca.crt", "etcd members", "-"),
    ("apiserver.crt", "API server", SERVER),
    ("apiserver-kubelet-client.crt", "API server, towards kubelets", SERVER),
    ("front-proxy-client.crt", "API server, towards aggregated API servers", SERVER),
    ("kube-controller-manager.crt", "controller manager", SERVER),
    ("cloud-controller-manager.crt", "cloud controller manager", SERVER),
    ("kube-scheduler.crt", "scheduler", SERVER),
    ("kubelet.crt", "kubelet", SERVER),
    ("kubelet-client-current.pem", "kubelet, towards the API server", AGENT),
    ("kubelet-server-current.pem", "kubelet", AGENT),
    ("server.crt", "etcd, towards its clients", SERVER),
    ("peer.crt", "etcd, towards its peers", SERVER),
    ("client.crt", "API server, towards etcd", SERVER),
    ("admin.conf", "administrator", SERVER),
];

/// A certificate of this machine.
pub struct Listed {
    /// The file, below the data directory.
    pub name: String,
    pub subject: String,
    pub validity: Validity,
    pub used_by: String,
    pub renewed_by: String,
}

/// Returns the certificates below a data directory, those of further nodes too.
pub fn list(directories: &Directories) -> Vec<Listed> {
    let mut paths = Vec::new();
    for folder in ["pki", "kubeconfig", "etcd/pki"] {
        paths.extend(files(&directories.data.join(folder)));
    }
    for node in directories.further_nodes() {
        paths.extend(files(&directories.node(&node).pki()));
    }
    paths.iter().filter_map(|path| read(&directories.data, path)).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    files.sort_unstable();
    files
}

/// Reads the certificate of a file; none for a file without one, and for copies of one that is listed.
fn read(data: &Path, path: &Path) -> Option<Listed> {
    let file = path.file_name()?.to_str()?;
    let pem = match path.extension()?.to_str()? {
        "crt" | "pem" if !file.ends_with("-cross.crt") => std::fs::read(path).ok()?,
        "conf" => {
            let config = kubeconfig::read(path).ok()?;
            STANDARD.decode(config.pointer("/users/0/user/client-certificate-data")?.as_str()?).ok()?
        }
        _ => return None,
    };
    let (_, parsed) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let subject = parsed.parse_x509().ok()?.subject().to_string();
    let name = path.strip_prefix(data).unwrap_or(path).to_string_lossy().into_owned();
    let is_of_etcd = name.starts_with("etcd/") && file == "ca.crt";
    let known = FILES.iter().find(|(known, ..)| *known == file).filter(|_| !is_of_etcd);
    let component = file.strip_suffix("-client-current.pem").unwrap_or("another program");
    let used_by = known.map_or_else(|| component.to_owned(), |(_, used_by, _)| (*used_by).to_owned());
    // A machine with the authority's key signs for itself.
    let renewer = if data.join("pki/ca.key").exists() { SERVER } else { AGENT };
    let renewed_by = match known {
        _ if file.ends_with("-current.pem") => renewer,
        Some((_, _, renewed_by)) => renewed_by,
        None if is_of_etcd => SERVER,
        None => "-",
    };
    let used_by = if is_of_etcd { "etcd".to_owned() } else { used_by };
    Some(Listed { name, subject, validity: Validity::of_pem(&pem)?, used_by, renewed_by: renewed_by.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Leaf, Pki, write_private};

    #[test]
    fn all_certificates_of_a_machine_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories { data: dir.path().to_owned(), run: dir.path().join("run") };
        let pki = Pki::open(&directories.pki()).unwrap();
        let identity = pki.cluster.issue(&Leaf::client("kubernetes-admin", &["system:masters"])).unwrap();
        let admin = kubeconfig::single("https://127.0.0.1:6443", &pki.cluster.certificate, &identity);
        kubeconfig::write(&directories.kubeconfig("admin"), &admin).unwrap();
        write_private(&directories.pki().join("dns-client-current.pem"), identity.certificate.as_bytes()).unwrap();
        write_private(&directories.pki().join("nonsense.crt"), b"nonsense").unwrap();
        let rows: Vec<String> = list(&directories)
            .into_iter()
            .map(|one| format!("{} | {} | {} | {}", one.name, one.subject, one.used_by, one.renewed_by))
            .collect();
        assert_eq!(
            rows,
            [
                "pki/ca.crt | CN=kubernetes | all clients, to trust the API server | corten ca rotate",
                "pki/dns-client-current.pem | CN=kubernetes-admin, O=system:masters | dns | corten server",
                "pki/front-proxy-ca.crt | CN=front-proxy-ca | aggregated API servers, to trust the API server | \
                 corten ca rotate",
                "pki/kubelet-ca.crt | CN=kubelet-ca | the API server, to trust kubelets | corten ca rotate",
                "kubeconfig/admin.conf | CN=kubernetes-admin, O=system:masters | administrator | corten server",
            ]
        );
    }
}
