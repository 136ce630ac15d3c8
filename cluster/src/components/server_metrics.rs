//! The metrics of a server that runs for years, on the page of the controller manager: the ends of the certificates of its
//! machine, the last backup, and the etcd members.
//!
//! Files are read when the page is. The alerts of `dist/monitoring` use these metrics, and `corten status` says the same in words.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use corten_members::Members;
use corten_members::report::Report;
use corten_meta::metrics::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::directories::Directories;
use crate::{backup, certificates};

/// The time between two questions to the members.
const INTERVAL: Duration = Duration::from_secs(15);

corten_meta::families! {
    EXPIRATION = Gauge "corten_certificate_expiration_timestamp_seconds" ["certificate"],
        "The time at which a certificate of this machine expires, in seconds since 1970.";
    LIFETIME = Gauge "corten_certificate_lifetime_seconds" ["certificate"],
        "The time for which a certificate of this machine was signed.";
    LAST_SUCCESS = Gauge "corten_backup_last_success_timestamp_seconds" [],
        "The time of the last successful backup of this server, in seconds since 1970; 0 if there is none.";
    LAST_BYTES = Gauge "corten_backup_last_size_bytes" [],
        "The size of the last successful backup of this server in bytes.";
    MEMBER = Gauge "corten_etcd_member_healthy" ["member"],
        "Whether an etcd member answers this server and has no alarm.";
}

/// The metrics of a server.
#[derive(Debug)]
pub struct ServerMetrics {
    directories: Directories,
    registry: Arc<Registry>,
    /// The names of the members.
    names: Mutex<Vec<String>>,
}

impl ServerMetrics {
    pub fn new(directories: Directories) -> ServerMetrics {
        ServerMetrics { directories, registry: Arc::default(), names: Mutex::default() }
    }

    /// Returns the registry, for the counters of others.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// Renders the page as it is now.
    pub fn page(&self) -> String {
        self.read_certificates();
        self.read_backup();
        self.registry.render()
    }

    fn read_certificates(&self) {
        let listed = certificates::list(&self.directories);
        let is_listed = |labels: &[String]| listed.iter().any(|one| labels.first() == Some(&one.name));
        for family in [&EXPIRATION, &LIFETIME] {
            self.registry.retain(family, is_listed);
        }
        for one in &listed {
            let until = one.validity.until;
            let lifetime = until.duration_since(one.validity.signed()).as_secs_f64();
            self.registry.series(&EXPIRATION, &[&one.name]).set(until.as_second() as f64);
            self.registry.series(&LIFETIME, &[&one.name]).set(lifetime);
        }
    }

    /// Reads the record, which has the backups of people too.
    fn read_backup(&self) {
        let success = backup::status(&self.directories).success;
        let time = success.as_ref().map_or(0, |success| success.time.as_second());
        self.registry.series(&LAST_SUCCESS, &[]).set(time as f64);
        if let Some(success) = success {
            self.registry.series(&LAST_BYTES, &[]).set(success.bytes as f64);
        }
    }

    /// Asks the members of etcd until the shutdown.
    pub async fn follow_members(
        self: Arc<Self>,
        members: Members,
        endpoints: watch::Receiver<Vec<String>>,
        shutdown: CancellationToken,
    ) -> Result<()> {
        loop {
            let current = members.at(endpoints.borrow().clone());
            match Report::gather(&current).await {
                Ok(report) => self.set_members(&report),
                // Nothing is known of any of them: there is no quorum.
                Err(error) => {
                    tracing::debug!("the members cannot be listed: {error}");
                    for name in self.names.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                        self.registry.series(&MEMBER, &[name]).set(0.0);
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    fn set_members(&self, report: &Report) {
        let names: Vec<String> = report.rows.iter().map(|row| row.member.title().to_owned()).collect();
        self.registry.retain(&MEMBER, |labels| labels.iter().all(|label| names.contains(label)));
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
        for row in &report.rows {
            let is_healthy = row.status.as_ref().is_ok_and(|status| status.errors.is_empty());
            let is_healthy = is_healthy && report.alarms_of(&row.member).is_empty();
            self.registry.series(&MEMBER, &[row.member.title()]).set(f64::from(u8::from(is_healthy)));
        }
    }
}

#[cfg(test)]
mod tests {
    use corten_members::{Alarm, Member, Status};

    use super::*;
    use crate::pki::Pki;

    fn metrics() -> (tempfile::TempDir, ServerMetrics) {
        let folder = tempfile::tempdir().unwrap();
        let directories = Directories { data: folder.path().to_owned(), run: folder.path().join("run") };
        (folder, ServerMetrics::new(directories))
    }

    fn samples(page: &str) -> Vec<&str> {
        page.lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn certificates_and_the_last_backup_are_those_of_the_files_at_each_scrape() {
        let (folder, metrics) = metrics();
        assert_eq!(samples(&metrics.page()), ["corten_backup_last_success_timestamp_seconds 0"]);
        Pki::open(&metrics.directories.pki()).unwrap();
        let success =
            backup::Success { time: "2026-06-01T00:00:00Z".parse().unwrap(), place: "b".to_owned(), bytes: 7 };
        backup::record_success(&metrics.directories, success);
        let page = metrics.page();
        for sample in [
            "corten_backup_last_success_timestamp_seconds 1.780272e+09",
            "corten_backup_last_size_bytes 7",
            "corten_certificate_expiration_timestamp_seconds{certificate=\"pki/ca.crt\"} ",
            "corten_certificate_lifetime_seconds{certificate=\"pki/ca.crt\"} 3.15",
        ] {
            assert!(samples(&page).iter().any(|line| line.starts_with(sample)), "{sample}: {page}");
        }
        std::fs::remove_file(folder.path().join("pki/ca.crt")).unwrap();
        assert!(!metrics.page().contains("pki/ca.crt"), "a file that is gone has no series");
    }

    #[test]
    fn a_member_that_is_lost_or_has_an_alarm_is_not_healthy_and_one_that_left_has_no_series() {
        let (_folder, metrics) = metrics();
        let row = |id: u64, name: &str, status| corten_members::report::Row {
            member: Member { id, name: name.to_owned(), ..Member::default() },
            status,
        };
        let rows = vec![
            row(1, "one", Ok(Status::default())),
            row(2, "two", Err("it does not answer".to_owned())),
            row(3, "three", Ok(Status::default())),
        ];
        let alarms = vec![Alarm { member: 3, name: "NOSPACE".to_owned() }];
        let mut report = Report { rows, alarms };
        metrics.set_members(&report);
        let shown = |page: String| -> Vec<String> {
            let lines = page.lines().filter(|line| line.starts_with("corten_etcd_member_healthy{"));
            lines.map(|line| line.replace("corten_etcd_member_healthy{member=", "")).collect()
        };
        assert_eq!(shown(metrics.page()), ["\"one\"} 1", "\"three\"} 0", "\"two\"} 0"]);
        report.rows.remove(1);
        report.alarms.clear();
        metrics.set_members(&report);
        assert_eq!(shown(metrics.page()), ["\"one\"} 1", "\"three\"} 1"]);
    }
}
