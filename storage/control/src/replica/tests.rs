//! Transfers between two drivers of files in memory, over a pipe, and the TLS of peers.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::pull::receive;
use super::serve::{Bases, send};
use super::wire::Hello;
use super::*;

const MIB: u64 = 1 << 20;
const VOLUME: &str = "volume";

/// A driver with one volume, which is a file.
struct Files {
    root: TempDir,
    part: Mutex<Option<Part>>,
    bytes: Mutex<u64>,
    /// Whether the chunks that differ are known.
    maps: bool,
}

impl Files {
    fn new(is_primary: bool, maps: bool, bytes: u64) -> Arc<Files> {
        let part = Part { is_primary, epoch: 1, generation: String::new() };
        let files =
            Files { root: tempfile::tempdir().unwrap(), part: Mutex::new(Some(part)), bytes: Mutex::new(bytes), maps };
        files.open("data").set_len(bytes).unwrap();
        Arc::new(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn open(&self, name: &str) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(self.path("data")).unwrap()
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.open("data").write_all_at(bytes, at).unwrap();
    }
}

/// The data of a driver that both sides share with the test.
struct Shared(Arc<Files>);

impl ReplicaData for Shared {
    fn part(&self, _: &str) -> Result<Option<Part>, String> {
        Ok(self.0.part.lock().unwrap().clone())
    }
    fn all(&self) -> Result<Vec<Local>, String> {
        Ok(Vec::new())
    }
    fn increment(&self, _: &str, base: Option<&File>) -> Result<Option<Increment>, String> {
        let bytes = *self.0.bytes.lock().unwrap();
        let file = tempfile::tempfile_in(self.0.root.path()).unwrap();
        file.write_all_at(&self.0.content(), 0).unwrap();
        if let Some(base) = base
            && base.metadata().unwrap().len() == bytes
            && self.changed(base, &file, bytes)?.is_some_and(|changed| changed.is_empty())
        {
            return Ok(None);
        }
        let record = json!({"id": VOLUME, "bytes": bytes}).to_string();
        Ok(Some(Increment { file, bytes, record, guard: Box::new(()) }))
    }
    fn changed(&self, base: &File, current: &File, bytes: u64) -> Result<Option<BTreeSet<u64>>, String> {
        if !self.0.maps {
            return Ok(None);
        }
        let chunk = |file: &File, index| corten_storage_backup::read_chunk(file, bytes, index).unwrap();
        let indexes = 0..corten_storage_backup::chunk_count(bytes);
        Ok(Some(indexes.filter(|index| chunk(base, *index) != chunk(current, *index)).collect()))
    }
    fn receive(&self, record: &str, _: u64, generation: &str, _: u64) -> Result<Receiving, String> {
        let bytes = serde_json::from_str::<serde_json::Value>(record).unwrap()["bytes"].as_u64().unwrap();
        std::fs::copy(self.0.path("data"), self.0.path("next")).unwrap();
        let file = self.0.open("next");
        file.set_len(bytes).unwrap();
        let files = self.0.clone();
        let generation = generation.to_owned();
        let commit = move || {
            std::fs::rename(files.path("next"), files.path("data")).unwrap();
            files.part.lock().unwrap().as_mut().unwrap().generation = generation;
            Ok(())
        };
        Ok(Receiving { file, bytes, commit: Box::new(commit) })
    }
    fn promote(&self, _: &str, _: u64) -> Result<(), String> {
        Ok(())
    }
    fn fence(&self, _: &str) -> Result<bool, String> {
        Ok(false)
    }
    fn demote(&self, _: &str, _: u64) -> Result<(), String> {
        Ok(())
    }
    fn remove_copy(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn forget(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// A primary and its standby.
struct Pair {
    primary: Arc<Files>,
    standby: Arc<Files>,
    bases: Bases,
}

impl Pair {
    fn new(maps: bool) -> Pair {
        let bytes = 5 * MIB + 4096;
        Pair {
            primary: Files::new(true, maps, bytes),
            standby: Files::new(false, maps, bytes),
            bases: Bases::default(),
        }
    }

    /// Sends an increment through a pipe that breaks after a number of bytes; returns the bytes of chunks.
    async fn sync(&self, most: usize) -> Result<u64, String> {
        let (mut ours, mut theirs) = tokio::io::duplex(64 << 10);
        let (mut relayed, mut cut) = tokio::io::duplex(64 << 10);
        let base = self.standby.part.lock().unwrap().clone().unwrap().generation;
        let hello = Hello { replica: "pv".to_owned(), epoch: 1, base };
        let primary: Arc<dyn ReplicaData> = Arc::new(Shared(self.primary.clone()));
        let standby: Arc<dyn ReplicaData> = Arc::new(Shared(self.standby.clone()));
        let served = async {
            let hello: Hello = super::wire::receive(&mut theirs).await?;
            send(&mut theirs, &primary, &self.bases, &hello, VOLUME).await
        };
        let relay = async {
            let mut passed = 0;
            let mut up = vec![0; 4096];
            let mut down = vec![0; 4096];
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            loop {
                let read = tokio::select! {
                    read = ours.read(&mut down) => match read {
                        Ok(0) | Err(_) => break,
                        Ok(count) => {
                            passed += count;
                            if passed > most || cut.write_all(&down[..count]).await.is_err() { break }
                            count
                        }
                    },
                    read = cut.read(&mut up) => match read {
                        Ok(0) | Err(_) => break,
                        Ok(count) => {
                            if ours.write_all(&up[..count]).await.is_err() { break }
                            count
                        }
                    },
                };
                assert!(read > 0);
            }
            drop(ours);
            drop(cut);
        };
        let received = async move {
            let received = receive(&mut relayed, &standby, &hello, VOLUME).await;
            drop(relayed);
            received
        };
        let (_, (), received) = tokio::join!(served, relay, received);
        received
    }
}

#[tokio::test]
async fn an_increment_has_the_chunks_that_changed() {
    for maps in [true, false] {
        let pair = Pair::new(maps);
        pair.primary.write(0, b"first");
        pair.primary.write(3 * MIB, &[7; 4096]);
        assert_eq!(pair.sync(usize::MAX).await, Ok(2 * MIB));
        assert_eq!(pair.standby.content(), pair.primary.content());
        // Nothing is sent of a volume that did not change, with a base or by digests.
        assert_eq!(pair.sync(usize::MAX).await, Ok(0));
        pair.primary.write(5 * MIB, b"the end");
        pair.primary.write(3 * MIB, &[0; 4096]);
        assert_eq!(pair.sync(usize::MAX).await, Ok(4096));
        assert_eq!(pair.standby.content(), pair.primary.content());
        // A restarted primary knows no base, and a standby that diverged has other chunks: both are compared.
        pair.standby.write(2 * MIB, b"diverged");
        pair.standby.write(0, b"diverged");
        let restarted = Pair { bases: Bases::default(), ..pair };
        assert_eq!(restarted.sync(usize::MAX).await, Ok(MIB));
        assert_eq!(restarted.standby.content(), restarted.primary.content());
        // A volume that has grown.
        *restarted.primary.bytes.lock().unwrap() = 7 * MIB;
        restarted.primary.open("data").set_len(7 * MIB).unwrap();
        restarted.primary.write(6 * MIB, b"grown");
        assert_eq!(restarted.sync(usize::MAX).await, Ok(MIB));
        assert_eq!(restarted.standby.content(), restarted.primary.content());
    }
}

#[tokio::test]
async fn a_broken_connection_leaves_the_copy_as_it_was() {
    let pair = Pair::new(true);
    pair.primary.write(0, b"one");
    pair.sync(usize::MAX).await.unwrap();
    let before = pair.standby.content();
    pair.primary.write(0, b"two");
    pair.primary.write(4 * MIB, &[9; 100]);
    for most in [0, 3, 100, 500, 4096, 100_000, 1 << 20, (2 << 20) - 1] {
        pair.sync(most).await.unwrap_err();
        assert_eq!(pair.standby.content(), before, "after {most} bytes");
    }
    pair.sync(usize::MAX).await.unwrap();
    assert_eq!(pair.standby.content(), pair.primary.content());
}

#[tokio::test]
async fn a_false_chunk_or_volume_is_refused() {
    let standby = Files::new(false, true, 2 * MIB);
    let data: Arc<dyn ReplicaData> = Arc::new(Shared(standby.clone()));
    let hello = Hello { replica: "pv".to_owned(), epoch: 1, base: String::new() };
    let header = |id: &str, is_whole| super::wire::Header {
        generation: "g".to_owned(),
        record: json!({"id": id, "bytes": 2 * MIB}).to_string(),
        changed: 0,
        is_whole,
    };
    for (header, expected) in [
        (header("another", true), "another volume"),
        (header(VOLUME, false), "not a whole one"),
        (header(VOLUME, true), "differs from its digest"),
    ] {
        let (mut ours, mut theirs) = tokio::io::duplex(4 << 20);
        super::wire::send(&mut theirs, &super::wire::Answer::Increment(header)).await.unwrap();
        let entry = super::wire::Entry { index: 1, digest: Some([1; 32]) };
        super::wire::write(&mut theirs, &super::wire::encode_entries(&[entry])).await.unwrap();
        super::wire::write(&mut theirs, &vec![1; MIB as usize]).await.unwrap();
        let error = receive(&mut ours, &data, &hello, VOLUME).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(standby.content().iter().all(|byte| *byte == 0));
    }
}

const GROUP: &str = "system:corten:storage";

/// An authority that signs the certificates of components.
struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("ca.crt"), certificate.pem()).unwrap();
        Authority { directory, issuer: Issuer::new(params, key) }
    }

    fn identity(&self, user: &str, groups: &[&str]) -> PeerIdentity {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.directory.path().join(format!("{user} of {}.pem", groups.join(" and ")));
        std::fs::write(&path, format!("{}{}", certificate.pem(), key.serialize_pem())).unwrap();
        PeerIdentity { certificate: path, authority: self.directory.path().join("ca.crt"), group: GROUP.to_owned() }
    }
}

/// Connects two peers; returns the node that the server sees, or the client's error.
async fn meet(client: &PeerIdentity, server: &PeerIdentity, expected: &str) -> Result<Option<String>, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(server.server().unwrap());
    let accepted = async {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.map_err(|error| error.to_string())?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
        Ok::<_, String>(certificate.and_then(|certificate| server.node_of(&certificate)))
    };
    let connected = async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(client.client(expected).unwrap());
        connector.connect("x".try_into().unwrap(), stream).await.map_err(|error| error.to_string())
    };
    let (accepted, connected) = tokio::join!(accepted, connected);
    connected?;
    accepted
}

#[tokio::test]
async fn peers_are_the_storage_components_of_nodes() {
    let authority = Authority::new();
    let primary = authority.identity("system:corten:storage:n1", &[GROUP]);
    let standby = authority.identity("system:corten:storage:n2", &[GROUP]);
    assert_eq!(meet(&standby, &primary, "n1").await, Ok(Some("n2".to_owned())));
    let error = meet(&standby, &primary, "n3").await.unwrap_err();
    assert!(error.contains("not the storage component of node n3"), "{error}");
    // Other clients of the cluster are known, and are the storage component of no node.
    for (user, groups) in [
        ("system:node:n2", &["system:nodes"][..]),
        ("system:corten:storage:n2", &["system:masters"]),
        ("system:corten:storage:n2", &[GROUP, "system:masters"]),
        ("system:corten:storage:", &[GROUP]),
        ("system:corten:storagex:n2", &[GROUP]),
    ] {
        let other = authority.identity(user, groups);
        assert_eq!(meet(&other, &primary, "n1").await, Ok(None), "{user} {groups:?}");
        assert!(meet(&standby, &other, "n2").await.is_err(), "{user} {groups:?}");
    }
    // A certificate of another authority is refused by both sides.
    let elsewhere = Authority::new();
    let foreign = elsewhere.identity("system:corten:storage:n2", &[GROUP]);
    assert!(meet(&foreign, &primary, "n1").await.is_err());
}
