//! The facts that a restored data directory has beside its store and its keys: the settings of the cluster, and the node.
//!
//! A server that starts on such a directory takes them in place of flags, so that it needs no other file.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::backup::ENCRYPTION_FILE;
use crate::cli;
use crate::directories::Directories;
use crate::membership;
use crate::settings::Settings;

/// The name of the file in a data directory.
pub const FILE: &str = "cluster.json";

/// The facts of a restored cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    pub settings: Settings,
    /// The name of the node that this machine is.
    pub node_name: String,
}

impl Restored {
    /// Reads the facts of a data directory; none for one that was not restored.
    pub fn read(directories: &Directories) -> Result<Option<Restored>> {
        let path = path(directories);
        match std::fs::read(&path) {
            Ok(bytes) => {
                let restored = serde_json::from_slice(&bytes);
                Ok(Some(restored.with_context(|| format!("{} is damaged", path.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

fn path(directories: &Directories) -> PathBuf {
    directories.data.join(FILE)
}

/// Completes the flags of a server by the facts of its data directory. Refuses a directory whose restore was interrupted.
pub fn adopt(flags: &mut cli::Server) -> Result<()> {
    let directories = Directories::of(&flags.directories);
    corten_backup::restore::refuse_pending(&directories.data)?;
    let Some(restored) = Restored::read(&directories)? else { return Ok(()) };
    membership::adopt(flags, &restored.settings)?;
    if flags.node_name.is_none() && !restored.node_name.is_empty() {
        flags.node_name = Some(restored.node_name);
    }
    let encryption = directories.data.join(ENCRYPTION_FILE);
    if flags.access.encryption_provider_config.is_none() && encryption.exists() {
        flags.access.encryption_provider_config = Some(encryption);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn server(words: &[&str]) -> cli::Server {
        match cli::Cli::parse_from([&["corten", "server"], words].concat()).command {
            cli::Command::Server(server) => server,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_restored_directory_completes_the_flags() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().to_str().unwrap();
        let mut flags = server(&["--data-dir", data]);
        let before = format!("{flags:?}");
        adopt(&mut flags).unwrap();
        assert_eq!(format!("{flags:?}"), before);
        let settings = Settings { cluster_cidr: "10.7.0.0/16".to_owned(), ..Settings::default() };
        let restored = Restored { settings, node_name: "old".to_owned() };
        std::fs::write(folder.path().join(FILE), serde_json::to_vec(&restored).unwrap()).unwrap();
        std::fs::write(folder.path().join(ENCRYPTION_FILE), "kind: EncryptionConfiguration").unwrap();
        adopt(&mut flags).unwrap();
        assert_eq!((flags.cluster_cidr.as_str(), flags.node_name.as_deref()), ("10.7.0.0/16", Some("old")));
        assert_eq!(flags.access.encryption_provider_config, Some(folder.path().join(ENCRYPTION_FILE)));
        let mut named = server(&["--data-dir", data, "--node-name", "new"]);
        adopt(&mut named).unwrap();
        assert_eq!(named.node_name.as_deref(), Some("new"));
        let mut other = server(&["--data-dir", data, "--cluster-cidr", "10.8.0.0/16"]);
        assert!(adopt(&mut other).unwrap_err().to_string().contains("the cluster has 10.7.0.0/16"));
    }
}
