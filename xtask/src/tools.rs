//! The tools that the tests need beyond Rust, gcc and root: kubectl, a static busybox, etcd, iptables, the reference CNI
//! plugins, runc, crun and mkfs.xfs, fetched from the distribution's own package archive into `target/tools`, each compared with
//! its digest (`archive`). Nothing is installed into the system.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::archive::Archive;

/// The oldest kubectl that the tests support.
const LEAST_KUBECTL_MINOR: u32 = 32;
/// A Debian release whose kubectl and etcd are new enough, for hosts whose own are not.
const NEWER_RELEASE: &str = "trixie";

pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

/// Returns the free bytes on the disk of a directory.
pub fn disk_left(dir: &Path) -> Result<u64> {
    let output = Command::new("df").args(["-P", "-k"]).arg(dir).output().context("df cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let left = text.lines().nth(1).and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    Ok(left.with_context(|| format!("df of {} printed {text:?}", dir.display()))? << 10)
}

/// Installs every tool into `target/tools`.
pub fn ensure_all(root: &Path) -> Result<()> {
    let dir = root.join("target/tools");
    std::fs::create_dir_all(&dir)?;
    busybox(&dir).context("busybox-static, which test images are made of")?;
    kubectl(&dir).context("kubectl, which the tests drive clusters with")?;
    etcd(&dir).context("etcd, which several servers keep their objects in")?;
    iptables(&dir).context("iptables, which one mode of the proxy uses")?;
    cni_plugins(&dir).context("containernetworking-plugins, which chains of plugins are tried with")?;
    oci_runtimes(&dir).context("runc and crun, which containers of other handlers are run by")?;
    xfsprogs(&dir).context("xfsprogs, which pools of volumes with snapshots are made by")?;
    Ok(())
}

/// Returns the directories of the programs that tests find by PATH.
pub fn programs(root: &Path) -> [PathBuf; 2] {
    ["xfsprogs", "etcd"].map(|name| root.join("target/tools").join(name))
}

/// Brings the kubectl that reads kubeconfig files.
pub fn ensure_kubectl(root: &Path) -> Result<()> {
    let dir = root.join("target/tools");
    std::fs::create_dir_all(&dir)?;
    kubectl(&dir).context("kubectl, which reads kubeconfig files")
}

/// Brings the busybox that machines made of namespaces boot with.
pub fn ensure_busybox(root: &Path) -> Result<()> {
    let dir = root.join("target/tools");
    std::fs::create_dir_all(&dir)?;
    busybox(&dir).context("busybox-static, which machines boot with")
}

/// Brings runc, an OCI runtime that RuntimeClasses can name, and says where it is.
pub fn ensure_runc(root: &Path) -> Result<PathBuf> {
    let dir = root.join("target/tools");
    std::fs::create_dir_all(&dir)?;
    oci_runtimes(&dir).context("runc, which pods of another handler are run by")?;
    Ok(dir.join("oci-runtimes/runc"))
}

/// crun refuses machines that have controllers in both versions of control groups: it is shown the old ones alone.
const CRUN: &str = r#"#!/bin/sh
export d="$(dirname "$0")" LD_LIBRARY_PATH="$(dirname "$0")/lib"
mountpoint -q /sys/fs/cgroup/unified || exec "$d/crun.bin" "$@"
exec unshare --mount --propagation unchanged sh -c '
    mount --make-private /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; exec "$d/crun.bin" "$@"' crun "$@"
"#;

/// Installs etcd.
fn etcd(dir: &Path) -> Result<()> {
    let tools = dir.join("etcd");
    let tool = tools.join("etcd");
    if tool.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&tools)?;
    let package = Archive::of_release(dir, NEWER_RELEASE)?.download("etcd-server")?;
    std::fs::copy(unpack(&package, dir)?.join("usr/bin/etcd"), &tool)?;
    Ok(())
}

/// Installs runc and crun. The libraries that crun needs beyond every Debian's are beside it, and a script sets their
/// path.
fn oci_runtimes(dir: &Path) -> Result<()> {
    let tools = dir.join("oci-runtimes");
    if tools.join("crun").exists() {
        return Ok(());
    }
    std::fs::create_dir_all(tools.join("lib"))?;
    let archive = Archive::of_host(dir)?;
    for package in ["runc", "libyajl2", "crun"] {
        let unpacked = unpack(&archive.download(package)?, dir)?;
        for path in files_below(&unpacked)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.contains(".so.2") {
                std::fs::copy(&path, tools.join("lib/libyajl.so.2"))?;
            } else if name == "runc" {
                std::fs::copy(&path, tools.join("runc"))?;
            } else if name == "crun" && path.parent().is_some_and(|parent| parent.ends_with("bin")) {
                std::fs::copy(&path, tools.join("crun.bin"))?;
            }
        }
    }
    std::fs::write(tools.join("crun"), CRUN)?;
    std::fs::set_permissions(tools.join("crun"), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// Installs mkfs.xfs. The libraries that it needs beyond every Debian's are beside it, and a script sets their path.
fn xfsprogs(dir: &Path) -> Result<()> {
    let tools = dir.join("xfsprogs");
    let script = tools.join("mkfs.xfs");
    if script.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(tools.join("lib"))?;
    let archive = Archive::of_host(dir)?;
    for package in ["xfsprogs", "libinih1", "liburcu8"] {
        for path in files_below(&unpack(&archive.download(package)?, dir)?)? {
            let name = path.file_name().unwrap_or_default();
            if name == "mkfs.xfs" && path.parent().is_some_and(|parent| parent.ends_with("sbin")) {
                std::fs::copy(&path, tools.join("mkfs.xfs.bin"))?;
            } else if name.to_string_lossy().contains(".so.") {
                std::fs::copy(&path, tools.join("lib").join(name))?;
            }
        }
    }
    std::fs::write(&script, MKFS_XFS)?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}

const MKFS_XFS: &str = "#!/bin/sh\nd=$(dirname \"$0\")\nLD_LIBRARY_PATH=\"$d/lib\" exec \"$d/mkfs.xfs.bin\" \"$@\"\n";

/// Installs iptables with its libraries beside it; scripts set their path.
fn iptables(dir: &Path) -> Result<()> {
    let tools = dir.join("iptables");
    if tools.join("ip6tables-save").exists() {
        return Ok(());
    }
    let modules = tools.join("lib/xtables");
    std::fs::create_dir_all(&modules)?;
    let archive = Archive::of_host(dir)?;
    for package in ["iptables", "libxtables12", "libnftnl11", "libmnl0"] {
        let unpacked = unpack(&archive.download(package)?, dir)?;
        for path in files_below(&unpacked)? {
            let name = path.file_name().unwrap_or_default();
            if path.parent().is_some_and(|parent| parent.ends_with("xtables")) {
                std::fs::copy(&path, modules.join(name))?;
            } else if name.to_string_lossy().contains(".so") {
                std::fs::copy(&path, tools.join("lib").join(name))?;
            } else if name == "xtables-nft-multi" {
                std::fs::copy(&path, tools.join(name))?;
            }
        }
    }
    let script = "#!/bin/sh\nd=$(dirname \"$0\")\nLD_LIBRARY_PATH=\"$d/lib\" XTABLES_LIBDIR=\"$d/lib/xtables\" \\\n  exec \"$d/xtables-nft-multi\" \"$(basename \"$0\")\" \"$@\"\n";
    for program in ["iptables", "iptables-restore", "iptables-save", "ip6tables", "ip6tables-restore", "ip6tables-save"]
    {
        let path = tools.join(program);
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    Ok(())
}

fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_below(&path)?);
        } else if path.exists() {
            found.push(path);
        }
    }
    Ok(found)
}

fn cni_plugins(dir: &Path) -> Result<()> {
    let tools = dir.join("cni");
    if tools.join("bridge").exists() {
        return Ok(());
    }
    let package = Archive::of_host(dir)?.download("containernetworking-plugins")?;
    let unpacked = unpack(&package, dir)?.join("usr/lib/cni");
    std::fs::create_dir_all(&tools)?;
    for entry in std::fs::read_dir(unpacked)? {
        let entry = entry?;
        std::fs::copy(entry.path(), tools.join(entry.file_name()))?;
    }
    Ok(())
}

/// Installs containerd, which the benchmarks compare with our own runtime.
pub fn containerd(root: &Path) -> Result<()> {
    let dir = root.join("target/tools");
    let tools = dir.join("containerd");
    if tools.join("ctr").exists() {
        return Ok(());
    }
    let unpacked = unpack(&Archive::of_host(&dir)?.download("containerd")?, &dir)?.join("usr/bin");
    std::fs::create_dir_all(&tools)?;
    for program in ["containerd", "containerd-shim-runc-v2", "ctr"] {
        std::fs::copy(unpacked.join(program), tools.join(program))?;
    }
    Ok(())
}

fn busybox(dir: &Path) -> Result<()> {
    let tool = dir.join("busybox");
    if tool.exists() {
        return Ok(());
    }
    let package = Archive::of_host(dir)?.download("busybox-static")?;
    let unpacked = unpack(&package, dir)?;
    let binary = ["bin/busybox", "usr/bin/busybox"]
        .iter()
        .map(|path| unpacked.join(path))
        .find(|path| path.exists())
        .context("the package busybox-static holds no busybox")?;
    std::fs::copy(binary, &tool)?;
    Ok(())
}

fn kubectl(dir: &Path) -> Result<()> {
    let tool = dir.join("kubectl");
    if tool.exists() {
        return Ok(());
    }
    if let Some(found) = on_path("kubectl")
        && kubectl_minor(&found).is_some_and(|minor| minor >= LEAST_KUBECTL_MINOR)
    {
        std::os::unix::fs::symlink(found, &tool)?;
        return Ok(());
    }
    let package = Archive::of_release(dir, NEWER_RELEASE)?.download("kubectl")?;
    std::fs::copy(unpack(&package, dir)?.join("usr/bin/kubectl"), &tool)?;
    match kubectl_minor(&tool) {
        Some(minor) if minor >= LEAST_KUBECTL_MINOR => Ok(()),
        found => bail!("the archive's kubectl is 1.{found:?}, at least 1.{LEAST_KUBECTL_MINOR} is needed"),
    }
}

/// Returns the path of a program of the host.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn kubectl_minor(binary: &Path) -> Option<u32> {
    let output = Command::new(binary).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let minor = version["clientVersion"]["minor"].as_str()?;
    minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

fn unpack(package: &Path, dir: &Path) -> Result<PathBuf> {
    let into = dir.join("unpacked").join(package.file_stem().unwrap_or_default());
    std::fs::create_dir_all(&into)?;
    let status =
        Command::new("dpkg-deb").arg("-x").arg(package).arg(&into).status().context("dpkg-deb cannot be run")?;
    ensure!(status.success(), "{} cannot be unpacked", package.display());
    std::fs::remove_file(package)?;
    Ok(into)
}
