//! `corten restore`: a data directory of a backup, or of a snapshot of etcd.
//!
//! Everything that can be refused is refused before the first file is written. What was there is set aside, never
//! deleted; an interrupted restore is finished or undone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use corten_backup::rebuild::{self, Rebuild, STORE};
use corten_backup::restore::{self, Staging};
use corten_backup::{Manifest, file};
use corten_store::snapshot::{self, Contents, Limits};

use crate::backup;
use crate::backup_cli::Restore;
use crate::directories::Directories;
use crate::restored::{self, Restored};
use crate::settings::Settings;
use crate::{instance, preflight};

/// The names that a cluster has in its data directory.
const OF_A_CLUSTER: [&str; 3] = ["pki", STORE, "etcd"];
/// The prefix of the directories of what was there before.
const ASIDE: &str = "replaced-";
/// The prefix of encrypted values.
const ENCRYPTED: &[u8] = b"k8s:enc:";

pub async fn run(flags: &Restore) -> Result<()> {
    preflight::root_for("restore")?;
    let directories = Directories::of(&flags.directories);
    if flags.finish || flags.undo {
        let _lock = instance::acquire(&directories)?;
        return end(&directories.data, flags.finish);
    }
    restore::refuse_pending(&directories.data)?;
    refuse_cluster(flags, &directories)?;
    match (&flags.etcd_snapshot, &flags.file) {
        (Some(path), _) => of_snapshot(path, &directories),
        (None, Some(path)) => of_backup(flags, path, &directories).await,
        (None, None) => anyhow::bail!("name the backup"),
    }
}

fn end(data: &Path, is_finished: bool) -> Result<()> {
    if is_finished {
        let aside = restore::finish(data)?;
        println!("the restore is finished; start the cluster by `corten up`");
        show_aside(aside.as_deref());
    } else {
        restore::undo(data)?;
        println!("the restore is undone; {} is as it was before", data.display());
    }
    Ok(())
}

fn show_aside(aside: Option<&Path>) {
    if let Some(aside) = aside {
        println!("what was there before is in {}", aside.display());
    }
}

/// Refuses a data directory with a cluster, unless the flags say that it is set aside.
fn refuse_cluster(flags: &Restore, directories: &Directories) -> Result<()> {
    if instance::running(directories)?.is_some() {
        anyhow::bail!("a cluster runs in {}; stop it by `corten down` first", directories.data.display());
    }
    // A snapshot has no keys: those that are there go on.
    let names = OF_A_CLUSTER.iter().filter(|name| flags.etcd_snapshot.is_none() || **name != "pki");
    let holds = names.map(|name| directories.data.join(name)).find(|path| path.exists());
    match holds {
        Some(path) if !flags.set_aside => anyhow::bail!(
            "{} exists: this data directory holds a cluster; choose another --data-dir, or keep the old objects and keys \
             beside the restored ones by --set-aside",
            path.display()
        ),
        _ => Ok(()),
    }
}

async fn of_backup(flags: &Restore, path: &Path, directories: &Directories) -> Result<()> {
    let secret = backup::secret(&flags.secret)?;
    let local = backup::local_copy(path, &flags.s3, &std::env::temp_dir()).await?;
    // A foreign file and a wrong secret are refused here, before anything is written.
    let opened = file::open(&local.path, &secret)?;
    let header = opened.header.clone();
    let manifest = opened.manifest.clone();
    let mut files = opened.files.clone();
    files.insert(restored::FILE.to_owned(), facts(flags, &manifest)?);
    let _lock = prepare(directories)?;
    let staging = Staging::begin(&directories.data)?;
    let contents = match file::load_snapshot(&local.path, opened, &staging.dir()) {
        Ok(contents) => contents,
        Err(error) => {
            staging.abandon()?;
            return Err(error.into());
        }
    };
    let source = path.display().to_string();
    let new = New { source, contents: &contents, files: &files, prefix: &manifest.prefix };
    let done = install(staging, &new, directories)?;
    println!("restored {} keys at revision {} from {}", done.keys, done.revision, path.display());
    println!("it was taken at {} from node {} by corten {}", header.created, manifest.node, header.version);
    if !manifest.flags.is_empty() {
        println!("the server was started as: corten server {}", manifest.flags.join(" "));
    }
    show_aside(done.aside.as_deref());
    println!("start the cluster by `corten up`");
    Ok(())
}

/// Returns the content of the file with the cluster's settings.
fn facts(flags: &Restore, manifest: &Manifest) -> Result<Vec<u8>> {
    let settings: Settings = serde_json::from_value(manifest.settings.clone()).context("the settings are damaged")?;
    let node_name = flags.node_name.clone().unwrap_or_else(|| manifest.node.clone());
    Ok(serde_json::to_vec_pretty(&Restored { settings, node_name })?)
}

fn of_snapshot(path: &Path, directories: &Directories) -> Result<()> {
    let contents = snapshot::load(path, Limits::default())?;
    let encrypted = contents.current().values().filter(|entry| entry.value.starts_with(ENCRYPTED)).count();
    let _lock = prepare(directories)?;
    let staging = Staging::begin(&directories.data)?;
    let files = BTreeMap::new();
    let new = New { source: path.display().to_string(), contents: &contents, files: &files, prefix: "/registry" };
    let done = install(staging, &new, directories)?;
    println!("restored {} keys at revision {} from {}", done.keys, done.revision, path.display());
    if encrypted > 0 {
        println!(
            "{encrypted} values are encrypted, and the snapshot has no keys: start the cluster with the \
             --encryption-provider-config that wrote them"
        );
    }
    show_aside(done.aside.as_deref());
    println!("start the cluster by `corten up`");
    Ok(())
}

/// Makes the data directory, and takes it for this process.
fn prepare(directories: &Directories) -> Result<instance::Lock> {
    preflight::data_directory(directories)?;
    instance::acquire(directories)
}

/// The content to install.
struct New<'a> {
    source: String,
    contents: &'a Contents,
    files: &'a BTreeMap<String, Vec<u8>>,
    prefix: &'a str,
}

/// A restore that is done.
struct Done {
    keys: usize,
    revision: u64,
    aside: Option<PathBuf>,
}

fn install(staging: Staging, new: &New<'_>, directories: &Directories) -> Result<Done> {
    let prefix = format!("/{}/", new.prefix.trim_matches('/'));
    let keeps = |key: &[u8]| !is_stale(key.strip_prefix(prefix.as_bytes()).unwrap_or_default());
    let stamp = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let names = (1..).map(|number| if number == 1 { stamp.clone() } else { format!("{stamp}-{number}") });
    let mut names = names.map(|name| format!("{ASIDE}{name}"));
    let aside = names.find(|name| !directories.data.join(name).exists()).context("no name is free")?;
    let rebuild = Rebuild {
        source: new.source.clone(),
        contents: new.contents,
        keeps: &keeps,
        files: new.files,
        retire: &["etcd"],
        aside,
    };
    rebuild::stage(staging, &rebuild)?;
    let aside = restore::finish(&directories.data)?;
    let keys = new.contents.current().keys().filter(|key| keeps(key)).count();
    ensure!(keys > 0 || new.contents.base.is_empty(), "nothing of the store was kept");
    Ok(Done { keys, revision: new.contents.revision.saturating_add(rebuild::REVISION_STEP), aside })
}

/// Reports whether a key, below the prefix, says only that a process of the old cluster was alive: the addresses of its
/// API servers, and the holders of its elections. They would expire; without them nothing waits for that.
fn is_stale(key: &[u8]) -> bool {
    const STALE: [&[u8]; 5] = [
        b"masterleases/",
        b"peerserverleases/",
        b"leases/kube-system/apiserver-",
        b"leases/kube-system/kube-controller-manager",
        b"leases/kube-system/kube-scheduler",
    ];
    STALE.iter().any(|stale| key.starts_with(stale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signs_of_life_are_dropped() {
        for stale in ["masterleases/10.0.0.1", "leases/kube-system/kube-scheduler", "leases/kube-system/apiserver-x"] {
            assert!(is_stale(stale.as_bytes()), "{stale}");
        }
        for kept in ["pods/a/b", "leases/kube-node-lease/n", "leases/default/kube-scheduler", "secrets/kube-system/s"] {
            assert!(!is_stale(kept.as_bytes()), "{kept}");
        }
    }
}
