//! `corten etcd check`: whether this server could read every key of a store.

pub mod decode;
pub mod report;

use std::path::Path;

use anyhow::{Result, ensure};
use bytes::Bytes;
use corten_store::etcd::Etcd;
use corten_store::{Range, Store, snapshot};

use self::decode::CustomKinds;
use self::report::Report;
use crate::store_cli::Check;

/// The keys of one page.
const PAGE: usize = 500;

pub async fn run(flags: &Check) -> Result<()> {
    let prefix = format!("/{}/", flags.etcd_prefix.trim_matches('/'));
    let report = if flags.source.contains("://") {
        let endpoints: Vec<String> = flags.source.split(',').map(str::to_owned).collect();
        check_endpoint(&*Etcd::open(flags.tls.client(&endpoints)?).await?, &prefix, flags.show).await?
    } else {
        check_snapshot(Path::new(&flags.source), &prefix, flags.show)?
    };
    print!("{report}");
    ensure!(report.failures() == 0, "{} of {} keys cannot be decoded", report.failures(), report.keys());
    Ok(())
}

fn check_snapshot(path: &Path, prefix: &str, show: usize) -> Result<Report> {
    let contents = snapshot::load(path, snapshot::Limits::default())?;
    let current = contents.current();
    let mut kinds = CustomKinds::default();
    let definitions = decode::definitions(prefix);
    for (_, entry) in current.range(Bytes::from(definitions.clone())..) {
        if !entry.key.starts_with(definitions.as_bytes()) {
            break;
        }
        kinds.learn(&entry.value);
    }
    let mut report = Report::new(prefix, contents.revision, show);
    for entry in current.values() {
        report.add(&entry.key, decode::decode(prefix, &entry.key, &entry.value, &kinds));
    }
    Ok(report)
}

/// Checks every key of a store below a prefix such as `/registry`.
pub async fn check_store(store: &dyn Store, prefix: &str, show: usize) -> Result<Report> {
    check_endpoint(store, &format!("/{}/", prefix.trim_matches('/')), show).await
}

/// Checks a running store, page by page at one revision.
async fn check_endpoint(store: &dyn Store, prefix: &str, show: usize) -> Result<Report> {
    let mut kinds = CustomKinds::default();
    let definitions = decode::definitions(prefix);
    let mut range = Range::prefix(definitions.as_bytes()).limit(PAGE);
    loop {
        let page = store.range(range.clone()).await?;
        range.revision = Some(page.revision);
        page.entries.iter().for_each(|entry| kinds.learn(&entry.value));
        match next_page(range, &page.entries) {
            Some(next) if page.more => range = next,
            _ => break,
        }
    }
    let mut report = Report::new(prefix, 0, show);
    let mut range = Range::new("\0", "").limit(PAGE);
    loop {
        let page = store.range(range.clone()).await?;
        range.revision = Some(page.revision);
        report.revision = page.revision;
        for entry in &page.entries {
            report.add(&entry.key, decode::decode(prefix, &entry.key, &entry.value, &kinds));
        }
        match next_page(range, &page.entries) {
            Some(next) if page.more => range = next,
            _ => return Ok(report),
        }
    }
}

/// Returns the range after the last entry of a page.
fn next_page(range: Range, entries: &[corten_store::Entry]) -> Option<Range> {
    let last = entries.last()?;
    Some(range.from([&last.key, b"\0".as_slice()].concat()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use corten_store::{Config, Embedded, Expect, Op};

    use super::*;

    /// Makes a store with these keys.
    async fn store(dir: &Path, keys: &[(&'static str, &'static [u8])]) -> std::sync::Arc<Embedded> {
        let store = Embedded::open(Config::new(dir)).unwrap();
        for (key, value) in keys {
            store.commit(vec![Op::put(*key, *value, Expect::Any)]).await.unwrap();
        }
        store
    }

    const KEYS: &[(&str, &[u8])] = &[
        ("/registry/configmaps/a/b", br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}"#),
        (
            "/registry/apiextensions.k8s.io/customresourcedefinitions/foos.e.io",
            br#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
                 "spec":{"group":"e.io","names":{"kind":"Foo"},"versions":[{"name":"v1"}]}}"#,
        ),
        ("/registry/e.io/foos/a/x", br#"{"apiVersion":"e.io/v1","kind":"Foo"}"#),
        ("/registry/e.io/bars/a/x", br#"{"apiVersion":"e.io/v1","kind":"Bar"}"#),
        ("/registry/secrets/a/s", b"k8s:enc:secretbox:v1:corten:xyz"),
        ("/registry/pods/a/broken", b"k8s\0\x0a\xff"),
        ("/registry/ranges/servicenodeports", br#"{"apiVersion":"v1","kind":"RangeAllocation","range":"1-2"}"#),
        ("compact_rev_key", b"100"),
        ("/other/program", b"\x01"),
    ];

    #[tokio::test]
    async fn a_store_and_its_snapshot_have_the_same_report() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder.path().join("store"), KEYS).await;
        let live = check_endpoint(&*store, "/registry/", 20).await.unwrap();
        let path = folder.path().join("snapshot.db");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let member = snapshot::Member {
            id: 1,
            name: "a".to_owned(),
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
            applied: 1,
        };
        snapshot::save(&store.contents(), &member, &file).unwrap();
        let stored = check_snapshot(&path, "/registry/", 20).unwrap();
        assert_eq!(live.to_string(), stored.to_string());
        assert_eq!((live.failures(), live.keys()), (2, 9));
        let text = live.to_string();
        for expected in
            ["ConfigMap", "Foo", "encrypted: secretbox", "/registry/pods/a/broken", "/registry/e.io/bars/a/x"]
        {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }
}
