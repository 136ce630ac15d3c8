//! The errors of members, each a sentence for the administrator.

use std::io;
use std::path::PathBuf;

use crate::binary::Version;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no etcd is on this machine; install etcd {} or later, or name the binary by --etcd-binary",
        Version::FLOOR
    )]
    NoBinary,
    #[error("{} cannot be run: {reason}", path.display())]
    Binary { path: PathBuf, reason: String },
    #[error("{} does not say its version; is it etcd?", path.display())]
    NoVersion { path: PathBuf },
    #[error("{} is etcd {version}, which corrupts data; install etcd {} or later", path.display(), Version::FLOOR)]
    CorruptVersion { path: PathBuf, version: Version },
    #[error("{} is etcd {version}; etcd {} or later is needed", path.display(), Version::FLOOR)]
    OldVersion { path: PathBuf, version: Version },
    #[error("the etcd member {member:?} has version {version}; upgrade it to etcd {} first", Version::FLOOR)]
    OldMember { member: String, version: String },
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("an etcd of an earlier run still uses {}; it has not ended for {seconds} s", path.display())]
    Locked { path: PathBuf, seconds: u64 },
    #[error("etcd cannot be started: {0}")]
    Process(io::Error),
    #[error("etcd's certificates cannot be used: {0}")]
    Credentials(String),
    #[error("no etcd member answers ({endpoints}): {reason}")]
    Unreachable { endpoints: String, reason: String },
    #[error("etcd refuses to {action}: {reason}")]
    Refused { action: &'static str, reason: String, is_transient: bool },
    #[error("the etcd behind {endpoint} is of another cluster than this machine's data")]
    OtherCluster { endpoint: String },
    #[error("etcd has raised the alarm {alarm} on the member {member:?}; resolve it before a server joins")]
    InAlarm { alarm: String, member: String },
    #[error("this server was removed from the cluster; start it with --join and a server token to join again")]
    Removed,
    #[error("a server of the name {name:?} is alive at {url}; give this machine another name by --node-name")]
    NameTaken { name: String, url: String },
    #[error("another server is joining ({peer}); try again when it has joined, or wait until it is removed")]
    AnotherJoins { peer: String },
    #[error("{} holds no data of an etcd member: this machine is no survivor of a cluster of several servers", path.display())]
    NoData { path: PathBuf },
    #[error("the members still have a quorum ({members}): start this server, and it is one of them")]
    HasQuorum { members: String },
    #[error("etcd ended ({status}) while it was starting; {} says why", log.display())]
    Ended { status: String, log: PathBuf },
    #[error("this member did not catch up with the others within {seconds} s; start it again to go on")]
    NotCaughtUp { seconds: u64 },
}

impl Error {
    /// Reports whether the same request may succeed later: after an election, or when a member that just started counts as
    /// healthy.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Refused { is_transient: true, .. })
    }

    /// Returns a function that turns an input error of a file into an [`Error`].
    pub(crate) fn file(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { action, path, source }
    }
}
