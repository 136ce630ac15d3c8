//! The rotation of the cluster's authorities, as a state machine in files.
//!
//! New authorities are made aside, in `next`. The file `rotation.json` is the decision to use them: before it is written
//! nothing has happened, and after it every start completes the step that it names. Each step writes files whose content
//! does not depend on how often it was begun, and is on the disk before the next one: a process may be killed at any moment,
//! and the power be cut.
//!
//! 1. `switching`: the new authorities sign, the old ones are still trusted.
//! 2. `overlap`: the cluster runs with both, until the administrator ends it.
//! 3. `finishing`: only the new ones are trusted.
//!
//! Must never: remove an authority's key before its successor's files are complete.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::authority::{Authority, cross_path};
use super::{ENCRYPTION_KEYS, SERVICE_ACCOUNT_KEYS};
use crate::private;

/// The authorities that rotate: their files, and the names of their certificates.
pub const AUTHORITIES: [(&str, &str); 4] =
    [("ca", "kubernetes"), ("kubelet-ca", "kubelet-ca"), ("front-proxy-ca", "front-proxy-ca"), ("etcd-ca", "etcd-ca")];
/// The file with the number of changes that the files had, where several servers share them.
const GENERATION: &str = "generation";
/// All files of a change that another server made, written before the first of them is replaced.
const REPLACEMENT: &str = "replacement.json";
/// The file of the rotation that is under way.
const ROTATION: &str = "rotation.json";

/// How far a rotation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Switching,
    Overlap,
    Finishing,
}

/// A rotation that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    pub phase: Phase,
    pub started: Timestamp,
}

/// The files of a directory of authorities, changed by one process at a time.
pub struct Files {
    dir: PathBuf,
    _lock: Flock<std::fs::File>,
    /// The writes that are left before this process dies, in tests.
    #[cfg(test)]
    left: Option<usize>,
}

impl Files {
    /// Waits until no other process changes the directory.
    pub fn lock(dir: &Path) -> Result<Files> {
        private::directory(dir)?;
        let failed = || format!("cannot lock {}", dir.display());
        let file = std::fs::File::open(dir).with_context(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).with_context(failed)?;
        Ok(Files {
            dir: dir.to_owned(),
            _lock: lock,
            #[cfg(test)]
            left: None,
        })
    }

    fn step(&mut self) -> Result<()> {
        #[cfg(test)]
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).context("killed")?;
        }
        Ok(())
    }

    /// Writes a file.
    pub fn write(&mut self, name: &str, content: &str) -> Result<()> {
        self.step()?;
        private::write(&self.dir.join(name), content.as_bytes())
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        self.step()?;
        let path = self.dir.join(name);
        let remove = if path.is_dir() { corten_durable::remove_directory } else { corten_durable::remove };
        remove(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Reads a file.
    pub fn read(&self, name: &str) -> Result<String> {
        let path = self.dir.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Returns the rotation that is under way.
    pub fn rotation(&self) -> Result<Option<Rotation>> {
        read(&self.dir)
    }

    fn enter(&mut self, rotation: &Rotation) -> Result<()> {
        self.write(ROTATION, &serde_json::to_string(rotation)?)
    }

    /// Begins a rotation, or goes on with one that was interrupted.
    pub fn rotate(&mut self, now: Timestamp) -> Result<()> {
        self.recover()?;
        if self.rotation()?.is_some() {
            bail!("the authorities are being rotated: end it by `corten ca rotate --finish`");
        }
        // The rest of an attempt that was killed before its decision.
        self.remove_next()?;
        for (file, name) in self.authorities() {
            let next = Authority::open(&self.dir, file, name)?.successor(name, now)?;
            self.write(&format!("next/{file}.key"), &next.key)?;
            self.write(&format!("next/{file}.crt"), &next.certificate)?;
            self.write(&format!("next/{file}-cross.crt"), &next.cross)?;
        }
        self.enter(&Rotation { phase: Phase::Switching, started: now })?;
        self.recover()
    }

    /// Ends a rotation: the old authorities are no longer trusted.
    pub fn finish(&mut self) -> Result<()> {
        self.recover()?;
        let Some(rotation) = self.rotation()? else { bail!("no rotation of the authorities is under way") };
        self.enter(&Rotation { phase: Phase::Finishing, ..rotation })?;
        self.recover()
    }

    /// Returns the authorities of this cluster: without etcd members there is none for them.
    fn authorities(&self) -> Vec<(&'static str, &'static str)> {
        let exists = |(file, _): &(&str, &str)| self.dir.join(format!("{file}.key")).exists();
        AUTHORITIES.into_iter().filter(exists).collect()
    }

    /// Reads the files that several servers share.
    pub fn shared(&self) -> Result<BTreeMap<String, String>> {
        let existing = shared_names().into_iter().filter(|name| self.dir.join(name).exists());
        existing.map(|name| Ok((name.clone(), self.read(&name)?))).collect()
    }

    /// Replaces all files that several servers share by those of another server.
    pub fn replace(&mut self, files: &BTreeMap<String, String>) -> Result<()> {
        self.recover()?;
        self.write(REPLACEMENT, &serde_json::to_string(files)?)?;
        self.recover()
    }

    /// Completes a replacement that was begun.
    fn recover_replacement(&mut self) -> Result<()> {
        if !self.dir.join(REPLACEMENT).exists() {
            return Ok(());
        }
        let files: BTreeMap<String, String> = serde_json::from_str(&self.read(REPLACEMENT)?)
            .with_context(|| format!("{} is damaged", self.dir.join(REPLACEMENT).display()))?;
        for name in shared_names() {
            match files.get(&name) {
                Some(content) => self.write(&name, content)?,
                None => self.remove(&name)?,
            }
        }
        self.remove(REPLACEMENT)
    }

    /// Completes the step that a killed process had begun.
    pub fn recover(&mut self) -> Result<()> {
        self.recover_replacement()?;
        let Some(rotation) = self.rotation()? else { return Ok(()) };
        match rotation.phase {
            Phase::Overlap => self.remove_next(),
            Phase::Switching => {
                for (file, _) in self.authorities() {
                    self.switch(file)?;
                }
                self.enter(&Rotation { phase: Phase::Overlap, ..rotation })?;
                self.remove_next()
            }
            Phase::Finishing => {
                for (file, _) in self.authorities() {
                    let bundle = self.read(&format!("{file}.crt"))?;
                    let own = certificates(&bundle).into_iter().next().context("an authority's file is empty")?;
                    self.write(&format!("{file}.crt"), &own)?;
                    self.remove(&format!("{file}-cross.crt"))?;
                }
                self.remove(ROTATION)
            }
        }
    }

    /// Removes the new authorities' files that were made aside.
    fn remove_next(&mut self) -> Result<()> {
        if self.dir.join("next").exists() { self.remove("next") } else { Ok(()) }
    }

    /// Makes the new authority the signing one; the old one is still trusted.
    fn switch(&mut self, file: &str) -> Result<()> {
        let name = format!("{file}.crt");
        let next = self.read(&format!("next/{name}"))?;
        let mut bundle = next.clone();
        bundle.extend(certificates(&self.read(&name)?).into_iter().filter(|one| *one != next));
        self.write(&name, &bundle)?;
        self.write(&format!("{file}.key"), &self.read(&format!("next/{file}.key"))?)?;
        let cross = self.read(&format!("next/{file}-cross.crt"))?;
        let cross_path = cross_path(Path::new(""), file);
        self.write(&cross_path.to_string_lossy(), &cross)
    }
}

/// Returns the names of the files that several servers share.
pub fn shared_names() -> Vec<String> {
    let of_authority = |(file, _): (&str, &str)| {
        [format!("{file}.crt"), format!("{file}.key"), cross_path(Path::new(""), file).to_string_lossy().into_owned()]
    };
    let mut names: Vec<String> = AUTHORITIES.into_iter().flat_map(of_authority).collect();
    names.extend([SERVICE_ACCOUNT_KEYS, ENCRYPTION_KEYS, ROTATION, GENERATION].map(str::to_owned));
    names
}

/// Returns the number of changes that shared files had; none before the first.
pub fn generation(files: &BTreeMap<String, String>) -> u64 {
    files.get(GENERATION).and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}

/// Sets the number of changes that shared files had.
pub fn set_generation(files: &mut BTreeMap<String, String>, generation: u64) {
    files.insert(GENERATION.to_owned(), generation.to_string());
}

/// Returns the rotation that is under way in a directory.
pub fn read(dir: &Path) -> Result<Option<Rotation>> {
    let path = dir.join(ROTATION);
    match std::fs::read(&path) {
        Ok(bytes) => {
            Ok(Some(serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display()))?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Splits a PEM bundle into its certificates.
pub fn certificates(bundle: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let parts = bundle.split_inclusive(END).filter(|part| part.contains(END));
    parts.map(|part| format!("{}\n", part.trim_start())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, UnixTime};

    use super::*;
    use crate::pki::{Leaf, Pki};

    fn is_trusted(bundle: &str, chain: &str) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).is_ok()
    }

    fn client(pki: &Pki) -> String {
        pki.cluster.issue(&Leaf::client("jane", &[])).unwrap().certificate
    }

    #[test]
    fn peers_of_either_authority_trust_each_other_until_the_rotation_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let before = Pki::open(dir.path()).unwrap();
        Files::lock(dir.path()).unwrap().rotate(Timestamp::now()).unwrap();
        let overlap = Pki::open(dir.path()).unwrap();
        assert_eq!(read(dir.path()).unwrap().unwrap().phase, Phase::Overlap);
        assert!(overlap.cluster.is_successor() && !before.cluster.is_successor());
        for trusts in [&before, &overlap] {
            for shows in [&before, &overlap] {
                assert!(is_trusted(&trusts.cluster.certificate, &client(shows)));
            }
        }
        let again = Files::lock(dir.path()).unwrap().rotate(Timestamp::now()).unwrap_err().to_string();
        assert!(again.contains("corten ca rotate --finish"), "{again}");
        Files::lock(dir.path()).unwrap().finish().unwrap();
        let after = Pki::open(dir.path()).unwrap();
        assert!(is_trusted(&after.cluster.certificate, &client(&after)));
        assert!(is_trusted(&after.cluster.certificate, &client(&overlap)));
        assert!(!is_trusted(&after.cluster.certificate, &client(&before)));
        assert!(!is_trusted(&before.cluster.certificate, &client(&after)));
        assert!(Files::lock(dir.path()).unwrap().finish().is_err());
        Files::lock(dir.path()).unwrap().rotate(Timestamp::now()).unwrap();
    }

    /// Kills a process after each number of writes; returns how many it needed to complete.
    fn killed_at_each_write(begin: impl Fn(&Path), step: impl Fn(&mut Files) -> Result<()>, check: impl Fn(&Path)) {
        for writes in 0..100 {
            let dir = tempfile::tempdir().unwrap();
            begin(dir.path());
            let mut files = Files::lock(dir.path()).unwrap();
            files.left = Some(writes);
            let outcome = step(&mut files);
            drop(files);
            check(dir.path());
            if outcome.is_ok() {
                assert!(writes > 3, "a step of {writes} writes");
                return;
            }
        }
        panic!("the step never completes");
    }

    #[test]
    fn a_rotation_that_is_killed_at_any_write_leaves_authorities_that_work() {
        killed_at_each_write(
            |dir| drop(Pki::open(dir).unwrap()),
            |files| files.rotate(Timestamp::now()),
            |dir| {
                let pki = Pki::open(dir).unwrap();
                assert!(is_trusted(&pki.cluster.certificate, &client(&pki)));
                let mut files = Files::lock(dir).unwrap();
                if files.rotation().unwrap().is_none() {
                    files.rotate(Timestamp::now()).unwrap();
                }
                assert_eq!(files.rotation().unwrap().unwrap().phase, Phase::Overlap);
                assert_eq!(certificates(&files.read("ca.crt").unwrap()).len(), 2);
                assert!(!dir.join("next").exists());
            },
        );
        killed_at_each_write(
            |dir| {
                Pki::open(dir).unwrap();
                Files::lock(dir).unwrap().rotate(Timestamp::now()).unwrap();
            },
            Files::finish,
            |dir| {
                let pki = Pki::open(dir).unwrap();
                assert!(is_trusted(&pki.cluster.certificate, &client(&pki)));
                let mut files = Files::lock(dir).unwrap();
                if files.rotation().unwrap().is_some() {
                    files.finish().unwrap();
                }
                assert_eq!(certificates(&files.read("front-proxy-ca.crt").unwrap()).len(), 1);
                assert!(!dir.join("ca-cross.crt").exists());
            },
        );
    }

    #[test]
    fn files_of_another_server_replace_the_own_ones_whole_or_not_at_all() {
        let other = tempfile::tempdir().unwrap();
        Authority::open(other.path(), "etcd-ca", "etcd-ca").unwrap();
        let first = Pki::open(other.path()).unwrap();
        let before = Files::lock(other.path()).unwrap().shared().unwrap();
        Files::lock(other.path()).unwrap().rotate(Timestamp::now()).unwrap();
        let rotated = Pki::open(other.path()).unwrap();
        let mut after = Files::lock(other.path()).unwrap().shared().unwrap();
        assert!(after.contains_key("etcd-ca-cross.crt") && after.contains_key(ROTATION));
        set_generation(&mut after, 7);
        assert_eq!((generation(&before), generation(&after)), (0, 7));
        killed_at_each_write(
            |dir| Files::lock(dir).unwrap().replace(&before).unwrap(),
            |files| files.replace(&after),
            |dir| {
                let digest = Pki::open(dir).unwrap().digest;
                let own = Files::lock(dir).unwrap().shared().unwrap();
                let expected = if generation(&own) == 7 { &rotated.digest } else { &first.digest };
                assert_eq!(&digest, expected);
                assert!(!dir.join(REPLACEMENT).exists());
                // The end of the rotation removes files as well.
                Files::lock(dir).unwrap().replace(&before).unwrap();
                assert_eq!(Files::lock(dir).unwrap().shared().unwrap(), before);
            },
        );
    }
}
