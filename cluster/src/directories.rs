//! The directories of a cluster on this machine.

use std::path::{Path, PathBuf};

use crate::flag_values::{DEFAULT_DATA_DIR, DirectoryFlags};

/// The data directory and the run directory of a cluster on this machine.
#[derive(Clone, Debug)]
pub struct Directories {
    pub data: PathBuf,
    pub run: PathBuf,
}

impl Directories {
    pub fn of(directories: &DirectoryFlags) -> Directories {
        Directories { data: absolute(&directories.data_dir), run: absolute(&directories.run_dir) }
    }

    pub fn pki(&self) -> PathBuf {
        self.data.join("pki")
    }

    pub fn log(&self) -> PathBuf {
        self.data.join("corten.log")
    }

    pub fn pid(&self) -> PathBuf {
        self.run.join("corten.pid")
    }

    /// Returns the file with the data directory of the running server.
    pub fn data_of_server(&self) -> PathBuf {
        self.run.join("data-dir")
    }

    /// Returns the file with the digest of the authorities and keys that the running server has taken over.
    pub fn loaded_authorities(&self) -> PathBuf {
        self.run.join("authorities")
    }

    /// Returns the certificate file of the cluster's CA.
    pub fn authority(&self) -> PathBuf {
        self.pki().join("ca.crt")
    }

    /// Returns the file with the error of the last server, if it failed.
    pub fn failure(&self) -> PathBuf {
        self.run.join("failure")
    }

    pub fn cri_socket(&self) -> PathBuf {
        self.run.join("cri.sock")
    }

    /// Returns the directory of the sockets by which servers find the node's proxies of Gateways.
    pub fn edge_sockets(&self) -> PathBuf {
        self.run.join("edge-sockets")
    }

    /// The socket of etcd's API on the embedded store.
    pub fn etcd_socket(&self) -> PathBuf {
        self.run.join("etcd.sock")
    }

    /// Returns the file with the path of the user's kubeconfig, whose context `corten up` wrote.
    pub fn user_kubeconfig(&self) -> PathBuf {
        self.data.join("kubeconfig").join("user")
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.data.join("kubeconfig").join(format!("{name}.conf"))
    }

    /// Returns the directories of keys, credentials and objects that exist.
    pub fn secret_directories(&self) -> Vec<PathBuf> {
        self.existing(&["audit", "etcd", "kubeconfig", "pki", "store"])
    }

    /// Returns the directories of the node's components that exist.
    pub fn node_directories(&self) -> Vec<PathBuf> {
        self.existing(&["images", "kubelet", "log", "network", "nodes", "runtime"])
    }

    fn existing(&self, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| self.data.join(name)).filter(|path| path.is_dir()).collect()
    }

    /// Returns the image store of this machine; its nodes share it.
    pub fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Returns the directories of a further node of this cluster.
    pub fn node(&self, name: &str) -> Directories {
        Directories { data: self.data.join("nodes").join(name), run: self.run.join("nodes").join(name) }
    }

    /// Returns the names of the further nodes that have directories here.
    pub fn further_nodes(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.data.join("nodes"))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// Returns the names of the further nodes that are servers.
    pub fn further_servers(&self) -> Vec<String> {
        let is_server = |name: &String| self.node(name).data.join("etcd").exists();
        self.further_nodes().into_iter().filter(is_server).collect()
    }

    /// Returns the cgroup of all pods of this data directory; one per data directory, so that clusters do not mix.
    pub fn cgroup(&self) -> String {
        let default = DEFAULT_DATA_DIR;
        if self.data.as_os_str() == default {
            return "/corten".into();
        }
        format!("/corten-{}", short_hash(&self.data.to_string_lossy()))
    }
}

/// Returns eight characters for a longer string: the same on every run and in every version, because they name
/// resources of the machine.
fn short_hash(string: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, string.as_bytes());
    digest.as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::short_hash;

    #[test]
    fn a_hash_that_names_resources_is_always_the_same() {
        assert_eq!(short_hash("/var/lib/corten"), "dfb22e75");
    }
}
