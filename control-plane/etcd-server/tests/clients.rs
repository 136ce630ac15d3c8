//! Tests with other clients: the store's own etcd engine, TLS, and etcd's `etcdctl` and `etcdutl` where they are found
//! (variables `ETCDCTL_BINARY` and `ETCDUTL_BINARY`, or `PATH`).

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

#[path = "../../store/tests/support/etcd.rs"]
#[allow(dead_code, reason = "this program uses its part")]
mod real;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use corten_etcd_server::{Limits, Member, Server, serve_tls};
use corten_store::etcd::{self, Etcd};
use corten_store::transfer::Transfer;
use corten_store::{Embedded, Expect, Op, Outcome, Range, Store};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use support::{Served, serve};

/// Returns a program of etcd, if there is one that is new enough.
fn program(name: &str, variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists()));
    let Some(found) = found else {
        eprintln!("skipped: there is no {name} (variable {variable}, or PATH)");
        return None;
    };
    let version = Command::new(&found).arg("version").output().expect("it runs").stdout;
    if String::from_utf8_lossy(&version).contains("version: 3.4.") {
        eprintln!("skipped: {} is of etcd 3.4, which cannot use unix sockets", found.display());
        return None;
    }
    Some(found)
}

/// Runs etcdctl on a served store, and returns its standard output.
async fn etcdctl(program: &Path, served: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.arg(format!("--endpoints=unix://{}", served.socket.display())).args(arguments).env("ETCDCTL_API", "3");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_works() {
    let Some(program) = program("etcdctl", "ETCDCTL_BINARY") else { return };
    let served = serve().await;
    let cases: &[(&[&str], &str)] = &[
        (&["put", "a", "1"], "OK"),
        (&["get", "a"], "a\n1\n"),
        (&["get", "", "--prefix", "--keys-only"], "a\n"),
        (&["del", "a", "--prev-kv"], "1\na\n1\n"),
        (&["lease", "grant", "100"], "granted with TTL(100s)"),
        (&["lease", "list"], "found 1 leases"),
        (&["put", "b", "2"], "OK"),
        (&["compaction", "3"], "compacted revision 3"),
        (&["get", "a", "--rev=2"], "required revision has been compacted"),
        (&["endpoint", "status"], corten_etcd_server::VERSION),
        (&["endpoint", "health"], "is healthy"),
        (&["endpoint", "hashkv"], "unix://"),
        (&["defrag"], "Finished defragmenting"),
        (&["member", "list"], "started, test"),
        (&["member", "add", "x", "--peer-urls=http://127.0.0.1:1"], "the embedded store has one member"),
        (&["alarm", "list"], ""),
    ];
    for (arguments, expected) in cases {
        let output = etcdctl(&program, &served, arguments).await;
        assert!(text(&output).contains(expected), "{arguments:?}: {}", text(&output));
    }
    let watched = etcdctl(&program, &served, &["watch", "b", "--rev=4", "--", "sh", "-c", "kill -INT $PPID"]).await;
    assert!(text(&watched).contains("PUT\nb\n2\n"), "{}", text(&watched));
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdutl_takes_a_snapshot() {
    let Some(ctl) = program("etcdctl", "ETCDCTL_BINARY") else { return };
    let Some(utl) = program("etcdutl", "ETCDUTL_BINARY") else { return };
    let served = serve().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.db").display().to_string();
    for number in 0..2000 {
        let put = Op::put(format!("key{number}"), vec![b'v'; number * 3], Expect::Any);
        served.store.commit(vec![put]).await.unwrap();
    }
    served.store.compact(1000).await.unwrap();
    let saved = etcdctl(&ctl, &served, &["snapshot", "save", &path]).await;
    assert!(saved.status.success(), "{}", text(&saved));
    let run = |arguments: &[&str]| Command::new(&utl).args(arguments).output().unwrap();
    let status = run(&["snapshot", "status", &path, "-w", "json"]);
    assert!(text(&status).contains("\"revision\":2001,"), "{}", text(&status));
    let data = folder.path().join("data");
    let restored = run(&["snapshot", "restore", &path, "--data-dir", &data.display().to_string()]);
    assert!(restored.status.success(), "{}", text(&restored));
    // The member's own file is a database, too.
    let member = data.join("member/snap/db");
    let contents = corten_store::snapshot::load(&member, corten_store::snapshot::Limits::default()).unwrap();
    assert_eq!(contents, served.store.contents());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_etcd_engine_is_a_client() {
    let served = serve().await;
    let url = format!("unix://{}", served.socket.display());
    let config = etcd::Config { compaction_interval: Duration::ZERO, ..etcd::Config::new(vec![url]) };
    let engine = Etcd::open(config.clone()).await.unwrap();
    let mut watch = engine.watch(b"/registry/", 2).await.unwrap();
    let create = || vec![Op::put("/registry/a", "1", Expect::Absent)];
    let Outcome::Committed { revision, .. } = engine.commit(create()).await.unwrap() else { panic!("a conflict") };
    assert!(matches!(engine.commit(create()).await.unwrap(), Outcome::Conflict { .. }));
    assert_eq!(served.store.revision(), revision);
    let batch = watch.next().await.unwrap().unwrap();
    assert_eq!((batch.revision, batch.events.len()), (revision, 1));
    let found = engine.range(Range::prefix(b"/registry/")).await.unwrap();
    assert_eq!(found.entries, served.store.range(Range::prefix(b"/registry/")).await.unwrap().entries);
    let mut file = Vec::new();
    let length = etcd::download(&config, 1 << 20, &mut file).await.unwrap();
    assert_eq!(length, file.len() as u64);
    assert!(etcd::download(&config, 100, &mut Vec::new()).await.is_err(), "the snapshot is bigger");
}

/// A certificate authority and a certificate of it for the loopback address, as PEM.
struct Signed {
    ca: String,
    certificate: String,
    key: String,
}

fn sign() -> Signed {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::default();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = parameters.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(parameters, key);
    let leaf_key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = leaf.signed_by(&leaf_key, &issuer).unwrap().pem();
    Signed { ca, certificate, key: leaf_key.serialize_pem() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_needs_a_certificate_of_the_clients_authority() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(corten_store::Config::new(folder.path())).unwrap();
    let signed = sign();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(signed.ca.as_bytes()).unwrap()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let chain = vec![CertificateDer::from_pem_slice(signed.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
    let mut config =
        rustls::ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    let member = Member::named("test", vec![url.clone()]);
    let server = Server::new(store, member, Limits::default(), shutdown.clone());
    let serving = tokio::spawn(serve_tls(server, listener, Arc::new(config)));
    let open = |certificate: &str, key: &str| {
        let tls = etcd::Tls { ca: signed.ca.clone(), certificate: certificate.to_owned(), key: key.to_owned() };
        let dial_timeout = Duration::from_secs(20);
        Etcd::open(etcd::Config { tls: Some(tls), dial_timeout, ..etcd::Config::new(vec![url.clone()]) })
    };
    let known = open(&signed.certificate, &signed.key).await.unwrap();
    assert!(known.commit(vec![Op::put("a", "1", Expect::Absent)]).await.is_ok());
    let stranger = sign();
    assert!(open(&stranger.certificate, &stranger.key).await.is_err(), "another authority signed it");
    // A stream does not keep the server from ending.
    let _watch = known.watch(b"a", 0).await.unwrap();
    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_store_moves_into_etcd_while_it_is_read() {
    let Some(cluster) = real::EtcdCluster::start(1) else { return };
    let served = serve().await;
    let store = Arc::clone(&served.store);
    for number in 0..300 {
        store.commit(vec![Op::put(format!("/registry/{number}"), "v", Expect::Absent)]).await.unwrap();
    }
    // A writer that does not stop by itself; it ends when the store refuses it.
    let writer = tokio::spawn(async move {
        for number in 0.. {
            match store.commit(vec![Op::put("/registry/last", number.to_string(), Expect::Any)]).await {
                Ok(Outcome::Committed { .. }) => {}
                Err(corten_store::Error::Frozen) => return,
                other => panic!("{other:?}"),
            }
        }
    });
    let url = format!("unix://{}", served.socket.display());
    let source = Etcd::open(etcd::Config { compaction_interval: Duration::ZERO, ..etcd::Config::new(vec![url]) });
    let source = source.await.unwrap();
    let target = cluster.open().await;
    let transfer = Transfer::begin(&*target, b"/registry/").await.unwrap();
    transfer.raise(source.current().await.unwrap() + 100).await.unwrap();
    source.set_writable(false).await.unwrap();
    let moved = transfer.copy(&*source).await.unwrap().complete().await.unwrap();
    writer.await.unwrap();
    assert_eq!((moved.keys, moved.from), (301, served.store.revision()));
    let of = async |store: &dyn Store| {
        let all = store.range(Range::prefix(b"/registry/")).await.unwrap().entries;
        all.into_iter().map(|entry| (entry.key, entry.value)).collect::<Vec<_>>()
    };
    assert_eq!(of(&*target).await, of(&*served.store).await, "the last write is there");
    source.set_writable(true).await.unwrap();
    served.store.commit(vec![Op::put("/registry/again", "v", Expect::Absent)]).await.unwrap();
}
