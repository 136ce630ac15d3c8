//! The authorities and keys that several servers share, in etcd beside the objects of the cluster.
//!
//! The files of each server are a copy of one sealed value. A command that rotates changes the value, in one write that is
//! refused if another command was faster; every server takes it over and reports that it has. A server that was off takes
//! it over at its start, before its API server opens a Secret. The value is not an object of the API: a user who reads
//! all Secrets does not see it, and a server reads it before it can decrypt one.
//!
//! Invariant: of two copies, the one with the higher generation is the newer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use corten_members::values::ABSENT;
use corten_members::{Members, State};
use serde::{Deserialize, Serialize};

use super::sealing::Sealing;
use super::{directory, member};
use crate::directories::Directories;
use crate::pki::rotation::{Files, generation, set_generation};
use crate::pki::{digest, write_private};

/// The file of the secret by which servers seal their shared values.
pub const SEALING_KEY: &str = "servers.key";
/// The key of the sealed files in etcd.
const KEY: &str = "/corten/server-keys";
/// The prefix of the servers' reports, each under the id of the server's member.
const REPORTS: &str = "/corten/servers/";
/// The most bytes of the sealed files.
const MOST: usize = 1 << 20;
const SALT: &[u8] = b"corten shared keys";

/// The files of the servers as etcd has them.
pub struct Stored {
    pub files: BTreeMap<String, String>,
    revision: i64,
}

/// The authorities and keys of the servers of a cluster.
pub struct SharedKeys {
    pub members: Members,
    pki: PathBuf,
    sealing: Sealing,
}

/// The report of a server: the authorities and keys that it uses.
#[derive(Serialize, Deserialize)]
struct Report {
    digest: String,
}

/// The next step of a server, by the generations of its files and of the stored ones.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Publish,
    TakeOver,
    Nothing,
}

fn next(own: u64, stored: Option<u64>) -> Step {
    match stored {
        None => Step::Publish,
        Some(stored) if stored < own => Step::Publish,
        Some(stored) if stored > own => Step::TakeOver,
        Some(_) => Step::Nothing,
    }
}

impl SharedKeys {
    /// Opens the shared keys as a server of the cluster.
    pub fn new(directories: &Directories, members: Members) -> Result<SharedKeys> {
        let pki = directories.pki();
        let secret = sealing_key(&pki)?;
        Ok(SharedKeys { members, sealing: Sealing::new(SALT, secret.as_bytes(), KEY)?, pki })
    }

    /// Opens the shared keys for a command on the machine of a server; none if its server is alone.
    pub fn of_machine(directories: &Directories) -> Result<Option<SharedKeys>> {
        let state = State::read(&directory(directories))?.filter(|state| !state.is_migrating);
        let Some(state) = state else { return Ok(None) };
        let credentials = member::credentials(&member::authority(directories)?)?;
        let members = Members::new(state.endpoints, &credentials)?;
        SharedKeys::new(directories, members).map(Some)
    }

    /// Reads the files as etcd has them.
    pub async fn read(&self) -> Result<Option<Stored>> {
        let Some(value) = self.members.value(KEY).await? else { return Ok(None) };
        ensure!(value.bytes.len() <= MOST, "the servers' keys in etcd are too large");
        let text = self.sealing.open(KEY, value.bytes).with_context(|| {
            format!("{} does not open the servers' keys in etcd", self.pki.join(SEALING_KEY).display())
        })?;
        let files = serde_json::from_slice(&text).context("the servers' keys in etcd are damaged")?;
        Ok(Some(Stored { files, revision: value.revision }))
    }

    /// Writes the files to etcd; false if they changed since `stored` was read.
    async fn write(&self, files: &BTreeMap<String, String>, stored: Option<&Stored>) -> Result<bool> {
        let sealed = self.sealing.seal(KEY, &serde_json::to_vec(files)?)?;
        let revision = stored.map_or(ABSENT, |stored| stored.revision);
        Ok(self.members.replace(KEY, &sealed, revision).await?)
    }

    /// Takes over files that are newer than the own ones, and publishes the own where they are newer.
    pub async fn reconcile(&self) -> Result<()> {
        let stored = self.read().await?;
        let mut own = Files::lock(&self.pki)?.shared()?;
        match next(generation(&own), stored.as_ref().map(|stored| generation(&stored.files))) {
            Step::Nothing => {}
            Step::TakeOver => {
                let Some(stored) = &stored else { return Ok(()) };
                Files::lock(&self.pki)?.replace(&stored.files)?;
                tracing::info!(generation = generation(&stored.files), "the servers' keys have changed");
            }
            Step::Publish => {
                if generation(&own) == 0 {
                    set_generation(&mut own, 1);
                }
                // Another server may be faster; its files are taken over next.
                if self.write(&own, stored.as_ref()).await? {
                    Files::lock(&self.pki)?.replace(&own)?;
                }
            }
        }
        Ok(())
    }

    /// Changes the files of all servers by a step that is taken in a directory aside; returns its result and the digest of
    /// the files that the servers are to have.
    pub async fn change<T>(&self, step: impl FnOnce(&mut Files) -> Result<T>) -> Result<Changed<T>> {
        let stored = self.read().await?.context("the servers have not shared their keys yet; repeat the command")?;
        let aside = Aside::make(&self.pki)?;
        let mut files = Files::lock(&aside.path)?;
        files.replace(&stored.files)?;
        let outcome = step(&mut files)?;
        let mut after = files.shared()?;
        if after != stored.files {
            set_generation(&mut after, generation(&stored.files) + 1);
            ensure!(
                self.write(&after, Some(&stored)).await?,
                "another command changes the keys of the servers; repeat this one when it has ended"
            );
        }
        Ok(Changed { outcome, digest: digest(&aside.path)? })
    }

    /// Reports that this server uses the authorities and keys of a digest.
    pub async fn report(&self, member: u64, digest: String) -> Result<()> {
        let report = serde_json::to_vec(&Report { digest })?;
        Ok(self.members.put(&report_key(member), &report).await?)
    }

    /// Returns the names of the servers that have not reported a digest.
    pub async fn waiting(&self, digest: &str) -> Result<Vec<String>> {
        let reports = self.members.values(REPORTS).await?;
        let reported = |bytes: &[u8]| serde_json::from_slice(bytes).is_ok_and(|report: Report| report.digest == digest);
        let have: BTreeSet<&str> =
            reports.iter().filter(|value| reported(&value.bytes)).map(|value| value.key.as_str()).collect();
        let list = self.members.list().await?;
        let waiting = list.members.iter().filter(|member| !have.contains(report_key(member.id).as_str()));
        Ok(waiting.map(|member| member.title().to_owned()).collect())
    }
}

/// The result of a change.
pub struct Changed<T> {
    pub outcome: T,
    /// The digest of the files that the servers are to have.
    pub digest: String,
}

fn report_key(member: u64) -> String {
    format!("{REPORTS}{member:x}")
}

/// A directory in which the next files are made; removed with this value, and by the next command after a kill.
struct Aside {
    path: PathBuf,
}

impl Aside {
    fn make(pki: &Path) -> Result<Aside> {
        let path = pki.join("change.part");
        let aside = Aside { path };
        aside.remove();
        Ok(aside)
    }

    fn remove(&self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!("{} cannot be removed: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the secret by which servers seal. One that has none yet derives it from the key of the members' authority,
/// which every server has: so all find the same.
fn sealing_key(pki: &Path) -> Result<String> {
    let path = pki.join(SEALING_KEY);
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let source = pki.join("etcd-ca.key");
    let secret = std::fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
    let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SALT), &secret);
    let text = STANDARD.encode(tag.as_ref());
    write_private(&path, text.as_bytes())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_copy_wins() {
        for (own, stored, expected) in [
            (0, None, Step::Publish),
            (3, None, Step::Publish),
            (0, Some(1), Step::TakeOver),
            (2, Some(3), Step::TakeOver),
            (3, Some(3), Step::Nothing),
            // The cluster rotated while one server was alone.
            (4, Some(3), Step::Publish),
        ] {
            assert_eq!(next(own, stored), expected, "{own} {stored:?}");
        }
    }

    #[test]
    fn servers_with_the_same_authority_find_the_same_secret_and_keep_it() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let secrets = folders.each_ref().map(|folder| {
            std::fs::write(folder.path().join("etcd-ca.key"), "the key").unwrap();
            sealing_key(folder.path()).unwrap()
        });
        assert_eq!(secrets[0], secrets[1]);
        std::fs::write(folders[0].path().join("etcd-ca.key"), "another key").unwrap();
        assert_eq!(sealing_key(folders[0].path()).unwrap(), secrets[0]);
    }
}
