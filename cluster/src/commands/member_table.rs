//! The table of etcd members in `corten status`.

use std::path::Path;

use anyhow::Result;
use corten_members::report::{Report, Row, disk_latency};
use corten_members::{Members, State};

use crate::directories::Directories;
use crate::membership::{directory, member};

/// The least free space that a member needs: a segment of its log is as long.
const LEAST_FREE: u64 = 64 << 20;

/// The members for people.
pub struct Table {
    /// Whether all members answer without an alarm.
    pub is_healthy: bool,
    /// Whether enough members answer for reads and writes.
    pub has_quorum: bool,
    /// The members in one sentence.
    pub summary: String,
    pub rows: Vec<[String; 8]>,
}

/// Returns all members, or the reason why they are not known; nothing for a server that is alone.
pub async fn gather(directories: &Directories) -> Option<Table> {
    let state = match State::read(&directory(directories)) {
        Ok(state) => state.filter(|state| !state.is_migrating)?,
        Err(error) => return Some(failed(&error.to_string())),
    };
    match gathered(directories, &state).await {
        Ok(table) => Some(table),
        Err(error) => {
            let disk = full_disk(&directory(directories)).map(|full| format!("; {full}")).unwrap_or_default();
            Some(failed(&format!("{error:#}{disk}")))
        }
    }
}

const HEAD: [&str; 8] = ["MEMBER", "ROLE", "VERSION", "LAG", "DATABASE", "IN USE", "DISK P99", "STATE"];

fn failed(reason: &str) -> Table {
    let mut row = ["-"; 8].map(str::to_owned);
    row[7] = reason.to_owned();
    let summary = format!("the members cannot be listed: {reason}");
    Table { is_healthy: false, has_quorum: false, summary, rows: vec![HEAD.map(str::to_owned), row] }
}

async fn gathered(directories: &Directories, state: &State) -> Result<Table> {
    let members = Members::new(state.endpoints.clone(), &member::credentials(&member::authority(directories)?)?)?;
    let report = Report::gather(&members).await?;
    let own = Own {
        member: state.member,
        latency: disk_latency(member::metrics()).await,
        full: full_disk(&directory(directories)),
    };
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(report.rows.iter().map(|one| row(&report, one, &own)));
    let (is_healthy, summary) = summary(&report);
    Ok(Table { is_healthy, has_quorum: has_quorum(&report), summary, rows })
}

/// Facts of the own member that only its machine knows.
#[derive(Default)]
struct Own {
    member: u64,
    /// The time within which 99 of 100 writes of its log were on the disk, in seconds.
    latency: Option<f64>,
    /// The sentence about its full disk.
    full: Option<String>,
}

/// Returns the sentence about a disk without room for a member.
fn full_disk(directory: &Path) -> Option<String> {
    let disk = nix::sys::statvfs::statvfs(&directory.join("data")).ok()?;
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    room(free).map(|room| format!("{room}; make room for {}", directory.display()))
}

fn room(free: u64) -> Option<String> {
    let mebibytes = free as f64 / f64::from(1 << 20);
    (free < LEAST_FREE).then(|| format!("its disk is full ({mebibytes:.1} MiB are left)"))
}

fn has_quorum(report: &Report) -> bool {
    let voters = || report.rows.iter().filter(|row| !row.member.is_learner);
    voters().filter(|row| row.status.is_ok()).count() > voters().count() / 2
}

/// Reports whether all members are well, and says how many answer.
fn summary(report: &Report) -> (bool, String) {
    let voters: Vec<&Row> = report.rows.iter().filter(|row| !row.member.is_learner).collect();
    let answering = voters.iter().filter(|row| row.status.is_ok()).count();
    let needed = voters.len() / 2 + 1;
    let words = match answering < needed {
        true => {
            format!("{answering} of {} members answer, and {needed} are needed: nothing can be written", voters.len())
        }
        false => format!("{answering} of {} members answer; {needed} are needed", voters.len()),
    };
    (answering == voters.len() && report.alarms.is_empty(), words)
}

fn row(report: &Report, one: &Row, own: &Own) -> [String; 8] {
    let is_own = one.member.id == own.member;
    let full = own.full.iter().filter(|_| is_own);
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let title = one.member.title().to_owned();
    let role = report.role(&one.member).to_owned();
    let status = match &one.status {
        Ok(status) => status,
        Err(reason) => {
            let unknown = || "-".to_owned();
            let problems: Vec<&str> = std::iter::once(reason.as_str()).chain(full.map(String::as_str)).collect();
            let state = format!("failing: {}", problems.join("; "));
            return [title, role, unknown(), unknown(), unknown(), unknown(), unknown(), state];
        }
    };
    let alarms = report.alarms_of(&one.member);
    let mut problems: Vec<String> = match alarms.is_empty() {
        true => status.errors.clone(),
        false => alarms.iter().map(|alarm| alarm_words(alarm)).collect(),
    };
    problems.extend(full.cloned());
    [
        title,
        role,
        status.version.clone(),
        report.lag(status).to_string(),
        mebibytes(status.database_bytes),
        mebibytes(status.used_bytes),
        own.latency.filter(|_| is_own).map_or_else(|| "-".to_owned(), |seconds| format!("{:.1} ms", seconds * 1000.0)),
        if problems.is_empty() { "healthy".to_owned() } else { problems.join("; ") },
    ]
}

/// Returns the words for an alarm of etcd.
fn alarm_words(alarm: &str) -> String {
    match alarm {
        "NOSPACE" => "alarm NOSPACE: its database has reached its quota, and nothing can be written".to_owned(),
        "CORRUPT" => "alarm CORRUPT: its data differs from that of the others".to_owned(),
        other => format!("alarm {other}"),
    }
}

#[cfg(test)]
mod tests {
    use corten_members::{Alarm, Member, Status};

    use super::*;

    #[test]
    fn members_are_shown_with_role_lag_and_alarms() {
        let member = |id: u64, name: &str| Member { id, name: name.to_owned(), ..Member::default() };
        let status = |id: u64, index: u64| Status {
            id,
            leader: 1,
            version: "3.6.8".to_owned(),
            database_bytes: 2 << 20,
            used_bytes: 1 << 20,
            raft_index: index,
            applied_index: index,
            ..Status::default()
        };
        let report = Report {
            rows: vec![
                Row { member: member(1, "one"), status: Ok(status(1, 100)) },
                Row { member: member(2, "two"), status: Ok(status(2, 90)) },
                Row { member: member(3, "three"), status: Err("it does not answer".to_owned()) },
            ],
            alarms: vec![Alarm { member: 2, name: "NOSPACE".to_owned() }],
        };
        let line = |index: usize, own: &Own| row(&report, &report.rows[index], own).join(" | ");
        let first = Own { member: 1, latency: Some(0.0123), full: None };
        assert_eq!(line(0, &first), "one | leader | 3.6.8 | 0 | 2.0 MiB | 1.0 MiB | 12.3 ms | healthy");
        let quota = "alarm NOSPACE: its database has reached its quota, and nothing can be written";
        assert_eq!(line(1, &first), format!("two | voter | 3.6.8 | 10 | 2.0 MiB | 1.0 MiB | - | {quota}"));
        assert_eq!(line(2, &first), "three | voter | - | - | - | - | - | failing: it does not answer");
        let full = Own { member: 3, latency: None, full: room(1 << 20) };
        let words = "failing: it does not answer; its disk is full (1.0 MiB are left)";
        assert_eq!(line(2, &full), format!("three | voter | - | - | - | - | - | {words}"));
        assert_eq!(line(0, &full), "one | leader | 3.6.8 | 0 | 2.0 MiB | 1.0 MiB | - | healthy");
        assert_eq!(room(LEAST_FREE), None);
        assert_eq!(summary(&report), (false, "2 of 3 members answer; 2 are needed".to_owned()));
        let lost = Report { rows: report.rows[1..].to_vec(), alarms: Vec::new() };
        let words = "1 of 2 members answer, and 2 are needed: nothing can be written";
        assert_eq!(summary(&lost), (false, words.to_owned()));
        assert!(has_quorum(&report) && !has_quorum(&lost));
        let well = Report { rows: report.rows[..1].to_vec(), alarms: Vec::new() };
        assert_eq!(summary(&well), (true, "1 of 1 members answer; 1 are needed".to_owned()));
    }
}
