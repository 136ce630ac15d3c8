//! `corten down`: stops the server, its containers and its network; with `--purge` nothing of the cluster remains.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cli;
use crate::components::{edge, further_nodes, load_balancing, network, node, storage};
use crate::directories::Directories;
use crate::{instance, kubeconfig, preflight};

/// The time limit of the server's end.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(flags: &cli::Down) -> Result<()> {
    preflight::root()?;
    let directories = Directories::of(&flags.directories);
    let running = instance::running(&directories)?;
    if let Some(pid) = running {
        // Routers must not keep the routes of nodes that stop serving.
        load_balancing::leave(&directories);
        directories.further_nodes().iter().for_each(|name| load_balancing::leave(&directories.node(name)));
        instance::stop(pid, PATIENCE)?;
    }
    super::block_on(stop_proxies(&directories)).context("the proxies of Gateways cannot be stopped")?;
    if directories.data.join("format").exists() {
        super::block_on(tear_down(&directories))?;
    }
    if flags.purge {
        purge(&directories)?;
        if let Some(path) = kubeconfig::user_file(flags.kubeconfig.as_deref()) {
            kubeconfig::remove(&path)?;
        }
    }
    match (running, flags.purge) {
        (_, true) => println!("corten is gone"),
        (Some(_), false) => println!("corten is stopped; its objects are kept in {}", directories.data.display()),
        (None, false) => println!("corten was not running"),
    }
    Ok(())
}

/// Stops the proxies of Gateways of every node of this machine, which outlive the server.
async fn stop_proxies(directories: &Directories) -> Result<()> {
    for name in directories.further_nodes() {
        edge::tear_down(&directories.node(&name)).await?;
    }
    edge::tear_down(directories).await
}

/// Stops the containers and removes the network of every node of this machine.
async fn tear_down(directories: &Directories) -> Result<()> {
    for name in directories.further_nodes() {
        let node = directories.node(&name);
        if let Some(stray) = instance::running(&node)? {
            instance::stop(stray, PATIENCE)?;
        }
        stop_containers(&node).await?;
        let _ = corten_files::remove_tree(&node.run);
    }
    stop_containers(directories).await?;
    further_nodes::cleanup(directories).await.context("the nodes' namespaces cannot be removed")?;
    corten_proxy::cleanup(&corten_proxy::Config::new("", Vec::new()))
        .context("the Services' rules cannot be removed")?;
    let announced = corten_network::announce::Config::new("", Vec::new());
    corten_network::announce::cleanup(&announced).await.context("the load balancers' addresses cannot be removed")?;
    corten_network::routes::cleanup().await.context("the routes to other nodes cannot be removed")?;
    network::cleanup(directories).await.context("the pod network cannot be removed")?;
    Ok(())
}

async fn stop_containers(directories: &Directories) -> Result<()> {
    let config = node::runtime_in(directories, directories.images())?;
    // The network is removed as a whole afterwards, so its part of each pod needs no removal here.
    corten_runtime::purge(&config, Arc::new(corten_runtime::LoopbackNetwork))
        .await
        .context("the containers cannot be stopped")?;
    remove_cgroup(&directories.cgroup());
    storage::cleanup(directories).context("the volumes cannot be unmounted")
}

/// Removes a cgroup and its descendants, in every hierarchy; they are empty now.
fn remove_cgroup(name: &str) {
    let root = Path::new("/sys/fs/cgroup");
    let mut hierarchies = vec![root.to_owned()];
    hierarchies.extend(std::fs::read_dir(root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())));
    for hierarchy in hierarchies {
        remove_cgroup_tree(&hierarchy.join(name.trim_start_matches('/')));
    }
}

fn remove_cgroup_tree(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup_tree(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
}

/// Removes the directories, once nothing is mounted in them any more.
fn purge(directories: &Directories) -> Result<()> {
    for dir in [&directories.run, &directories.data] {
        unmount_below(dir)?;
        remove(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    Ok(())
}

/// Removes a directory. An import or a pull may add files until it notices that its store is gone.
fn remove(dir: &Path) -> std::io::Result<()> {
    let start = Instant::now();
    loop {
        match corten_files::remove_tree(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && start.elapsed() < PATIENCE => {}
            result => return result,
        }
    }
}

/// Unmounts everything below a directory, the innermost first: removing a directory must never reach through a mount.
fn unmount_below(dir: &Path) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    let mut below: Vec<&Path> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4).map(Path::new))
        .filter(|path| path.starts_with(dir) && *path != dir)
        .collect();
    below.sort_unstable();
    for path in below.into_iter().rev() {
        let unmounted = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH);
        ensure!(
            unmounted.is_ok(),
            "{} cannot be unmounted; nothing below {} was removed",
            path.display(),
            dir.display()
        );
    }
    Ok(())
}
