//! Tests of the etcd engine against real etcd: members that vanish, answers that get lost, endpoints that must be
//! refused, and the shared compaction.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use corten_store::etcd::{Config, Etcd, Tls};
use corten_store::{Error, EventKind, Expect, Op, Outcome, Range, Revision, Store};

use support::commit;
use support::etcd::{EtcdCluster, Proxy, ServerTls, open};

const PATIENCE: Duration = Duration::from_secs(300);
const WRITERS: usize = 4;

/// An increment that a writer made or may have made.
#[derive(Default)]
struct Written {
    /// The values that were acknowledged, and their revisions.
    done: BTreeMap<Bytes, Revision>,
    /// The values whose outcome is unknown.
    unknown: BTreeSet<Bytes>,
}

/// Writes one key again and again by its last revision, until `stop`.
async fn write(store: Arc<Etcd>, writer: usize, stop: Arc<AtomicBool>) -> Written {
    let key = format!("/w/{writer}");
    let mut written = Written::default();
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let Ok((_, entry)) = store.get(key.as_bytes()).await else { continue };
        let expect = entry.map_or(Expect::Absent, |entry| Expect::ModRevision(entry.mod_revision));
        number += 1;
        let value = Bytes::from(format!("{writer} {number}"));
        match store.commit(vec![Op::put(key.clone(), value.clone(), expect)]).await {
            Ok(Outcome::Committed { revision, .. }) => drop(written.done.insert(value, revision)),
            Err(Error::UnknownOutcome { .. }) => drop(written.unknown.insert(value)),
            Err(Error::Unavailable { .. }) => {}
            other => panic!("no other writer has this key: {other:?}"),
        }
    }
    written
}

/// Follows all writers until the last key, over the loss of members.
async fn follow(store: Arc<Etcd>) -> BTreeMap<Bytes, Revision> {
    let mut watch = store.watch(b"/w/", 1).await.unwrap();
    let mut seen = BTreeMap::new();
    let mut reached = 0;
    loop {
        let batch = tokio::time::timeout(PATIENCE, watch.next()).await.expect("a batch").unwrap().unwrap();
        assert!(batch.revision > reached, "repeated or reordered");
        reached = batch.revision;
        for event in batch.events.iter() {
            if event.entry.key == "/w/last" {
                return seen;
            }
            assert_eq!(event.kind, EventKind::Put);
            assert!(seen.insert(event.entry.value.clone(), reached).is_none(), "a value was written twice");
        }
    }
}

/// Waits until every writer has written some more.
async fn progress(store: &Etcd) {
    let versions = async || {
        let all = store.range(Range::prefix(b"/w/")).await.unwrap().entries;
        all.into_iter().map(|entry| (entry.key, entry.version)).collect::<BTreeMap<_, _>>()
    };
    let before = versions().await;
    let moved = async {
        loop {
            let now = versions().await;
            if now.len() == WRITERS && now.iter().all(|(key, n)| *n > before.get(key).copied().unwrap_or(0) + 3) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("the writers go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_and_watches_outlive_any_member() {
    let Some(mut cluster) = EtcdCluster::start(3) else { return };
    let store = cluster.open().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS).map(|n| tokio::spawn(write(store.clone(), n, stop.clone()))).collect();
    let follower = tokio::spawn(follow(store.clone()));
    progress(&store).await;
    for member in 0..3 {
        cluster.kill(member);
        progress(&store).await;
        cluster.restart(member);
        progress(&store).await;
    }
    cluster.pause(1, true);
    progress(&store).await;
    cluster.pause(1, false);
    progress(&store).await;
    stop.store(true, Ordering::SeqCst);
    let mut done = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for writer in writers {
        let written = writer.await.unwrap();
        done.extend(written.done);
        unknown.extend(written.unknown);
    }
    commit(&*store, vec![Op::put("/w/last", "", Expect::Any)]).await;
    let seen = tokio::time::timeout(PATIENCE, follower).await.expect("the watch arrives").unwrap();
    for (value, revision) in &done {
        assert_eq!(seen.get(value), Some(revision), "{value:?} was acknowledged");
    }
    for value in seen.keys() {
        assert!(done.contains_key(value) || unknown.contains(value), "{value:?} was refused, and is there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_found_in_the_history() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let direct = cluster.open().await;
    let proxy = Proxy::start(&cluster.urls()[0]).await;
    let store = open(vec![proxy.url.clone()], None).await.unwrap();
    let first = commit(&*store, vec![Op::put("/a", "1", Expect::Absent)]).await;

    // The answer to the put is lost, and another client changes the key before anything is read back.
    proxy.swallow(true);
    let sender = Arc::clone(&store);
    let sent = tokio::spawn(async move {
        sender.commit(vec![Op::put("/a", "2", Expect::ModRevision(first)), Op::put("/b", "x", Expect::Any)]).await
    });
    let second = until(async || direct.get(b"/a").await.unwrap().1.filter(|entry| entry.value == "2")).await;
    let third = commit(&*direct, vec![Op::put("/a", "3", Expect::ModRevision(second.mod_revision))]).await;
    proxy.swallow(false);
    let outcome = sent.await.unwrap().unwrap();
    let Outcome::Committed { revision, previous } = outcome else { panic!("{outcome:?}") };
    assert_eq!(revision, second.mod_revision);
    assert_eq!(previous[0].as_ref().map(|entry| entry.mod_revision), Some(first));
    assert_eq!(previous[1], None);

    // A delete is found by the entry that it deleted.
    proxy.swallow(true);
    let sender = Arc::clone(&store);
    let sent = tokio::spawn(async move { sender.commit(vec![Op::delete("/a", Expect::ModRevision(third))]).await });
    until(async || direct.get(b"/a").await.unwrap().1.is_none().then_some(())).await;
    proxy.swallow(false);
    assert!(matches!(sent.await.unwrap().unwrap(), Outcome::Committed { revision, .. } if revision == third + 1));
}

/// Waits until a read returns something.
async fn until<T>(mut read: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = read().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the condition in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_current_revision_is_never_older_than_an_acknowledged_commit() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let one = cluster.open().await;
    let other = cluster.open().await;
    for number in 0..50 {
        let revision = commit(&*one, vec![Op::put("/a", format!("{number}"), Expect::Any)]).await;
        let reads = (0..8).map(|_| other.current());
        for current in futures::future::join_all(reads).await {
            assert!(current.unwrap() >= revision);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_two_clusters_are_refused() {
    let Some(one) = EtcdCluster::start(1) else { return };
    let Some(other) = EtcdCluster::start(1) else { return };
    one.open().await;
    other.open().await;
    let error = open([one.urls(), other.urls()].concat(), None).await.err().unwrap().to_string();
    assert!(error.contains("belongs to the cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_member_is_refused_in_a_sentence() {
    let authority = Authority::new("etcd-ca");
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = authority.issue();
    let files =
        ServerTls { ca: dir.path().join("ca"), certificate: dir.path().join("crt"), key: dir.path().join("key") };
    std::fs::write(&files.ca, authority.pem()).unwrap();
    std::fs::write(&files.certificate, &certificate).unwrap();
    std::fs::write(&files.key, &key).unwrap();
    let Some(cluster) = EtcdCluster::start_with(1, Some(&files)) else { return };
    let tls = |ca: String| Tls { ca, certificate: certificate.clone(), key: key.clone() };
    let store = open(cluster.urls(), Some(tls(authority.pem()))).await.unwrap();
    commit(&*store, vec![Op::put("/a", "1", Expect::Absent)]).await;
    let wrong = Config {
        tls: Some(tls(Authority::new("another-ca").pem())),
        dial_timeout: Duration::from_millis(1),
        ..Config::new(cluster.urls())
    };
    let error = Etcd::open(wrong).await.err().unwrap().to_string();
    assert!(error.contains("certificate") && error.contains("--etcd-cafile"), "{error}");
    let plain = open(cluster.urls(), None).await.err().unwrap().to_string();
    assert!(plain.contains("--etcd-cafile"), "{plain}");
}

/// A CA of a test.
struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        Authority { issuer: rcgen::CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn pem(&self) -> String {
        self.issuer.as_ref().pem()
    }

    /// Returns a certificate for loopback, of a server and a client, and its key.
    fn issue(&self) -> (String, String) {
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_share_one_compaction() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let config = |interval| Config { compaction_interval: interval, ..Config::new(cluster.urls()) };
    cluster.open().await;
    let often = Duration::from_millis(200);
    let servers = [Etcd::open(config(often)).await.unwrap(), Etcd::open(config(often)).await.unwrap()];
    let compacted = async {
        loop {
            commit(&*servers[0], vec![Op::put("/a", "x", Expect::Any)]).await;
            if servers.iter().any(|server| server.compacted() > 0) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, compacted).await.expect("a compaction");
    let (_, key) = servers[0].get(b"compact_rev_key").await.unwrap();
    let key = key.expect("the key of the protocol");
    let written: Revision = std::str::from_utf8(&key.value).unwrap().parse().unwrap();
    assert!(written > 0 && key.version > 1);
    assert!(matches!(servers[1].watch(b"/a", 1).await, Err(Error::Compacted { compacted }) if compacted > 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_etcd_would_refuse_fail_with_the_errors_of_the_store() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let store = cluster.open().await;
    let big = vec![0_u8; corten_etcd::MAX_REQUEST_BYTES];
    assert!(matches!(store.commit(vec![Op::put("/a", big, Expect::Any)]).await, Err(Error::TooLarge { .. })));
    let many = (0..=store.max_ops()).map(|n| Op::put(format!("/m/{n}"), "", Expect::Any)).collect();
    assert!(matches!(store.commit(many).await, Err(Error::Refused { .. })));
    let most = (0..store.max_ops()).map(|n| Op::put(format!("/m/{n}"), "", Expect::Absent)).collect();
    assert!(matches!(store.commit(most).await, Ok(Outcome::Committed { .. })));
    let twice = vec![Op::put("/a", "1", Expect::Any), Op::delete("/a", Expect::Any)];
    assert!(matches!(store.commit(twice).await, Err(Error::DuplicateKey)));
    let leased = Op::Put { key: "/l".into(), value: "".into(), lease: 77, expect: Expect::Any };
    assert!(matches!(store.commit(vec![leased]).await, Err(Error::LeaseNotFound(77))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_larger_than_a_message_arrives_whole() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let store = cluster.open().await;
    let mut watch = store.watch(b"/m/", 0).await.unwrap();
    // etcd splits answers of about the size of its request limit; previous values double an event.
    let value = vec![b'x'; 10_000];
    for _ in 0..2 {
        let ops: Vec<_> = (0..120).map(|n| Op::put(format!("/m/{n:03}"), value.clone(), Expect::Any)).collect();
        let revision = commit(&*store, ops).await;
        let batch = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((batch.revision, batch.events.len()), (revision, 120));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_are_replaced_under_calls_and_watches() {
    let Some(mut cluster) = EtcdCluster::start(3) else { return };
    let Some(foreign) = EtcdCluster::start(1) else { return };
    let urls = cluster.urls();
    let store = open(vec![urls[0].clone()], None).await.unwrap();
    let first = commit(&*store, vec![Op::put("/a", "1", Expect::Absent)]).await;
    let mut watch = store.watch(b"/a", first).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().revision, first);

    assert!(matches!(store.set_endpoints(&[]), Err(Error::Unsuitable { .. })));
    assert!(matches!(store.set_endpoints(&["ftp://x".to_owned()]), Err(Error::Unsuitable { .. })));
    store.set_endpoints(&[foreign.urls(), urls[1..].to_vec()].concat()).unwrap();
    // The only endpoint that the store began with is gone.
    cluster.kill(0);
    for number in 0..20 {
        let revision = loop {
            match store.commit(vec![Op::put("/a", format!("{number}"), Expect::Any)]).await {
                Ok(Outcome::Committed { revision, .. }) => break revision,
                // A write without a precondition is not repeated when its member dies.
                Err(Error::UnknownOutcome { .. } | Error::Unavailable { .. }) => {}
                other => panic!("{other:?}"),
            }
        };
        loop {
            let batch = tokio::time::timeout(PATIENCE, watch.next()).await.expect("a batch").unwrap().unwrap();
            if batch.revision >= revision {
                break;
            }
        }
    }
    let foreign = foreign.open().await;
    assert_eq!(foreign.get(b"/a").await.unwrap().1, None, "a member of another cluster is not written to");
}

/// Writes the files of a server that trusts clients of the same authority; returns the identity of a client.
fn write_server(files: &ServerTls, authority: &Authority) -> Tls {
    let (certificate, key) = authority.issue();
    std::fs::write(&files.ca, authority.pem()).unwrap();
    std::fs::write(&files.certificate, &certificate).unwrap();
    std::fs::write(&files.key, &key).unwrap();
    Tls { ca: authority.pem(), certificate, key }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_used_by_the_next_connections() {
    let dir = tempfile::tempdir().unwrap();
    let files =
        ServerTls { ca: dir.path().join("ca"), certificate: dir.path().join("crt"), key: dir.path().join("key") };
    let before = write_server(&files, &Authority::new("before"));
    let Some(mut cluster) = EtcdCluster::start_with(1, Some(&files)) else { return };
    let store = open(cluster.urls(), Some(before.clone())).await.unwrap();
    let first = commit(&*store, vec![Op::put("/a", "1", Expect::Absent)]).await;
    let mut watch = store.watch(b"/a", first).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().revision, first);

    let after = write_server(&files, &Authority::new("after"));
    cluster.kill(0);
    cluster.restart(0);
    let torn = Tls { key: before.key.clone(), ..after.clone() };
    assert!(matches!(store.set_tls(&torn), Err(Error::Unsuitable { .. })), "the key is of another certificate");
    let untrusted = Config { tls: Some(before), dial_timeout: Duration::ZERO, ..Config::new(cluster.urls()) };
    assert!(Etcd::open(untrusted).await.is_err(), "the old identity is no longer trusted");
    store.set_tls(&after).unwrap();
    let second = until(async || match store.commit(vec![Op::put("/a", "2", Expect::ModRevision(first))]).await {
        Ok(Outcome::Committed { revision, .. }) => Some(revision),
        Err(Error::Unavailable { .. }) => None,
        other => panic!("{other:?}"),
    })
    .await;
    let batch = until(async || watch.next().await.unwrap().ok().filter(|batch| !batch.events.is_empty())).await;
    assert_eq!(batch.revision, second, "the watch resumes with the new identity");
}
