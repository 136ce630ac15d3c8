//! The table of etcd members in `corten status`.

use anyhow::Result;
use corten_members::report::{Report, Row, disk_latency};
use corten_members::{Members, State};

use crate::directories::Directories;
use crate::membership::{directory, member};

/// Returns the rows of all members, or one with the reason why there are none; nothing for a server that is alone.
pub async fn rows(directories: &Directories) -> Option<Vec<[String; 8]>> {
    let state = match State::read(&directory(directories)) {
        Ok(state) => state?,
        Err(error) => return Some(failed(&error.to_string())),
    };
    match gather(directories, &state).await {
        Ok(rows) => Some(rows),
        Err(error) => Some(failed(&format!("{error:#}"))),
    }
}

const HEAD: [&str; 8] = ["MEMBER", "ROLE", "VERSION", "LAG", "DATABASE", "IN USE", "DISK P99", "STATE"];

fn failed(reason: &str) -> Vec<[String; 8]> {
    let mut row = ["-"; 8].map(str::to_owned);
    row[7] = reason.to_owned();
    vec![HEAD.map(str::to_owned), row]
}

async fn gather(directories: &Directories, state: &State) -> Result<Vec<[String; 8]>> {
    let members = Members::new(state.endpoints.clone(), &member::credentials(&member::authority(directories)?)?)?;
    let report = Report::gather(&members).await?;
    let disk = disk_latency(member::metrics()).await;
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(report.rows.iter().map(|one| row(&report, one, disk.filter(|_| one.member.id == state.member))));
    Ok(rows)
}

fn row(report: &Report, one: &Row, disk: Option<f64>) -> [String; 8] {
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let title = one.member.title().to_owned();
    let role = report.role(&one.member).to_owned();
    let status = match &one.status {
        Ok(status) => status,
        Err(reason) => {
            let unknown = || "-".to_owned();
            let state = format!("failing: {reason}");
            return [title, role, unknown(), unknown(), unknown(), unknown(), unknown(), state];
        }
    };
    let alarms = report.alarms_of(&one.member);
    let problems: Vec<String> = match alarms.is_empty() {
        true => status.errors.clone(),
        false => vec![format!("alarm {}", alarms.join(", "))],
    };
    [
        title,
        role,
        status.version.clone(),
        report.lag(status).to_string(),
        mebibytes(status.database_bytes),
        mebibytes(status.used_bytes),
        disk.map_or_else(|| "-".to_owned(), |seconds| format!("{:.1} ms", seconds * 1000.0)),
        if problems.is_empty() { "healthy".to_owned() } else { problems.join("; ") },
    ]
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
        let line = |index: usize, disk| row(&report, &report.rows[index], disk).join(" | ");
        assert_eq!(line(0, Some(0.0123)), "one | leader | 3.6.8 | 0 | 2.0 MiB | 1.0 MiB | 12.3 ms | healthy");
        assert_eq!(line(1, None), "two | voter | 3.6.8 | 10 | 2.0 MiB | 1.0 MiB | - | alarm NOSPACE");
        assert_eq!(line(2, None), "three | voter | - | - | - | - | - | failing: it does not answer");
    }
}
