//! The directories of a cluster on this machine.

use std::path::{Path, PathBuf};

use crate::cli;

/// Where a cluster keeps its things on this machine.
#[derive(Clone, Debug)]
pub struct Place {
    pub data: PathBuf,
    pub run: PathBuf,
}

impl Place {
    pub fn of(place: &cli::Where) -> Place {
        Place { data: absolute(&place.data_dir), run: absolute(&place.run_dir) }
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

    /// The file that says which data directory the running server has.
    pub fn data_of_server(&self) -> PathBuf {
        self.run.join("data-dir")
    }

    /// The file that says why the last server ended, if it failed.
    pub fn failure(&self) -> PathBuf {
        self.run.join("failure")
    }

    pub fn cri_socket(&self) -> PathBuf {
        self.run.join("cri.sock")
    }

    /// The socket of etcd's API on the embedded store.
    pub fn etcd_socket(&self) -> PathBuf {
        self.run.join("etcd.sock")
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.data.join("kubeconfig").join(format!("{name}.conf"))
    }

    /// The directories of keys, credentials and objects, as far as they are there.
    pub fn secret_directories(&self) -> Vec<PathBuf> {
        self.existing(&["audit", "kubeconfig", "pki", "store"])
    }

    /// The directories of the node's components, as far as they are there.
    pub fn node_directories(&self) -> Vec<PathBuf> {
        self.existing(&["images", "kubelet", "log", "network", "nodes", "runtime"])
    }

    fn existing(&self, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| self.data.join(name)).filter(|path| path.is_dir()).collect()
    }

    /// The images of this machine; its nodes share them.
    pub fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Where a further node of this cluster lives.
    pub fn node(&self, name: &str) -> Place {
        Place { data: self.data.join("nodes").join(name), run: self.run.join("nodes").join(name) }
    }

    /// The names of the further nodes that have a place here.
    pub fn further_nodes(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.data.join("nodes"))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// The cgroup that holds all of this place's pods; one per data directory, so that clusters do not mix.
    pub fn cgroup(&self) -> String {
        let default = cli::DEFAULT_DATA_DIR;
        if self.data.as_os_str() == default {
            return "/corten".into();
        }
        format!("/corten-{}", short_hash(&self.data.to_string_lossy()))
    }
}

/// Eight characters that stand for a longer string: the same on every run and by every version, as they name things on
/// the machine.
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
    fn a_hash_that_names_things_is_always_the_same() {
        assert_eq!(short_hash("/var/lib/corten"), "dfb22e75");
    }
}
