//! The ids of a pod with a user namespace (`hostUsers: false`).

use corten_cri::v1;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The node's ids of a pod's ids: the pod's `0` is `uid` and `gid`, and so on for `length` ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    pub uid: u32,
    pub gid: u32,
    pub length: u32,
}

impl Mapping {
    /// Reads the mapping of a request; `None` for a pod with the node's users.
    pub fn of(options: &v1::NamespaceOption) -> Result<Option<Self>, Error> {
        let Some(user) = options.userns_options.as_ref() else { return Ok(None) };
        match user.mode() {
            v1::NamespaceMode::Node => return Ok(None),
            v1::NamespaceMode::Pod => {}
            other => return Err(Error::Invalid(format!("user namespace mode {} is unknown", other.as_str_name()))),
        }
        match (user.uids.as_slice(), user.gids.as_slice()) {
            ([uids], [gids]) if uids.container_id == 0 && gids.container_id == 0 && uids.length == gids.length => {
                Ok(Some(Self { uid: uids.host_id, gid: gids.host_id, length: uids.length }))
            }
            _ => Err(Error::Invalid("a user namespace has exactly one mapping of ids, and it begins at 0".into())),
        }
    }

    /// Writes the mapping of a process's user namespace.
    pub fn write(&self, pid: u32) -> Result<(), Error> {
        for (file, host) in [("uid_map", self.uid), ("gid_map", self.gid)] {
            let path = format!("/proc/{pid}/{file}");
            std::fs::write(&path, format!("0 {host} {}", self.length)).map_err(Error::file("write", path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mode: v1::NamespaceMode, uids: &[(u32, u32, u32)], gids: &[(u32, u32, u32)]) -> v1::NamespaceOption {
        let list = |ids: &[(u32, u32, u32)]| {
            let mapping = |(container_id, host_id, length): &(u32, u32, u32)| v1::IdMapping {
                container_id: *container_id,
                host_id: *host_id,
                length: *length,
            };
            ids.iter().map(mapping).collect()
        };
        let user = v1::UserNamespace { mode: mode as i32, uids: list(uids), gids: list(gids) };
        v1::NamespaceOption { userns_options: Some(user), ..v1::NamespaceOption::default() }
    }

    #[test]
    fn only_one_mapping_from_zero_is_valid() {
        use v1::NamespaceMode::{Node, Pod, Target};
        assert_eq!(Mapping::of(&v1::NamespaceOption::default()).expect("none"), None);
        assert_eq!(Mapping::of(&options(Node, &[], &[])).expect("none"), None);
        let one = Mapping::of(&options(Pod, &[(0, 65536, 65536)], &[(0, 131072, 65536)])).expect("a mapping");
        assert_eq!(one, Some(Mapping { uid: 65536, gid: 131_072, length: 65536 }));
        assert!(Mapping::of(&options(Pod, &[(1, 65536, 65536)], &[(0, 65536, 65536)])).is_err());
        assert!(Mapping::of(&options(Pod, &[], &[])).is_err());
        assert!(Mapping::of(&options(Target, &[(0, 1, 1)], &[(0, 1, 1)])).is_err());
    }
}
