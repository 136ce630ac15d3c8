//! `corten etcd check`: whether this server could run on a store, and read every key of it. Nothing is written.

mod clusters;
pub mod decode;
pub mod report;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use corten_apiserver::StoredReader;
use corten_store::etcd::{self, Alarm, Etcd};
use corten_store::{Range, Store, snapshot};

use self::decode::Decoder;
use self::report::Report;
use crate::files;
use crate::store_cli::Check;

/// The keys of one page.
const PAGE: usize = 500;
/// The time within which a member must answer.
const DIAL: Duration = Duration::from_secs(5);

pub async fn run(flags: &Check) -> Result<()> {
    let prefix = format!("/{}/", flags.etcd_prefix.trim_matches('/'));
    let configuration = flags.encryption_provider_config.as_deref().map(files::read).transpose()?;
    let has_keys = configuration.is_some();
    let reader = StoredReader::new(configuration)?;
    reader.reach_plugins().await;
    let decoder = Decoder::new(&prefix, reader, has_keys);
    let checked = if flags.source.contains("://") {
        let endpoints: Vec<String> = flags.source.split(',').map(str::to_owned).collect();
        check_etcd(flags.tls.client(&endpoints)?, decoder, &prefix, flags.show).await?
    } else {
        let report = check_snapshot(Path::new(&flags.source), decoder, &prefix, flags.show).await?;
        Checked { report, is_full: false }
    };
    print!("{}", checked.report);
    checked.verdict(&prefix)
}

/// The result of a check.
struct Checked {
    report: Report,
    /// Whether etcd takes no writes, because it has no space.
    is_full: bool,
}

impl Checked {
    /// Returns the reason why no server should run on the store, in one sentence.
    fn verdict(&self, prefix: &str) -> Result<()> {
        let report = &self.report;
        ensure!(report.failures() == 0, "{} of {} keys cannot be decoded", report.failures(), report.keys());
        if let Some((one, other)) = report.clusters.strangers() {
            bail!(
                "two clusters write below {prefix}: the CAs in the ConfigMaps kube-root-ca.crt of the namespaces {one} and \
                 {other} have nothing in common"
            );
        }
        ensure!(
            !self.is_full,
            "etcd is in alarm NOSPACE: it takes no writes until it has space and `etcdctl alarm disarm` was run"
        );
        Ok(())
    }
}

/// Checks an etcd cluster: its members, its alarms and its keys.
async fn check_etcd(config: etcd::Config, decoder: Decoder, prefix: &str, show: usize) -> Result<Checked> {
    let alarms = etcd::alarms_of(&etcd::Config { dial_timeout: DIAL, ..config.clone() }).await?;
    ensure!(
        !alarms.contains(&Alarm::Corrupt),
        "etcd is in alarm CORRUPT: its members do not have the same data; restore it from a snapshot of a good one"
    );
    let store = Etcd::open(etcd::Config { dial_timeout: DIAL, ..config }).await?;
    let report = check_store(&*store, decoder, prefix, show).await?;
    Ok(Checked { report, is_full: alarms.contains(&Alarm::NoSpace) })
}

async fn check_snapshot(path: &Path, mut decoder: Decoder, prefix: &str, show: usize) -> Result<Report> {
    let contents = snapshot::load(path, snapshot::Limits::default())?;
    let current = contents.current();
    let definitions = decoder.definitions();
    for (_, entry) in current.range(Bytes::from(definitions.clone())..) {
        if !entry.key.starts_with(definitions.as_bytes()) {
            break;
        }
        decoder.learn(&entry.key, &entry.value).await;
    }
    let mut report = Report::new(prefix, contents.revision, show);
    for entry in current.values() {
        report.add(&entry.key, decoder.decode(&entry.key, &entry.value).await);
    }
    Ok(report)
}

/// Checks every key of a store below a prefix such as `/registry`, without the keys of encrypted values.
pub async fn check_decodable(store: &dyn Store, prefix: &str, show: usize) -> Result<Report> {
    let prefix = format!("/{}/", prefix.trim_matches('/'));
    let decoder = Decoder::new(&prefix, StoredReader::new(None)?, false);
    check_store(store, decoder, &prefix, show).await
}

/// Checks a running store, page by page at one revision.
async fn check_store(store: &dyn Store, mut decoder: Decoder, prefix: &str, show: usize) -> Result<Report> {
    let mut range = Range::prefix(decoder.definitions().as_bytes()).limit(PAGE);
    loop {
        let page = store.range(range.clone()).await?;
        range.revision = Some(page.revision);
        for entry in &page.entries {
            decoder.learn(&entry.key, &entry.value).await;
        }
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
            report.add(&entry.key, decoder.decode(&entry.key, &entry.value).await);
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
