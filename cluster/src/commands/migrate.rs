//! `corten store migrate`: moves a server's objects to another store.
//!
//! All ways only read the old store, so it stays complete whenever this is interrupted. The new one appears complete or
//! not at all: a snapshot is renamed once it is synced, and so is the directory of an embedded store; a running etcd has
//! a marker until everything is there and the old server has stopped. The API of etcd cannot set revisions, hence the way that keeps them is a snapshot
//! that etcdutl restores; in a running etcd they are raised, and clients list again.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use corten_store::etcd::{self, Etcd};
use corten_store::snapshot::{self, Contents, Limits, Member};
use corten_store::transfer::{Transfer, Transferred};
use corten_store::{Config, Embedded, Store};

use crate::directories::Directories;
use crate::store_cli::{Migrate, Target};
use crate::{instance, preflight, private};

/// The prefix of all objects. It is a part of what encrypted objects are sealed with, so no move changes it.
const PREFIX: &[u8] = b"/registry/";
/// The revisions that etcd is raised by in advance, for the writes of the last moment.
const RAISED_AHEAD: u64 = 1_000;
/// The interval in which a store is frozen again; a freeze lasts half a minute.
const FREEZE_AGAIN: Duration = Duration::from_secs(10);
/// The interval of checking whether the server has stopped.
const POLL: Duration = Duration::from_millis(200);
/// The suffix of files that are not complete yet.
const UNFINISHED: &str = "part";

pub async fn run(flags: &Migrate) -> Result<()> {
    preflight::root_for("store migrate")?;
    let directories = Directories::of(&flags.directories);
    if flags.to == Target::Etcd && flags.snapshot.is_none() {
        ensure!(!flags.etcd_servers.is_empty(), "--to etcd needs --etcd-servers or --snapshot");
        let target = Etcd::open(flags.tls.client(&flags.etcd_servers)?).await?;
        return into_etcd(&directories, &*target).await;
    }
    // A server that runs on this data directory would go on writing.
    let _lock = instance::acquire(&directories)?;
    let store = directories.data.join("store");
    match (flags.to, &flags.snapshot) {
        (Target::Etcd, Some(path)) => to_etcd(&store, path),
        (Target::Etcd, None) => bail!("--to etcd needs --etcd-servers or --snapshot"),
        (Target::Embedded, Some(path)) => {
            import(&store, &snapshot::load(path, Limits::default())?, &path.display().to_string())
        }
        (Target::Embedded, None) => {
            ensure!(!flags.etcd_servers.is_empty(), "--to embedded needs --snapshot or --etcd-servers");
            let config = flags.tls.client(&flags.etcd_servers)?;
            let contents = download(&directories, &config).await?;
            import(&store, &contents, &flags.etcd_servers.join(","))
        }
    }
}

/// Copies the embedded store into a running etcd; that of a running server while it serves reads.
async fn into_etcd(directories: &Directories, target: &dyn Store) -> Result<()> {
    if let Some(server) = instance::running(directories)? {
        return from_running(directories, server, target).await;
    }
    let _lock = instance::acquire(directories)?;
    let store = directories.data.join("store");
    ensure!(store.join("FORMAT").exists(), "there is no embedded store in {}", store.display());
    let source = Embedded::open(Config::new(&store)).context("the store cannot be opened")?;
    let copied = Transfer::begin(target, PREFIX).await?.copy(&*source).await?;
    report(&copied.complete().await?);
    println!("start the server with --etcd-servers; the embedded store is unchanged");
    Ok(())
}

/// Copies the store of a running server, which takes no writes until it stops or this command ends.
async fn from_running(directories: &Directories, server: i32, target: &dyn Store) -> Result<()> {
    let socket = directories.etcd_socket();
    ensure!(socket.exists(), "the server that runs here (pid {server}) has no embedded store");
    let url = format!("unix://{}", socket.display());
    let config = etcd::Config { compaction_interval: Duration::ZERO, ..etcd::Config::new(vec![url]) };
    let source = Etcd::open(config).await.context("the server's store cannot be reached")?;
    let transfer = Transfer::begin(target, PREFIX).await?;
    // Most of the revisions are raised while the cluster still takes writes.
    transfer.raise(source.current().await? + RAISED_AHEAD).await?;
    source.set_writable(false).await?;
    println!("the cluster serves reads, and takes no writes");
    let work = async {
        let copied = transfer.copy(&*source).await?;
        report(&copied.transferred);
        println!("stop this server; this command waits until it has stopped, and completes the move");
        while instance::running(directories)? == Some(server) {
            tokio::time::sleep(POLL).await;
        }
        Ok(copied)
    };
    let ended = tokio::select! {
        copied = work => copied,
        error = stay_frozen(&source, directories, server) => Err(error),
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
    };
    match ended {
        Ok(copied) => {
            copied.complete().await?;
            println!("the move is complete; start the server with --etcd-servers");
            Ok(())
        }
        Err(error) => {
            if instance::running(directories)? == Some(server) {
                source.set_writable(true).await.context("the cluster takes writes again in half a minute")?;
                println!("the cluster takes writes again, which etcd does not have");
            }
            Err(error)
        }
    }
}

/// Keeps the server's store frozen while the server runs; returns the error if that fails.
async fn stay_frozen(source: &Etcd, directories: &Directories, server: i32) -> anyhow::Error {
    let mut frozen = Instant::now();
    loop {
        tokio::time::sleep(FREEZE_AGAIN.saturating_sub(frozen.elapsed()).max(POLL)).await;
        match source.set_writable(false).await {
            Ok(()) => frozen = Instant::now(),
            // A server that stops no longer answers, and the last freeze holds on.
            Err(_) if frozen.elapsed() < FREEZE_AGAIN * 2 => {}
            Err(error) => match instance::running(directories) {
                Ok(running) if running != Some(server) => std::future::pending().await,
                _ => return anyhow!(error).context("the server's store could not be kept from writes"),
            },
        }
    }
}

fn report(moved: &Transferred) {
    println!("copied {} keys at revision {}; etcd has them at revision {}", moved.keys, moved.from, moved.to);
    println!("resourceVersions are higher than before, and clients list again");
}

/// Writes the embedded store as a snapshot for etcdutl.
fn to_etcd(store: &Path, path: &Path) -> Result<()> {
    ensure!(!path.exists(), "{} is there already: a snapshot is not overwritten", path.display());
    ensure!(store.join("FORMAT").exists(), "there is no embedded store in {}", store.display());
    let contents = Embedded::open(Config::new(store)).context("the store cannot be opened")?.contents();
    write_snapshot(&contents, path)?;
    let path = path.display();
    println!("wrote {} keys at revision {} to {path}", contents.current().len(), contents.revision);
    println!("restore it on each new member, and start etcd on the new directory:");
    println!("  etcdutl snapshot restore {path} --data-dir DIR --name NAME --initial-cluster NAME=URL,… \\");
    println!("    --initial-advertise-peer-urls URL");
    println!("then start the server with --etcd-servers; the embedded store is unchanged");
    Ok(())
}

fn write_snapshot(contents: &Contents, path: &Path) -> Result<()> {
    let unfinished = unfinished(path);
    let failed = || format!("cannot write {}", path.display());
    let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&unfinished);
    let file = file.with_context(failed)?;
    // A restore gives the members their own names.
    let name = "corten".to_owned();
    let member = Member { id: 1, name, peer_urls: Vec::new(), client_urls: Vec::new(), applied: contents.revision };
    snapshot::save(contents, &member, &file).and_then(|_| file.sync_all()).with_context(failed)?;
    corten_durable::rename(&unfinished, path).with_context(failed)
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(UNFINISHED);
    name.into()
}

/// Downloads a snapshot of etcd, and reads it.
async fn download(directories: &Directories, config: &etcd::Config) -> Result<Contents> {
    let limits = Limits::default();
    private::directory(&directories.data)?;
    let path = directories.data.join(format!("etcd-snapshot.db.{UNFINISHED}"));
    let written = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let mut file = written.with_context(|| format!("cannot write {}", path.display()))?;
    let contents = match etcd::download(config, limits.file_bytes, &mut file).await {
        Ok(_) => snapshot::load(&path, limits),
        Err(error) => Err(error),
    };
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(contents?)
}

fn import(store: &Path, contents: &Contents, source: &str) -> Result<()> {
    Embedded::import(store, contents)?;
    println!(
        "imported {} keys at revision {} from {source} into {}; {source} is unchanged",
        contents.current().len(),
        contents.revision,
        store.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use corten_store::{Expect, Op};

    use super::*;

    #[tokio::test]
    async fn a_store_goes_into_a_snapshot_and_back_with_its_revisions() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("old");
        let path = folder.path().join("snapshot.db");
        let error = to_etcd(&old, &path).unwrap_err().to_string();
        assert!(error.contains("there is no embedded store"), "{error}");
        let store = Embedded::open(Config::new(&old)).unwrap();
        for number in 0..10 {
            store.commit(vec![Op::put(format!("/registry/{number}"), "v", Expect::Any)]).await.unwrap();
        }
        let before = store.contents();
        drop(store);
        // The remains of an interrupted run do not matter.
        std::fs::write(unfinished(&path), "half").unwrap();
        to_etcd(&old, &path).unwrap();
        assert!(!unfinished(&path).exists());
        let error = to_etcd(&old, &path).unwrap_err().to_string();
        assert!(error.contains("not overwritten"), "{error}");
        let new = folder.path().join("new");
        import(&new, &snapshot::load(&path, Limits::default()).unwrap(), "the snapshot").unwrap();
        assert_eq!(Embedded::open(Config::new(&new)).unwrap().contents(), before);
        let error = import(&new, &before, "the snapshot").unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        assert_eq!(Embedded::open(Config::new(&old)).unwrap().contents(), before, "the old store is unchanged");
    }
}
