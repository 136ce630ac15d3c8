//! `nfs`: a directory that a server in the network exports, mounted by the node's `mount` (nfs-common, nfs-utils).
//!
//! Invariant: a server that is away holds up the pods that use it and nothing else. The program has a deadline, and the
//! mounted directory is never looked at: the kernel's list says whether it is mounted.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::NFSVolumeSource;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;

use super::{Context, Mounted, teardown, volume_dir};
use crate::error::{Error, Result};

/// The directory of `nfs` volumes in a pod's directory.
pub const NFS_VOLUME: &str = "kubernetes.io~nfs";
/// The longest mount: `mount.nfs` itself tries for two minutes.
const DEADLINE: Duration = Duration::from_secs(150);

/// Mounts the export in the pod's directory, unless it is mounted already.
pub async fn set_up(
    context: &Context<'_>,
    name: &str,
    source: &NFSVolumeSource,
    options: &[String],
    read_only: bool,
) -> Result<Mounted> {
    let read_only = read_only || source.read_only == Some(true);
    let path = volume_dir(context, NFS_VOLUME, name);
    if !is_mounted(&path)? {
        let export = export(source)?;
        fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        mount(&export, &path, &joined(options, read_only)).await?;
    }
    Ok(Mounted { path, writable: !read_only, device: false })
}

fn is_mounted(path: &Path) -> Result<bool> {
    let directory = path.parent().unwrap_or(path);
    Ok(teardown::mounts_below(directory)?.iter().any(|mount: &PathBuf| mount == path))
}

/// Returns the export as `mount` takes it. A server's name must not be taken for an option.
fn export(source: &NFSVolumeSource) -> Result<String> {
    let NFSVolumeSource { server, path, .. } = source;
    if server.is_empty() || server.starts_with('-') {
        return Err(Error::pod(format!("{server:?} is not the name of an NFS server")));
    }
    match server.parse::<Ipv6Addr>() {
        Ok(address) => Ok(format!("[{address}]:{path}")),
        Err(_) => Ok(format!("{server}:{path}")),
    }
}

fn joined(options: &[String], read_only: bool) -> String {
    let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
    if read_only {
        options.push("ro");
    }
    if options.is_empty() { "defaults".to_owned() } else { options.join(",") }
}

async fn mount(export: &str, path: &Path, options: &str) -> Result<()> {
    let mut command = Command::new("mount");
    command.args(["-t", "nfs", "-o", options, export]).arg(path);
    let output = run(command).await?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Error::pod(format!("mount failed: {}: {}", output.status, errors.trim())))
}

/// Ends a program and its helpers, unless it has ended.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// Runs a program until its end or the deadline. If the pod ends before, so do the program and its helpers.
async fn run(mut command: Command) -> Result<Output> {
    let program = PathBuf::from(command.as_std().get_program());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().map_err(Error::file("run", &program))?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let mut group = Group(id.map(Pid::from_raw));
    let ended = tokio::time::timeout(DEADLINE, child.wait_with_output()).await;
    let Ok(output) = ended else {
        return Err(Error::pod(format!("mount: no answer within {} seconds", DEADLINE.as_secs())));
    };
    group.0 = None;
    output.map_err(Error::file("run", &program))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(server: &str) -> NFSVolumeSource {
        NFSVolumeSource { server: server.into(), path: "/a".into(), read_only: None }
    }

    #[test]
    fn an_export_is_a_server_and_a_path() {
        for (server, expected) in
            [("nfs.example", "nfs.example:/a"), ("10.0.0.1", "10.0.0.1:/a"), ("fd00::1", "[fd00::1]:/a")]
        {
            assert_eq!(export(&source(server)).unwrap(), expected);
        }
        for server in ["", "-o"] {
            assert!(export(&source(server)).is_err(), "{server:?}");
        }
    }

    #[test]
    fn a_volume_is_read_only_beside_its_own_options() {
        let options = ["vers=4.0".to_owned(), "relatime".to_owned()];
        assert_eq!(joined(&options, true), "vers=4.0,relatime,ro");
        assert_eq!(joined(&options, false), "vers=4.0,relatime");
        assert_eq!(joined(&[], true), "ro");
        assert_eq!(joined(&[], false), "defaults");
    }

    #[tokio::test]
    async fn a_program_ends_with_its_pod() {
        let root = tempfile::tempdir().unwrap();
        let pid = root.path().join("pid");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sleep 1000 & echo $! > {}.new; mv {0}.new {0}; wait", pid.display()));
        let running = run(command);
        let begun = async {
            while !pid.exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = running => panic!("it ended by itself"),
            () = begun => {}
        }
        let helper = PathBuf::from("/proc").join(fs::read_to_string(pid).unwrap().trim()).join("stat");
        // A zombie of another parent may stay for a moment.
        let has_ended = || fs::read_to_string(&helper).map_or(true, |stat| stat.contains(") Z "));
        while !has_ended() {
            tokio::task::yield_now().await;
        }
    }
}
