//! The etcd binary of the host, and which versions of it may hold a cluster's objects.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::Error;

/// The longest time that `etcd --version` may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A version of etcd, without what follows the patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    /// The first version whose watches do not starve and whose progress can be asked for.
    pub const FLOOR: Version = Version::new(3, 5, 13);
    /// The version whose flags lost their prefix `experimental-`.
    pub const STABLE_FLAGS: Version = Version::new(3, 6, 0);

    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    /// Reads a version such as `3.6.8` or `3.6.0-rc.1`.
    pub fn parse(text: &str) -> Option<Version> {
        let numbers = text.trim().trim_start_matches('v').split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let version = Version::new(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }

    /// Reports whether members of this version were seen to corrupt data.
    fn corrupts(self) -> bool {
        (Version::new(3, 5, 0)..=Version::new(3, 5, 2)).contains(&self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// An etcd that can hold a cluster's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    pub path: PathBuf,
    pub version: Version,
}

impl Binary {
    /// Finds etcd: the file that the user named, else the first `etcd` in the directories of `search`.
    pub async fn find(named: Option<&Path>, search: Option<&OsStr>) -> Result<Binary, Error> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => in_directories(search.unwrap_or_default()).ok_or(Error::NoBinary)?,
        };
        let version = version_of(&path).await?;
        Binary::checked(path, version)
    }

    fn checked(path: PathBuf, version: Version) -> Result<Binary, Error> {
        if version.corrupts() {
            return Err(Error::CorruptVersion { path, version });
        }
        if version < Version::FLOOR {
            return Err(Error::OldVersion { path, version });
        }
        Ok(Binary { path, version })
    }
}

fn in_directories(search: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(search).map(|directory| directory.join("etcd")).find(is_program)
}

async fn version_of(path: &Path) -> Result<Version, Error> {
    let failed = |reason: String| Error::Binary { path: path.to_owned(), reason };
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output.map_err(|_| failed("it does not answer".to_owned()))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| Version::parse(line.strip_prefix("etcd Version:")?));
    version.ok_or_else(|| Error::NoVersion { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(Version::parse(" 3.6.8"), Some(Version::new(3, 6, 8)));
        assert_eq!(Version::parse("v3.6.0-rc.1"), Some(Version::new(3, 6, 0)));
        for bad in ["", "3", "3.6", "3.6.x", "3.6.8.1"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn old_versions_are_refused_in_a_sentence() {
        for (version, sentence) in [
            ("3.4.23", "/etcd is etcd 3.4.23; etcd 3.5.13 or later is needed"),
            ("3.5.2", "/etcd is etcd 3.5.2, which corrupts data; install etcd 3.5.13 or later"),
            ("3.5.12", "/etcd is etcd 3.5.12; etcd 3.5.13 or later is needed"),
        ] {
            let version = Version::parse(version).unwrap();
            assert_eq!(Binary::checked("/etcd".into(), version).unwrap_err().to_string(), sentence);
        }
        for version in ["3.5.13", "3.6.0", "4.0.0"] {
            let version = Version::parse(version).unwrap();
            assert_eq!(Binary::checked("/etcd".into(), version).unwrap().version, version);
        }
    }

    #[tokio::test]
    async fn the_first_program_of_the_search_path_is_asked_for_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, mode: u32, script: &str| {
            let directory = folder.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            let path = directory.join("etcd");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            directory
        };
        let plain = place("plain", 0o644, "");
        let good = place("good", 0o755, "echo 'etcd Version: 3.6.1'; echo 'Git SHA: none'");
        let other = place("other", 0o755, "echo hello");
        let search = std::env::join_paths([&plain, &good, &other]).unwrap();
        let found = Binary::find(None, Some(&search)).await.unwrap();
        assert_eq!(found, Binary { path: good.join("etcd"), version: Version::new(3, 6, 1) });
        assert!(matches!(Binary::find(None, Some(plain.as_os_str())).await, Err(Error::NoBinary)));
        let refused = Binary::find(Some(&other.join("etcd")), Some(&search)).await.unwrap_err();
        assert!(matches!(refused, Error::NoVersion { .. }), "{refused}");
        let refused = Binary::find(Some(&plain.join("etcd")), None).await.unwrap_err();
        assert!(matches!(refused, Error::Binary { .. }), "{refused}");
    }
}
