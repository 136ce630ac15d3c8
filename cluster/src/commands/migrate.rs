//! `corten store migrate`: moves a stopped server's objects to another store, with the same revisions.
//!
//! Both directions only read the old store, so it stays complete whenever this is interrupted. The new one appears
//! complete or not at all: a snapshot is renamed once it is synced, and so is the directory of an embedded store. The
//! API of etcd cannot set revisions, hence the way into etcd is a snapshot that etcdutl restores.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use corten_store::snapshot::{self, Contents, Limits, Member};
use corten_store::{Config, Embedded, etcd};

use crate::directories::Directories;
use crate::store_cli::{Migrate, Target};
use crate::{instance, preflight, private};

/// The suffix of files that are not complete yet.
const UNFINISHED: &str = "part";

pub async fn run(flags: &Migrate) -> Result<()> {
    preflight::root_for("store migrate")?;
    let directories = Directories::of(&flags.directories);
    // A server that runs on this data directory would go on writing.
    let _lock = instance::acquire(&directories)?;
    let store = directories.data.join("store");
    match (flags.to, &flags.snapshot) {
        (Target::Etcd, Some(path)) => to_etcd(&store, path),
        (Target::Etcd, None) => bail!("--to etcd needs --snapshot"),
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
    fs::rename(&unfinished, path).with_context(failed)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).with_context(failed)
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
    use corten_store::{Expect, Op, Store as _};

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
