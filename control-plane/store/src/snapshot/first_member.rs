//! The data directory of the first member of a new etcd cluster, with the content of a store: as `etcdutl snapshot restore` would
//! leave it, without that program.
//!
//! It has the database, a raft snapshot and a log that begins after it. The snapshot matters: a member that joins finds the
//! beginning of the log gone, and gets the database. With an empty log it would get the log alone, and lack every object.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use prost::Message;

use super::encode::{describe, quote};
use super::{Contents, Member, encode};

/// The raft term and the index of the only entry, which adds the member.
const TERM: u64 = 1;
const INDEX: u64 = 1;
/// Types of records in the log.
const METADATA: i64 = 1;
const ENTRY: i64 = 2;
const STATE: i64 = 3;
const CRC: i64 = 4;
const SNAPSHOT: i64 = 5;
/// The type of an entry that changes the members.
const CONF_CHANGE: i32 = 1;
/// Records are padded to a multiple of this.
const RECORD_BYTES: usize = 8;

/// The identity of the first member.
#[derive(Clone, Debug)]
pub struct FirstMember {
    pub member: u64,
    pub cluster: u64,
    pub name: String,
    pub peer_url: String,
}

/// Writes the data directory, which must not exist, and syncs it.
pub fn create(contents: &Contents, first: &FirstMember, directory: &Path) -> io::Result<()> {
    let snapshots = directory.join("member/snap");
    let logs = directory.join("member/wal");
    for path in [&snapshots, &logs] {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    }
    let member = Member {
        id: first.member,
        name: first.name.clone(),
        peer_urls: vec![first.peer_url.clone()],
        client_urls: Vec::new(),
        applied: INDEX,
    };
    let database = new_file(&snapshots.join("db"))?;
    let (mut written, _) = encode(contents, &member, BufWriter::with_capacity(1 << 18, &database))?;
    written.flush()?;
    database.sync_all()?;
    write(&snapshots.join(format!("{TERM:016x}-{INDEX:016x}.snap")), &raft_snapshot(&member))?;
    write(&logs.join(format!("{:016x}-{:016x}.wal", 0, 0)), &log(&member, first.cluster))?;
    for path in [&snapshots, &logs, &directory.join("member"), directory] {
        File::open(path)?.sync_all()?;
    }
    Ok(())
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = new_file(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the file of the raft snapshot: its CRC and the snapshot.
fn raft_snapshot(member: &Member) -> Vec<u8> {
    let metadata = SnapshotMetadata { conf_state: Some(conf_state(member)), index: INDEX, term: TERM };
    let data = RaftSnapshot { data: membership(member).into_bytes(), metadata: Some(metadata) }.encode_to_vec();
    SnapshotFile { crc: crc32c::crc32c(&data), data }.encode_to_vec()
}

fn conf_state(member: &Member) -> ConfState {
    ConfState { voters: vec![member.id] }
}

/// Returns the members as the tree of etcd's second version, which is where etcd 3.5 reads them.
fn membership(member: &Member) -> String {
    let node = |path: &str, rest: &str| format!("{{\"Path\":{}{rest}}}", quote(path));
    let parent = |path: &str, children: &str| node(path, &format!(",\"Children\":{{{children}}}"));
    let leaf = |path: &str, value: &str| node(path, &format!(",\"Value\":{}", quote(value)));
    let id = format!("{:x}", member.id);
    let own = format!("/0/members/{id}");
    let urls: Vec<String> = member.peer_urls.iter().map(|url| quote(url)).collect();
    let raft = leaf(&format!("{own}/raftAttributes"), &format!("{{\"peerURLs\":[{}]}}", urls.join(",")));
    let named = leaf(&format!("{own}/attributes"), &format!("{{\"name\":{}}}", quote(&member.name)));
    let own = parent(&own, &format!("\"attributes\":{named},\"raftAttributes\":{raft}"));
    let members = parent("/0/members", &format!("\"{id}\":{own}"));
    let cluster = parent("/0", &format!("\"members\":{members}"));
    let root = parent("/", &format!("\"0\":{cluster},\"1\":{}", parent("/1", "")));
    format!("{{\"Root\":{root},\"CurrentIndex\":{INDEX},\"CurrentVersion\":2}}")
}

/// Returns the log: the entry that added the member, and the snapshot after it.
fn log(member: &Member, cluster: u64) -> Vec<u8> {
    let change = ConfChange { node: member.id, context: describe(member).into_bytes() };
    let entry = Entry { kind: CONF_CHANGE, term: TERM, index: INDEX, data: change.encode_to_vec() };
    let state = HardState { term: TERM, vote: member.id, commit: INDEX };
    let snapshot = LogSnapshot { index: INDEX, term: TERM, conf_state: Some(conf_state(member)) };
    let mut log = Log::default();
    log.append(CRC, Vec::new());
    log.append(METADATA, LogMetadata { node: member.id, cluster }.encode_to_vec());
    // Every log begins with the snapshot before its first entry.
    log.append(SNAPSHOT, LogSnapshot::default().encode_to_vec());
    log.append(ENTRY, entry.encode_to_vec());
    log.append(STATE, state.encode_to_vec());
    log.append(SNAPSHOT, snapshot.encode_to_vec());
    log.bytes
}

/// A log in the making. The CRC of a record is that of the data of all records up to it.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    crc: u32,
}

impl Log {
    fn append(&mut self, kind: i64, data: Vec<u8>) {
        self.crc = crc32c::crc32c_append(self.crc, &data);
        let record = Record { kind, crc: self.crc, data }.encode_to_vec();
        let padding = record.len().next_multiple_of(RECORD_BYTES) - record.len();
        let marked = if padding == 0 { 0 } else { (0x80 | padding as u64) << 56 };
        self.bytes.extend_from_slice(&(record.len() as u64 | marked).to_le_bytes());
        self.bytes.extend_from_slice(&record);
        self.bytes.resize(self.bytes.len() + padding, 0);
    }
}

/// etcd's `walpb.Record`.
#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(uint32, tag = "2")]
    crc: u32,
    #[prost(bytes = "vec", tag = "3")]
    data: Vec<u8>,
}

/// etcd's `etcdserverpb.Metadata`.
#[derive(Clone, PartialEq, Message)]
struct LogMetadata {
    #[prost(uint64, tag = "1")]
    node: u64,
    #[prost(uint64, tag = "2")]
    cluster: u64,
}

/// etcd's `walpb.Snapshot`.
#[derive(Clone, PartialEq, Message)]
struct LogSnapshot {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(message, optional, tag = "3")]
    conf_state: Option<ConfState>,
}

/// etcd's `snappb.Snapshot`.
#[derive(Clone, PartialEq, Message)]
struct SnapshotFile {
    #[prost(uint32, tag = "1")]
    crc: u32,
    #[prost(bytes = "vec", tag = "2")]
    data: Vec<u8>,
}

/// Raft's `ConfState`.
#[derive(Clone, PartialEq, Message)]
struct ConfState {
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    voters: Vec<u64>,
}

/// Raft's `Snapshot`.
#[derive(Clone, PartialEq, Message)]
struct RaftSnapshot {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    metadata: Option<SnapshotMetadata>,
}

/// Raft's `SnapshotMetadata`.
#[derive(Clone, PartialEq, Message)]
struct SnapshotMetadata {
    #[prost(message, optional, tag = "1")]
    conf_state: Option<ConfState>,
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(uint64, tag = "3")]
    term: u64,
}

/// Raft's `Entry`.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
}

/// Raft's `ConfChange` of the type that adds a node, which is zero.
#[derive(Clone, PartialEq, Message)]
struct ConfChange {
    #[prost(uint64, tag = "3")]
    node: u64,
    #[prost(bytes = "vec", tag = "4")]
    context: Vec<u8>,
}

/// Raft's `HardState`.
#[derive(Clone, PartialEq, Message)]
struct HardState {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    vote: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        Member {
            id: 0xabc,
            name: "one".to_owned(),
            peer_urls: vec!["https://10.0.0.1:2380".to_owned()],
            client_urls: Vec::new(),
            applied: INDEX,
        }
    }

    #[test]
    fn records_are_framed_padded_and_chained_by_their_crc() {
        let log = log(&member(), 7);
        assert_eq!(log.len() % RECORD_BYTES, 0);
        let mut rest = &log[..];
        let mut crc = 0;
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let head = u64::from_le_bytes(rest[..8].try_into().unwrap());
            let length = (head & 0x00ff_ffff_ffff_ffff) as usize;
            let padding = (head >> 56 & 0x7) as usize;
            assert_eq!((length + padding) % RECORD_BYTES, 0);
            assert_eq!(head >> 63 == 1, padding > 0);
            let record = Record::decode(&rest[8..8 + length]).unwrap();
            crc = crc32c::crc32c_append(crc, &record.data);
            assert_eq!(record.crc, crc);
            kinds.push(record.kind);
            rest = &rest[8 + length + padding..];
        }
        assert_eq!(kinds, [CRC, METADATA, SNAPSHOT, ENTRY, STATE, SNAPSHOT]);
    }

    #[test]
    fn the_raft_snapshot_has_its_crc_and_the_members() {
        let file = SnapshotFile::decode(&raft_snapshot(&member())[..]).unwrap();
        assert_eq!(file.crc, crc32c::crc32c(&file.data));
        let snapshot = RaftSnapshot::decode(&file.data[..]).unwrap();
        let tree = String::from_utf8(snapshot.data).unwrap();
        for part in [
            r#"{"Root":{"Path":"/","Children":{"0":{"Path":"/0","Children":{"members":{"Path":"/0/members","Children":{"abc":"#,
            r#"{"Path":"/0/members/abc/attributes","Value":"{\"name\":\"one\"}"}"#,
            r#"{"Path":"/0/members/abc/raftAttributes","Value":"{\"peerURLs\":[\"https://10.0.0.1:2380\"]}"}"#,
            r#""1":{"Path":"/1","Children":{}}}},"CurrentIndex":1,"CurrentVersion":2}"#,
        ] {
            assert!(tree.contains(part), "{part}: {tree}");
        }
        let metadata = snapshot.metadata.unwrap();
        assert_eq!(metadata.conf_state.unwrap().voters, [0xabc]);
        assert_eq!((metadata.index, metadata.term), (INDEX, TERM));
    }
}
