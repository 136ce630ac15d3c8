//! The state of all members, for people: who leads, who lags, how large the databases are, how slow the own disk is.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Alarm, Member, Status};
use crate::{Error, Members};

/// The most bytes of metrics that are read; etcd has some hundred kilobytes.
const MOST_BYTES: u64 = 8 << 20;
/// The longest time that a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The metric of etcd whose quantile tells a slow disk.
const FSYNC: &str = "etcd_disk_wal_fsync_duration_seconds";

/// One member and its state; the reason for one that does not answer.
#[derive(Clone, Debug)]
pub struct Row {
    pub member: Member,
    pub status: Result<Status, String>,
}

/// The state of all members.
#[derive(Clone, Debug)]
pub struct Report {
    pub rows: Vec<Row>,
    pub alarms: Vec<Alarm>,
}

impl Report {
    /// Asks every member.
    pub async fn gather(members: &Members) -> Result<Report, Error> {
        let list = members.list().await?;
        let alarms = members.alarms().await?;
        let mut rows = Vec::new();
        for member in list.members {
            let one = members.at(member.client_urls.clone());
            let status = match tokio::time::timeout(PATIENCE, one.status()).await {
                _ if !member.has_started() => Err("it never started".to_owned()),
                Ok(status) => status.map_err(|error| error.to_string()),
                Err(_) => Err("it does not answer".to_owned()),
            };
            rows.push(Row { member, status });
        }
        rows.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        Ok(Report { rows, alarms })
    }

    /// Returns the id of the leader, as most recently known.
    pub fn leader(&self) -> Option<u64> {
        let known = self.rows.iter().filter_map(|row| row.status.as_ref().ok());
        known.max_by_key(|status| status.raft_index).map(|status| status.leader).filter(|id| *id != 0)
    }

    /// Returns the number of log entries that a member has not applied yet.
    pub fn lag(&self, status: &Status) -> u64 {
        let known = self.rows.iter().filter_map(|row| row.status.as_ref().ok());
        let newest = known.map(|status| status.raft_index).max().unwrap_or_default();
        newest.saturating_sub(status.applied_index)
    }

    /// Returns the role of a member.
    pub fn role(&self, member: &Member) -> &'static str {
        match member.is_learner {
            true => "learner",
            false if self.leader() == Some(member.id) => "leader",
            false => "voter",
        }
    }

    /// Returns the names of a member's alarms.
    pub fn alarms_of(&self, member: &Member) -> Vec<&str> {
        self.alarms.iter().filter(|alarm| alarm.member == member.id).map(|alarm| alarm.name.as_str()).collect()
    }
}

/// Returns the time within which 99 of 100 writes of the log were on the disk, in seconds, by the metrics of the member
/// on this machine.
pub async fn disk_latency(metrics: SocketAddr) -> Option<f64> {
    let page = tokio::time::timeout(PATIENCE, page(metrics)).await.ok()?.ok()?;
    quantile(&page, FSYNC, 0.99)
}

/// Fetches the metrics. The old version of HTTP has answers that end with the connection.
async fn page(metrics: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(metrics).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut text = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut text).await?;
    Ok(text)
}

/// Returns a quantile of a histogram in Prometheus' text form, interpolated within its bucket as Prometheus does.
fn quantile(page: &str, name: &str, quantile: f64) -> Option<f64> {
    let prefix = format!("{name}_bucket{{le=\"");
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for line in page.lines() {
        let Some((bound, count)) = line.strip_prefix(&prefix).and_then(|rest| rest.split_once("\"} ")) else {
            continue;
        };
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
        buckets.push((bound, count.trim().parse().ok()?));
    }
    let total = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let rank = quantile * total;
    let index = buckets.iter().position(|(_, count)| *count >= rank)?;
    let (below, seen) = if index == 0 { (0.0, 0.0) } else { buckets[index - 1] };
    let (bound, count) = buckets[index];
    if bound.is_infinite() {
        return Some(below);
    }
    Some(below + (bound - below) * (rank - seen) / (count - seen).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_interpolated_in_its_bucket() {
        let page = "# TYPE x histogram\nx_bucket{le=\"0.001\"} 0\nx_bucket{le=\"0.002\"} 50\nx_bucket{le=\"0.004\"} 100\n\
                    x_bucket{le=\"+Inf\"} 100\nx_sum 1\nx_count 100\n";
        let near = |found: Option<f64>, wanted: f64| (found.unwrap() - wanted).abs() < 1e-9;
        assert!(near(quantile(page, "x", 0.5), 0.002));
        assert!(near(quantile(page, "x", 0.75), 0.003));
        assert!(near(quantile(page, "x", 0.99), 0.00396));
        assert_eq!(quantile(page, "y", 0.99), None);
        let beyond = "x_bucket{le=\"1\"} 1\nx_bucket{le=\"+Inf\"} 100\n";
        assert!(near(quantile(beyond, "x", 0.99), 1.0), "beyond the last bound its bound is known");
        assert_eq!(quantile("x_bucket{le=\"z\"} 1\n", "x", 0.99), None);
        assert_eq!(quantile("x_bucket{le=\"1\"} 0\nx_bucket{le=\"+Inf\"} 0\n", "x", 0.99), None);
    }

    #[test]
    fn the_lag_is_the_distance_to_the_newest_entry() {
        let row = |id: u64, index: u64, applied: u64| Row {
            member: Member { id, name: format!("m{id}"), ..Member::default() },
            status: Ok(Status { id, leader: 2, raft_index: index, applied_index: applied, ..Status::default() }),
        };
        let mut report = Report { rows: vec![row(1, 90, 80), row(2, 100, 100)], alarms: Vec::new() };
        report.rows.push(Row { member: Member::default(), status: Err("down".to_owned()) });
        let lags: Vec<u64> = report.rows.iter().filter_map(|row| Some(report.lag(row.status.as_ref().ok()?))).collect();
        assert_eq!(lags, [20, 0]);
        let roles: Vec<&str> = report.rows.iter().map(|row| report.role(&row.member)).collect();
        assert_eq!(roles, ["voter", "leader", "voter"]);
    }
}
