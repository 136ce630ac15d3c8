//! `corten backup`: one sealed file of a running or stopped cluster; what such files hold, and whether they are intact.

use std::path::Path;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_backup::{Target, file};
use corten_client::Client;
use corten_store::{Config, Embedded, Store as _};

use crate::backup::{self, Source, Subject, Success};
use crate::backup_cli::{Backup, BackupCommand, S3Options, SecretOptions};
use crate::config::node_name;
use crate::directories::Directories;
use crate::restored::Restored;
use crate::settings::{self, Settings};
use crate::{instance, preflight};

pub async fn run(flags: &Backup) -> Result<()> {
    match (&flags.command, &flags.file) {
        (None, Some(path)) => take(flags, path).await,
        (Some(BackupCommand::Verify { file, secret, s3 }), _) => verify(file, secret, s3).await,
        (Some(BackupCommand::List { target, s3 }), _) => list(target, s3).await,
        (Some(BackupCommand::Snapshot { file, output, secret, s3 }), _) => {
            let secret = backup::secret(secret)?;
            let local = backup::local_copy(file, s3, &std::env::temp_dir()).await?;
            file::extract_snapshot(&local.path, &secret, output)?;
            println!("wrote {}; restore it by `etcdutl snapshot restore`", output.display());
            Ok(())
        }
        (None, None) => anyhow::bail!("name the file of the backup"),
    }
}

/// Takes a backup.
async fn take(flags: &Backup, path: &Path) -> Result<()> {
    preflight::root_for("backup")?;
    let secret = backup::secret(&flags.secret)?;
    let directories = Directories::of(&flags.directories);
    // A place that cannot be written is refused before the store is read.
    let place = backup::place(path, &flags.s3, &directories.data)?;
    if let Target::Directory(_) = place.target {
        anyhow::ensure!(!path.exists(), "{} exists: a backup does not replace a file", path.display());
    }
    let running = instance::running(&directories)?;
    // A server that starts meanwhile would take the store away.
    let _lock = match running {
        None => Some(instance::acquire(&directories)?),
        Some(_) => None,
    };
    let subject = match running {
        Some(pid) => of_running(directories.clone(), pid).await?,
        None => of_stopped(directories.clone()).await?,
    };
    let time = jiff::Timestamp::now();
    let contents = backup::collect(&subject, &secret, time).await?;
    let keys = contents.files.len();
    let bytes = place.target.write(&place.name, contents, &secret).await?;
    backup::record_success(&directories, Success { time, place: path.display().to_string(), bytes });
    println!("wrote {}: the store and {keys} files, {}, sealed for the {}", path.display(), size(bytes), secret.name());
    Ok(())
}

/// Returns the cluster of a running server.
async fn of_running(directories: Directories, pid: i32) -> Result<Subject> {
    let flags = instance::flags(pid)?.context("the running server's flags are unknown")?;
    let admin = directories.kubeconfig("admin");
    let client = Client::from_kubeconfig(&admin, None).context("the administrator's kubeconfig cannot be used")?;
    let published = client.get::<ConfigMap>(settings::NAMESPACE, settings::NAME).await;
    let published = published.context("the cluster's settings cannot be read")?.data;
    let text = published.and_then(|mut data| data.remove(settings::KEY)).context("the cluster's settings are empty")?;
    let restored = Restored::read(&directories)?;
    let node = flags.node_name.clone().or(restored.map(|restored| restored.node_name));
    Ok(Subject {
        source: Source::of_server(&directories, &flags.store)?,
        node: node_name(node.as_deref())?,
        settings: settings::parse(&text).context("the cluster's settings are damaged")?,
        prefix: flags.store.etcd_prefix.clone(),
        encryption: encryption(&directories, flags.access.encryption_provider_config.as_deref()),
        flags: instance::words(pid)?,
        directories,
    })
}

/// Returns the cluster of a stopped server.
async fn of_stopped(directories: Directories) -> Result<Subject> {
    let source = Source::of_stopped(&directories)?;
    let restored = Restored::read(&directories)?;
    let settings = stored_settings(&directories).await?;
    let node = restored.as_ref().map(|restored| restored.node_name.clone());
    Ok(Subject {
        source,
        node: node_name(node.as_deref())?,
        settings: settings.or(restored.map(|restored| restored.settings)).unwrap_or_default(),
        prefix: "/registry".to_owned(),
        encryption: encryption(&directories, None),
        flags: Vec::new(),
        directories,
    })
}

/// Returns the EncryptionConfiguration of a server: that of its flag, of a restore, or of a join.
fn encryption(directories: &Directories, flag: Option<&Path>) -> Option<std::path::PathBuf> {
    let kept = [directories.data.join(backup::ENCRYPTION_FILE), directories.data.join("etcd/encryption.yaml")];
    flag.map(Path::to_owned).or_else(|| kept.into_iter().find(|path| path.exists()))
}

/// Reads the published settings in a stopped store; none if there are none, or if they are encrypted.
async fn stored_settings(directories: &Directories) -> Result<Option<Settings>> {
    let store = Embedded::open(Config::new(directories.data.join("store"))).context("the store cannot be opened")?;
    let key = format!("/registry/configmaps/{}/{}", settings::NAMESPACE, settings::NAME);
    let (_, entry) = store.get(key.as_bytes()).await?;
    let Some(entry) = entry else { return Ok(None) };
    let object: serde_json::Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    let text = object["data"][settings::KEY].as_str();
    Ok(text.and_then(|text| settings::parse(text).ok()))
}

async fn verify(path: &Path, secret: &SecretOptions, s3: &S3Options) -> Result<()> {
    let secret = backup::secret(secret)?;
    let scratch = std::env::temp_dir();
    let local = backup::local_copy(path, s3, &scratch).await?;
    let verified = file::verify(&local.path, &secret, &scratch)?;
    let header = &verified.header;
    println!("{} is complete", path.display());
    println!("taken     {} by corten {}", seconds(header.created), header.version);
    println!("cluster   {}", header.cluster);
    println!("node      {}", verified.manifest.node);
    println!("store     {} keys at revision {}", verified.keys, verified.revision);
    println!("files     {}", verified.files);
    Ok(())
}

async fn list(target: &Path, s3: &S3Options) -> Result<()> {
    let mut rows = vec![["NAME", "TAKEN", "CLUSTER", "VERSION", "SIZE"].map(str::to_owned)];
    let unknown = || "-".to_owned();
    match backup::directory(target, s3, &std::env::temp_dir())? {
        Target::Directory(directory) => {
            for listed in file::list(&directory)? {
                let bytes = size(listed.bytes);
                rows.push(match listed.header {
                    Ok(header) => {
                        let cluster: String = header.cluster.chars().take(8).collect();
                        [listed.name, seconds(header.created), cluster, header.version, bytes]
                    }
                    Err(fault) => [listed.name, fault.to_string(), unknown(), unknown(), bytes],
                });
            }
        }
        Target::Bucket { bucket, .. } => {
            for object in bucket.list().await? {
                rows.push([object.name, unknown(), unknown(), unknown(), size(object.bytes)]);
            }
        }
    }
    super::print_table(&rows);
    Ok(())
}

fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
