//! The content of a store as the buckets of etcd's database.
//!
//! The schema is etcd 3.5's, which 3.6 reads as well. `etcdutl snapshot restore` replaces the member and the raft state,
//! so those of a snapshot only have to be valid.

use std::io::{self, Seek, Write};

use prost::Message as _;

use super::Contents;
use super::bolt::Writer;
use super::records::{KEY_BUCKET, encode_revision, records};

/// The raft term of a snapshot. A missing one would make it a database of etcd 3.4.
const TERM: u64 = 1;
/// The version of the schema.
const CLUSTER_VERSION: &str = "3.5.0";

/// The member that a snapshot names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    /// The raft index up to which the database is applied.
    pub applied: u64,
}

/// A lease in the bucket `lease`: etcd's `leasepb.Lease`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredLease {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(int64, tag = "2")]
    pub ttl: i64,
    #[prost(int64, tag = "3")]
    pub remaining_ttl: i64,
}

/// Writes the database; returns the file and its length. The buckets are in order of their names.
pub fn encode<W: Write + Seek>(contents: &Contents, member: &Member, file: W) -> io::Result<(W, u64)> {
    let mut writer = Writer::new(file)?;
    for name in ["alarm", "auth", "authRoles", "authUsers"] {
        writer.bucket(name.as_bytes(), [])?;
    }
    writer.bucket(b"cluster", [(b"clusterVersion".to_vec(), CLUSTER_VERSION.into())])?;
    writer.bucket(KEY_BUCKET, records(contents))?;
    writer.bucket(b"lease", leases(contents))?;
    writer.bucket(b"members", [(format!("{:x}", member.id).into_bytes(), describe(member).into_bytes())])?;
    writer.bucket(b"members_removed", [])?;
    writer.bucket(b"meta", meta(contents, member))?;
    writer.finish()
}

fn leases(contents: &Contents) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut leases: Vec<&super::Grant> = contents.leases.iter().collect();
    // Negative ids come last, as they do in the order of bytes.
    leases.sort_unstable_by_key(|lease| lease.id as u64);
    leases.into_iter().map(|lease| {
        let seconds = lease.ttl.as_secs() + u64::from(lease.ttl.subsec_nanos() > 0);
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let stored = StoredLease { id: lease.id, ttl, remaining_ttl: 0 };
        (lease.id.to_be_bytes().to_vec(), stored.encode_to_vec())
    })
}

fn meta(contents: &Contents, member: &Member) -> Vec<(Vec<u8>, Vec<u8>)> {
    let voters = format!("{{\"voters\":[{}],\"auto_leave\":false}}", member.id);
    let mut meta = vec![
        (b"confState".to_vec(), voters.into_bytes()),
        (b"consistent_index".to_vec(), member.applied.to_be_bytes().to_vec()),
    ];
    let compacted = encode_revision(contents.compacted, 0);
    if contents.compacted > 0 {
        meta.push((b"finishedCompactRev".to_vec(), compacted.clone()));
        meta.push((b"scheduledCompactRev".to_vec(), compacted));
    }
    meta.push((b"term".to_vec(), TERM.to_be_bytes().to_vec()));
    meta
}

/// Returns a member as etcd's JSON.
pub(super) fn describe(member: &Member) -> String {
    let list = |urls: &[String]| {
        let quoted: Vec<String> = urls.iter().map(|url| quote(url)).collect();
        quoted.join(",")
    };
    format!(
        "{{\"id\":{},\"peerURLs\":[{}],\"name\":{},\"clientURLs\":[{}]}}",
        member.id,
        list(&member.peer_urls),
        quote(&member.name),
        list(&member.client_urls)
    )
}

/// Returns a JSON string.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
