//! The checks of the machine before a cluster starts. Each failure is one sentence with a remedy.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::config::Cluster;
use crate::directories::Directories;
use crate::private;
use crate::supervision;

/// The layout of the data directory that this binary reads and writes.
const DATA_FORMAT: u32 = 1;
/// The least free space on the data directory's disk: with less, nothing would work for long.
const LEAST_FREE_BYTES: u64 = 64 * 1024 * 1024;

/// Checks everything that a server needs.
pub fn server(cluster: &Cluster) -> Result<()> {
    root()?;
    kernel()?;
    data_directory(&cluster.node.directories)?;
    port_free(cluster.bind, "--port")?;
    port_free(SocketAddr::new(cluster.bind.ip(), cluster.node.kubelet_port), "--kubelet-port")
}

/// Checks everything that a node needs.
pub fn node(directories: &Directories) -> Result<()> {
    root()?;
    kernel()?;
    data_directory(directories)
}

/// Checks for root, which namespaces, mounts and cgroups need.
pub fn root() -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "a node must run as root; try again with sudo");
    Ok(())
}

/// Checks for root: only root can read the files of a cluster.
pub fn root_for(command: &str) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "`corten {command}` must run as root, who alone reads the cluster's files; try again with sudo"
    );
    Ok(())
}

fn kernel() -> Result<()> {
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    ensure!(
        filesystems.split_whitespace().any(|name| name == "overlay") || load_module("overlay"),
        "this kernel has no overlay filesystem (CONFIG_OVERLAY_FS), which container images need"
    );
    ensure!(
        Path::new("/sys/fs/cgroup/cgroup.controllers").exists() || Path::new("/sys/fs/cgroup/memory").exists(),
        "no cgroup hierarchy with a memory controller is mounted at /sys/fs/cgroup"
    );
    corten_nftables::Socket::open().and_then(|mut socket| socket.tables()).map(|_| ()).map_err(|error| {
        anyhow::anyhow!("this kernel has no nf_tables (CONFIG_NF_TABLES), which Services need: {error}")
    })
}

/// Loads a kernel module: only modprobe, where the host has one, can.
fn load_module(name: &str) -> bool {
    std::process::Command::new("modprobe").arg(name).output().is_ok_and(|output| output.status.success())
}

/// Checks that the directory exists, has our format, and has free space on its disk.
pub fn data_directory(directories: &Directories) -> Result<()> {
    private::make_directory(&directories.data)?;
    corten_backup::restore::refuse_pending(&directories.data)?;
    is_ours(directories)?;
    private::directory(&directories.data)?;
    private::directory(&directories.run)?;
    for dir in directories.node_directories() {
        private::directory(&dir)?;
    }
    for dir in directories.secret_directories() {
        private::directory_of_files(&dir)?;
    }
    room(directories)
}

/// Returns the format of a data directory that exists; refuses one that this binary does not read. Writes nothing.
pub fn format_of(directories: &Directories) -> Result<u32> {
    let path = directories.data.join("format");
    match std::fs::read_to_string(&path) {
        Ok(text) => known_format(directories, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("there is no cluster in {}", directories.data.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn known_format(directories: &Directories, text: &str) -> Result<u32> {
    match text.trim().parse::<u32>() {
        Ok(DATA_FORMAT) => Ok(DATA_FORMAT),
        Ok(other) => bail!(
            "{} was written by another version of corten (format {other}; this binary reads format {DATA_FORMAT}); \
             use that version, or choose another --data-dir",
            directories.data.display()
        ),
        Err(_) => bail!("{} is damaged; choose another --data-dir", directories.data.join("format").display()),
    }
}

/// Refuses a directory of another version and one with files of another program; marks a new one.
fn is_ours(directories: &Directories) -> Result<()> {
    let format_file = directories.data.join("format");
    match std::fs::read_to_string(&format_file) {
        Ok(text) => {
            known_format(directories, &text)?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let strangers = std::fs::read_dir(&directories.data)
                .with_context(|| format!("cannot read {}", directories.data.display()))?
                .filter_map(|entry| entry.ok())
                .any(|entry| {
                    !["corten.log", "nodes", "kubeconfig", "pki", "restore.part"]
                        .iter()
                        .any(|known| entry.file_name() == *known)
                });
            ensure!(
                !strangers,
                "{} holds files that are not corten's; choose another --data-dir",
                directories.data.display()
            );
            room(directories)?;
            corten_durable::write(&format_file, format!("{DATA_FORMAT}\n").as_bytes(), 0o644)
                .with_context(|| format!("cannot write {}", format_file.display()))?;
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", format_file.display())),
    }
    Ok(())
}

fn room(directories: &Directories) -> Result<()> {
    let statistics = rustix::fs::statvfs(&directories.data)
        .with_context(|| format!("cannot read {}", directories.data.display()))?;
    let free = statistics.f_bavail * statistics.f_frsize;
    ensure!(
        free >= LEAST_FREE_BYTES,
        "the disk of {} is full: {} MiB are free, at least {} are needed",
        directories.data.display(),
        free >> 20,
        LEAST_FREE_BYTES >> 20
    );
    Ok(())
}

fn port_free(address: SocketAddr, flag: &str) -> Result<()> {
    if supervision::inherits(address) {
        return Ok(());
    }
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("port {} is taken by another process; choose another by {flag}", address.port())
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories() -> (tempfile::TempDir, Directories) {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories { data: dir.path().join("data"), run: dir.path().join("run") };
        (dir, directories)
    }

    #[test]
    fn a_new_directory_is_marked_and_found_again() {
        let (_dir, directories) = directories();
        data_directory(&directories).unwrap();
        data_directory(&directories).unwrap();
        assert_eq!(std::fs::read_to_string(directories.data.join("format")).unwrap(), "1\n");
    }

    #[test]
    fn a_directory_of_another_version_is_refused() {
        let (_dir, directories) = directories();
        data_directory(&directories).unwrap();
        std::fs::write(directories.data.join("format"), "7\n").unwrap();
        let error = data_directory(&directories).unwrap_err().to_string();
        assert!(error.contains("format 7"), "{error}");
    }

    #[test]
    fn a_directory_of_another_program_is_refused() {
        let (_dir, directories) = directories();
        std::fs::create_dir_all(&directories.data).unwrap();
        std::fs::write(directories.data.join("thesis.txt"), "").unwrap();
        let error = data_directory(&directories).unwrap_err().to_string();
        assert!(error.contains("not corten's"), "{error}");
        assert!(!directories.data.join("format").exists());
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&directories.data).unwrap());
        assert_ne!(mode & 0o077, 0, "a foreign directory keeps its mode");
    }

    #[test]
    fn a_port_in_use_names_the_flag() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = port_free(taken.local_addr().unwrap(), "--port").unwrap_err().to_string();
        assert!(error.contains("--port"), "{error}");
    }
}
