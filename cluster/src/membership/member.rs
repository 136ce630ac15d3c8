//! The etcd member of this machine: its settings, its certificates, and the API server's certificate for it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use corten_members::{CertificateFiles, Config, Credentials};

use super::directory;
use crate::config::Node;
use crate::directories::{Directories, absolute};
use crate::pki::{Authority, Leaf, write_private};
use crate::store_options::StoreOptions;

/// Opens the authority of members; makes it where there is none.
pub fn authority(directories: &Directories) -> Result<Authority> {
    Authority::open(&directories.pki(), "etcd-ca", "etcd-ca")
}

/// Returns the settings of a node's member.
pub fn config(node: &Node) -> Config {
    config_at(&node.directories, node.name.clone(), node.address)
}

/// Returns the settings of the member of a data directory, by its name and address.
pub fn config_at(directories: &Directories, name: String, address: IpAddr) -> Config {
    let pki = directory(directories).join("pki");
    Config {
        name,
        directory: directory(directories),
        address,
        client_port: Config::CLIENT_PORT,
        peer_port: Config::PEER_PORT,
        metrics: metrics(),
        certificates: CertificateFiles {
            authority: pki.join("ca.crt"),
            server: pki.join("server.crt"),
            server_key: pki.join("server.key"),
            peer: pki.join("peer.crt"),
            peer_key: pki.join("peer.key"),
        },
    }
}

/// Returns the etcd binary of the last run, for a start that names none.
pub fn last_binary(directories: &Directories) -> Option<PathBuf> {
    let path = std::fs::read_to_string(binary_file(directories)).ok()?;
    Some(PathBuf::from(path.trim_end_matches('\n'))).filter(|path| path.exists())
}

/// Records the etcd binary for later starts.
pub fn record_binary(directories: &Directories, path: &Path) -> Result<()> {
    let path = absolute(path);
    write_private(&binary_file(directories), format!("{}\n", path.display()).as_bytes())
}

fn binary_file(directories: &Directories) -> PathBuf {
    directory(directories).join("binary")
}

/// Returns the address of the member's metrics.
pub fn metrics() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), Config::METRICS_PORT)
}

/// Signs the member's certificates anew, for the node's name and these addresses. etcd reads them for every connection.
pub fn write_certificates(config: &Config, addresses: &[IpAddr], authority: &Authority) -> Result<()> {
    let mut names = vec![config.name.clone(), "localhost".to_owned(), "127.0.0.1".to_owned()];
    names.extend(addresses.iter().map(IpAddr::to_string));
    names.sort_unstable();
    names.dedup();
    let files = &config.certificates;
    write_private(&files.authority, authority.certificate.as_bytes())?;
    for (certificate, key) in [(&files.server, &files.server_key), (&files.peer, &files.peer_key)] {
        let leaf = Leaf { common_name: &config.name, organizations: &[], names: names.clone() };
        let identity = authority.issue_for_both(&leaf)?;
        // A handshake between the two writes fails and is tried again.
        write_private(key, identity.key.as_bytes())?;
        write_private(certificate, identity.certificate.as_bytes())?;
    }
    Ok(())
}

/// The files of the API server's certificate for etcd.
struct ClientFiles {
    certificate: PathBuf,
    key: PathBuf,
}

fn client_files(config: &Config) -> ClientFiles {
    let pki = config.directory.join("pki");
    ClientFiles { certificate: pki.join("client.crt"), key: pki.join("client.key") }
}

/// Writes the API server's certificate for etcd.
pub fn write_client(config: &Config, credentials: &Credentials) -> Result<()> {
    let files = client_files(config);
    write_private(&files.key, credentials.key.as_bytes())?;
    write_private(&files.certificate, credentials.certificate.as_bytes())
}

/// Returns the flags of the store with the certificates for this machine's etcd.
pub fn store_options(config: &Config, flags: &StoreOptions) -> StoreOptions {
    let files = client_files(config);
    StoreOptions {
        etcd_cafile: Some(config.certificates.authority.clone()),
        etcd_certfile: Some(files.certificate),
        etcd_keyfile: Some(files.key),
        ..flags.clone()
    }
}

/// Refuses a machine on which other processes have the member's ports.
pub fn refuse_taken_ports(config: &Config) -> Result<()> {
    let own = |port: u16| SocketAddr::new(config.address, port);
    for address in [own(config.client_port), own(config.peer_port), config.metrics] {
        if let Err(error) = TcpListener::bind(address) {
            bail!(
                "etcd cannot listen on {address}: {error}; stop the process that does, such as an etcd of the system"
            );
        }
    }
    Ok(())
}

/// Returns what the API server and the commands of this machine are clients of members with.
pub fn credentials(authority: &Authority) -> Result<Credentials> {
    let identity = authority.issue(&Leaf::client("kube-apiserver-etcd-client", &[]))?;
    Ok(Credentials { authority: authority.certificate.clone(), certificate: identity.certificate, key: identity.key })
}
