//! The proxy's credentials: a directory of its own, which it inherits open. The directories above it are root's alone.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::{DIRECTORY, USER};
use crate::api_servers::{ApiServers, SERVER_NAME};
use crate::{kubeconfig, pki};

/// The proxy's credentials: a copy of its kubeconfig that its user can read.
pub struct Credentials {
    pub source: PathBuf,
    pub directory: PathBuf,
    /// The node's way to all API servers; without it the server of the kubeconfig is the only one.
    pub servers: Option<ApiServers>,
}

impl Credentials {
    /// Copies the kubeconfig, with the authority and the identity in files of their own, which the proxy reads again when
    /// they change. Returns the path of the kubeconfig in the proxy's process; its name has a digest of its content, so
    /// that a proxy of an earlier server process is known to have another one.
    pub fn renew(&self) -> Result<String> {
        let mut config = kubeconfig::read(&self.source)?;
        let identity = kubeconfig::identity(&self.source)?;
        let authority = kubeconfig::authority(&self.source)?;
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot create {}", self.directory.display()))?;
        let file = |name: &str| format!("/proc/self/fd/{DIRECTORY}/{name}");
        let client = file("client.pem");
        config["users"][0]["user"] = json!({"client-certificate": client, "client-key": client});
        let server = config["clusters"][0]["cluster"]["server"].take();
        config["clusters"][0]["cluster"] = match &self.servers {
            Some(servers) => json!({
                "server": servers.url(),
                "tls-server-name": SERVER_NAME,
                "certificate-authority": file("ca.crt"),
            }),
            None => json!({"server": server, "certificate-authority": file("ca.crt")}),
        };
        self.write("ca.crt", &authority)?;
        self.write("client.pem", &format!("{}{}", identity.certificate, identity.key))?;
        let content = corten_meta::codec::encode_yaml(&config);
        let digest = ring::digest::digest(&ring::digest::SHA256, content.as_bytes());
        let name =
            digest.as_ref().iter().take(8).fold("kubeconfig-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        self.write(&name, &content)?;
        self.own(&self.directory, 0o500)?;
        Ok(file(&name))
    }

    /// Writes a file of the proxy, unless it has this content.
    fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.directory.join(name);
        if std::fs::read(&path).is_ok_and(|current| current == content.as_bytes()) {
            return Ok(());
        }
        pki::write_private(&path, content.as_bytes())?;
        self.own(&path, 0o400)
    }

    fn own(&self, path: &Path, mode: u32) -> Result<()> {
        chown(path, Some(USER), Some(USER))
            .with_context(|| format!("cannot change the owner of {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot change the mode of {}", path.display()))
    }

    /// Opens the directory, for the proxy to inherit.
    pub fn open(&self) -> Result<File> {
        File::open(&self.directory).with_context(|| format!("cannot open {}", self.directory.display()))
    }
}
