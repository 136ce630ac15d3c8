//! The membership of a machine, as it remembers it beside etcd's own data.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The most bytes of the file: a handful of ids and URLs.
const MOST_BYTES: u64 = 1 << 20;

/// The membership of a machine.
///
/// Invariant: it is written before etcd starts with what it says, so that data without it is not this cluster's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// The id of the own member; zero for the first, whose id etcd makes.
    pub member: u64,
    /// The id of the etcd cluster; zero until the first member has started.
    pub cluster: u64,
    /// The client URLs of all members, as they were last seen.
    pub endpoints: Vec<String>,
    /// The members by name and peer URL, as etcd was first started with them; empty for the first member.
    pub initial_cluster: String,
    /// Whether the objects of an embedded store are being moved into the member: it is not the cluster's store yet.
    pub is_migrating: bool,
}

impl State {
    /// Reads the state of a member's directory; none for a machine that is no member.
    pub fn read(directory: &Path) -> Result<Option<State>, Error> {
        let path = file(directory);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > MOST_BYTES => {
                return Err(Error::Damaged { path, reason: "it is too large".to_owned() });
            }
            _ => {}
        }
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(state) => Ok(Some(state)),
                Err(error) => Err(Error::Damaged { path, reason: error.to_string() }),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", &path)(error)),
        }
    }

    /// Writes the state, whole or not at all.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        make_directory(directory)?;
        let path = file(directory);
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Damaged { path: path.clone(), reason: error.to_string() })?;
        corten_durable::write(&path, &bytes, 0o600).map_err(Error::file("write", &path))
    }
}

/// Reports whether a member has data: its log, which etcd begins when it has found the others.
pub fn has_data(directory: &Path) -> bool {
    directory.join("data/member/wal").exists()
}

/// Moves the data of a member that its cluster no longer has aside, with the state of it.
pub fn set_aside(directory: &Path) -> Result<PathBuf, Error> {
    let free = (1..).map(|number| directory.join(format!("data.removed-{number}"))).find(|path| !path.exists());
    let aside = free.unwrap_or_else(|| directory.join("data.removed"));
    let data = directory.join("data");
    corten_durable::rename(&data, &aside).map_err(Error::file("move", &data))?;
    Ok(aside)
}

/// Makes a directory that its owner alone reads.
pub fn make_directory(directory: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(Error::file("create", directory))
}

fn file(directory: &Path) -> PathBuf {
    directory.join("member.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_kept_and_a_damaged_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("etcd");
        assert_eq!(State::read(&directory).unwrap(), None);
        let state = State { member: 7, cluster: 8, endpoints: vec!["https://a:1".into()], ..State::default() };
        state.write(&directory).unwrap();
        assert_eq!(State::read(&directory).unwrap(), Some(state));
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&directory).unwrap());
        assert_eq!(mode & 0o777, 0o700);
        fs::write(file(&directory), "{").unwrap();
        assert!(State::read(&directory).unwrap_err().to_string().contains("member.json is damaged"));
    }

    #[test]
    fn data_is_set_aside_and_never_deleted() {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=2 {
            fs::create_dir_all(folder.path().join("data/member/wal")).unwrap();
            assert!(has_data(folder.path()));
            let aside = set_aside(folder.path()).unwrap();
            assert_eq!(aside, folder.path().join(format!("data.removed-{number}")));
            assert!(aside.join("member").exists() && !has_data(folder.path()));
        }
    }
}
