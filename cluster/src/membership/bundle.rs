//! The bundle that a server gets when it joins: the cluster's authorities and keys, its settings and its etcd members, sealed.
//!
//! `corten token create --server` seals it with the key of the new token, which only the printed token has. The sealed text
//! is a Secret that the token's own user may read and that is deleted with the token: a client that reads the objects of the
//! cluster, or holds an agent's token, gets no key of the cluster by it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::sealing::Sealing;
use super::shared::SEALING_KEY;
use super::token::ServerToken;
use crate::pki::rotation::shared_names;
use crate::pki::write_private;
use crate::settings::Settings;

/// The files of the cluster's identity, in the directory of certificates, which every cluster has.
const FILES: [&str; 10] = [
    "ca.crt",
    "ca.key",
    "kubelet-ca.crt",
    "kubelet-ca.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "etcd-ca.crt",
    "etcd-ca.key",
    "sa.key",
    "secrets.key",
];
/// The most characters of a sealed bundle: far more than ten small files take.
const MOST: usize = 1 << 20;
const SALT: &[u8] = b"corten server token";

/// The identity of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// The authorities and keys by file name.
    pub files: BTreeMap<String, String>,
    pub settings: Settings,
    /// The EncryptionConfiguration of the API servers, if they have one beside the generated key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_configuration: Option<String>,
    /// The client URLs of the etcd members.
    pub endpoints: Vec<String>,
}

impl Bundle {
    /// Reads the files of a server.
    pub fn read_files(pki: &Path) -> Result<BTreeMap<String, String>> {
        let read = |name: &str| {
            let path = pki.join(name);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok((name.to_owned(), text))
        };
        let mut files: BTreeMap<String, String> = FILES.into_iter().map(read).collect::<Result<_>>()?;
        for name in further_names().iter().filter(|name| pki.join(name).exists()) {
            let (name, text) = read(name)?;
            files.insert(name, text);
        }
        Ok(files)
    }

    /// Refuses a machine that has the files of another cluster.
    pub fn refuse_other(&self, pki: &Path) -> Result<()> {
        for (name, text) in self.files.iter().filter(|(name, _)| FILES.contains(&name.as_str())) {
            let path = pki.join(name);
            match std::fs::read_to_string(&path) {
                Ok(own) if own != *text => bail!(
                    "this machine belongs to another cluster: {} differs; clean it by `corten down --purge`, or choose \
                     another --data-dir",
                    path.display()
                ),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn write_files(&self, pki: &Path) -> Result<()> {
        for (name, text) in &self.files {
            write_private(&pki.join(name), text.as_bytes())?;
        }
        Ok(())
    }

    /// Returns the text of one file.
    pub fn file(&self, name: &str) -> Result<&str> {
        self.files.get(name).map(String::as_str).with_context(|| format!("the sealed keys lack {name}"))
    }

    /// Seals the bundle for the holder of a token.
    pub fn seal(&self, token: &ServerToken) -> Result<String> {
        let sealed = sealing(token)?.seal(token.id(), &serde_json::to_vec(self)?);
        Ok(STANDARD.encode(sealed.context("the cluster's keys cannot be sealed")?))
    }

    /// Opens what was sealed for the holder of a token.
    pub fn open(sealed: &str, token: &ServerToken) -> Result<Bundle> {
        ensure!(sealed.len() <= MOST, "the sealed keys are too large");
        let bytes = STANDARD.decode(sealed.trim()).context("the sealed keys are damaged")?;
        let opened = sealing(token)?.open(token.id(), bytes).with_context(|| {
            format!("the last part of the token {} does not open the cluster's keys: it is wrong", token.id())
        })?;
        let bundle: Bundle = serde_json::from_slice(&opened).context("the sealed keys are damaged")?;
        let further = further_names();
        for name in bundle.files.keys() {
            let is_known = FILES.contains(&name.as_str()) || further.contains(name);
            ensure!(is_known, "the sealed keys hold a file {name:?} that no cluster has");
        }
        Ok(bundle)
    }
}

/// Returns the names of files that a cluster may have beside [`FILES`]: those of a rotation, and the key of shared values.
fn further_names() -> Vec<String> {
    let mut names: Vec<String> = shared_names().into_iter().filter(|name| !FILES.contains(&name.as_str())).collect();
    names.push(SEALING_KEY.to_owned());
    names
}

/// Returns the seal that only the token's last part opens.
fn sealing(token: &ServerToken) -> Result<Sealing> {
    Sealing::new(SALT, token.key().as_bytes(), token.id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> Bundle {
        Bundle {
            files: FILES.map(|name| (name.to_owned(), format!("text of {name}"))).into(),
            settings: Settings::default(),
            encryption_configuration: None,
            endpoints: vec!["https://10.0.0.1:2379".to_owned()],
        }
    }

    #[test]
    fn only_the_token_opens_what_was_sealed_for_it() {
        let token = ServerToken::generate().unwrap();
        let sealed = bundle().seal(&token).unwrap();
        assert!(!sealed.contains("text of"));
        assert_eq!(Bundle::open(&sealed, &token).unwrap(), bundle());
        assert_ne!(bundle().seal(&token).unwrap(), sealed);
        let other = ServerToken::generate().unwrap();
        let refused = Bundle::open(&sealed, &other).unwrap_err().to_string();
        assert!(refused.contains("it is wrong"), "{refused}");
        for damaged in ["", "AAAA", "no base64!", &sealed[..sealed.len() - 8]] {
            assert!(Bundle::open(damaged, &token).is_err(), "{damaged}");
        }
    }

    #[test]
    fn files_that_no_cluster_has_are_refused() {
        let token = ServerToken::generate().unwrap();
        let mut forged = bundle();
        forged.files.insert("../../etc/passwd".to_owned(), String::new());
        let refused = Bundle::open(&forged.seal(&token).unwrap(), &token).unwrap_err().to_string();
        assert!(refused.contains("no cluster has"), "{refused}");
    }

    #[test]
    fn a_machine_of_another_cluster_is_refused_and_keeps_its_files() {
        let folder = tempfile::tempdir().unwrap();
        bundle().refuse_other(folder.path()).unwrap();
        bundle().write_files(folder.path()).unwrap();
        bundle().refuse_other(folder.path()).unwrap();
        assert_eq!(Bundle::read_files(folder.path()).unwrap(), bundle().files);
        let mut other = bundle();
        other.files.insert("ca.crt".to_owned(), "another".to_owned());
        let refused = other.refuse_other(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("another cluster"), "{refused}");
    }
}
