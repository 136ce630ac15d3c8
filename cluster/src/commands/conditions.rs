//! The bad conditions of a cluster, in words, each with the command that helps: the last part of `corten status`.
//!
//! Deciding is pure; `status` gathers the facts.

use corten_meta::Value;
use jiff::{SignedDuration, Timestamp};

use super::certificate::left;
use crate::certificates::Listed;
use crate::node_object::is_ready;
use crate::pki::keys::Stage;
use crate::pki::rotation::Rotation;

/// The free space below which a disk is nearly full.
const LEAST_FREE: u64 = 1 << 30;
/// The age at which a backup is too old, and a cluster too old to have none.
const BACKUP_AGE: SignedDuration = SignedDuration::from_hours(24);
/// The mean duration of writes from which on a disk is slow, in seconds.
const SLOW: f64 = 0.1;
/// The fewest writes that say something about a disk.
const FEWEST: f64 = 10.0;

/// A bad condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub problem: String,
    /// The command that helps, or shows more.
    pub help: String,
}

/// The facts of a running cluster.
#[derive(Default)]
pub struct Facts {
    pub now: Timestamp,
    /// The age of the cluster.
    pub made: Option<Timestamp>,
    pub certificates: Vec<Listed>,
    pub rotation: Option<Rotation>,
    pub service_account_keys: Option<Stage>,
    pub encryption_keys: Option<Stage>,
    pub nodes: Vec<Value>,
    /// The error of the list of nodes.
    pub not_listed: Option<String>,
    /// The state of the etcd members, if too few of them answer.
    pub lost_quorum: Option<String>,
    /// The error of `/readyz`.
    pub not_ready: Option<String>,
    /// The free bytes of the data directory's disk.
    pub free: Option<u64>,
    /// The time of a small write to that disk just now, in seconds.
    pub write: Option<f64>,
    /// The record of backups.
    pub backup: Value,
    /// The etcd members that do not serve: name and reason.
    pub failing_members: Vec<[String; 2]>,
    /// The metrics of the API server.
    pub metrics: String,
}

/// Returns the bad conditions, the worst first.
pub fn conditions(facts: &Facts) -> Vec<Condition> {
    let mut all = Vec::new();
    let mut add = |problem: String, help: &str| all.push(Condition { problem, help: help.to_owned() });
    if let Some(reason) = &facts.not_ready {
        add(format!("the API server is not ready: {reason}"), "kubectl get --raw '/readyz?verbose'");
    }
    if let Some(state) = &facts.lost_quorum {
        let problem =
            format!("{state}; start the other servers, and only if they are lost for good recover without them");
        add(problem, "corten recover");
    } else if let Some(reason) = &facts.not_listed {
        add(format!("the store cannot be read: {reason}"), "corten logs");
    }
    for [name, reason] in &facts.failing_members {
        match reason.strip_prefix("failing: ") {
            Some(reason) => add(
                format!(
                    "the etcd member {name} does not serve: {reason}; start its server, or remove one that is lost for good"
                ),
                &format!("kubectl delete node {name}"),
            ),
            None => add(format!("the etcd member {name} does not serve well: {reason}"), "corten logs"),
        }
    }
    if let Some(free) = facts.free.filter(|free| *free < LEAST_FREE) {
        add(format!("the disk of the data directory has {} MiB left", free >> 20), "corten image ls");
    }
    // A disk that was fast for months may be slow today, and one that is fast now may have been slow all the time.
    let write = mean_write(&facts.metrics).into_iter().chain(facts.write).fold(0.0, f64::max);
    if write > SLOW {
        add(format!("the disk is slow: a write takes {:.0} ms", write * 1000.0), "kubectl get --raw /metrics");
    }
    for node in facts.nodes.iter().filter(|node| !is_ready(node)) {
        let name = corten_meta::name(node);
        add(format!("the node {name} is not Ready"), &format!("corten why node/{name}"));
    }
    for one in facts.certificates.iter().filter(|one| one.validity.is_ending(facts.now)) {
        let left = left(one.validity.until, facts.now);
        let problem = format!("the certificate {} was not renewed in time: it has {left} left", one.name);
        let help = if one.renewed_by == "corten ca rotate" { "corten ca rotate" } else { "corten logs" };
        add(problem, help);
    }
    all.extend(rotations(facts));
    all.extend(backups(facts));
    all
}

/// Returns the rotations that are under way.
fn rotations(facts: &Facts) -> Vec<Condition> {
    let mut all = Vec::new();
    if let Some(rotation) = &facts.rotation {
        let since = rotation.started.strftime("%Y-%m-%d %H:%M");
        all.push(Condition {
            problem: format!(
                "the certificate authorities are being rotated since {since}: the old ones are still trusted"
            ),
            help: "corten ca rotate --finish".to_owned(),
        });
    }
    let under_way = |stage: &Option<Stage>| stage.is_some_and(|stage| stage != Stage::Single);
    if under_way(&facts.service_account_keys) {
        all.push(Condition {
            problem: "the key of ServiceAccount tokens is being rotated: the old one is still accepted".to_owned(),
            help: "corten service-account-key rotate --finish".to_owned(),
        });
    }
    if under_way(&facts.encryption_keys) {
        all.push(Condition {
            problem: "the rotation of the encryption key was interrupted".to_owned(),
            help: "corten encryption-key rotate".to_owned(),
        });
    }
    all
}

/// Returns the problems of backups.
fn backups(facts: &Facts) -> Vec<Condition> {
    let help = "corten backup FILE".to_owned();
    let condition = |problem: String| vec![Condition { problem, help: help.clone() }];
    if let Some(reason) = facts.backup.pointer("/failure/reason").and_then(Value::as_str) {
        return condition(format!("the last backup failed: {reason}"));
    }
    let last = facts.backup.pointer("/success/time").and_then(Value::as_str);
    let last: Option<Timestamp> = last.and_then(|time| time.parse().ok());
    let is_old = |time: Timestamp| facts.now.duration_since(time) > BACKUP_AGE;
    match (last, facts.made) {
        (Some(last), _) if is_old(last) => {
            let hours = facts.now.duration_since(last).as_hours();
            condition(format!("the last backup is {hours} hours old"))
        }
        (None, Some(made)) if is_old(made) => condition("there is no backup of this cluster".to_owned()),
        _ => Vec::new(),
    }
}

/// Returns the mean duration of writes to the store, in seconds; none if there were too few.
fn mean_write(metrics: &str) -> Option<f64> {
    let is_write = |line: &str| {
        ["create", "update", "delete"].iter().any(|operation| line.contains(&format!("operation=\"{operation}\"")))
    };
    let sum = |prefix: &str| -> f64 {
        let lines = metrics.lines().filter(|line| line.starts_with(prefix) && is_write(line));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let count = sum("etcd_request_duration_seconds_count{");
    (count >= FEWEST).then(|| sum("etcd_request_duration_seconds_sum{") / count)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pki::rotation::Phase;

    fn now() -> Timestamp {
        "2026-06-01T00:00:00Z".parse().unwrap()
    }

    fn node(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    #[test]
    fn a_healthy_cluster_has_no_conditions() {
        let facts = Facts {
            now: now(),
            made: Some(now() - SignedDuration::from_hours(240)),
            nodes: vec![node("one", "True")],
            free: Some(2 << 30),
            backup: json!({"success": {"time": "2026-05-31T12:00:00Z"}}),
            service_account_keys: Some(Stage::Single),
            encryption_keys: Some(Stage::Single),
            metrics: "etcd_request_duration_seconds_sum{operation=\"update\"} 1\n\
                      etcd_request_duration_seconds_count{operation=\"update\"} 100\n"
                .to_owned(),
            ..Facts::default()
        };
        assert_eq!(conditions(&facts), []);
        let young = Facts { made: Some(now()), backup: Value::Null, ..facts };
        assert_eq!(conditions(&young), []);
    }

    #[test]
    fn every_bad_condition_is_named_with_the_command_that_helps() {
        let facts = Facts {
            now: now(),
            made: Some(now() - SignedDuration::from_hours(48)),
            nodes: vec![node("one", "True"), node("two", "Unknown")],
            not_ready: Some("etcd-readiness failed".to_owned()),
            free: Some(100 << 20),
            failing_members: vec![
                ["three".to_owned(), "failing: connection refused".to_owned()],
                ["two".to_owned(), "its disk is full".to_owned()],
            ],
            lost_quorum: Some("1 of 3 members answer, and 2 are needed: nothing can be written".to_owned()),
            rotation: Some(Rotation { phase: Phase::Overlap, started: now() }),
            service_account_keys: Some(Stage::Used),
            encryption_keys: Some(Stage::Accepted),
            metrics: "etcd_request_duration_seconds_sum{operation=\"create\"} 50\n\
                      etcd_request_duration_seconds_count{operation=\"create\"} 100\n\
                      etcd_request_duration_seconds_sum{operation=\"get\"} 0\n"
                .to_owned(),
            ..Facts::default()
        };
        let shown: Vec<String> =
            conditions(&facts).into_iter().map(|one| format!("{} | {}", one.problem, one.help)).collect();
        assert_eq!(
            shown,
            [
                "the API server is not ready: etcd-readiness failed | kubectl get --raw '/readyz?verbose'",
                "1 of 3 members answer, and 2 are needed: nothing can be written; start the other servers, and only if they \
                 are lost for good recover without them | corten recover",
                "the etcd member three does not serve: connection refused; start its server, or remove one that is lost for \
                 good | kubectl delete node three",
                "the etcd member two does not serve well: its disk is full | corten logs",
                "the disk of the data directory has 100 MiB left | corten image ls",
                "the disk is slow: a write takes 500 ms | kubectl get --raw /metrics",
                "the node two is not Ready | corten why node/two",
                "the certificate authorities are being rotated since 2026-06-01 00:00: the old ones are still trusted | \
                 corten ca rotate --finish",
                "the key of ServiceAccount tokens is being rotated: the old one is still accepted | \
                 corten service-account-key rotate --finish",
                "the rotation of the encryption key was interrupted | corten encryption-key rotate",
                "there is no backup of this cluster | corten backup FILE",
            ]
        );
    }

    #[test]
    fn a_disk_that_became_slow_is_named() {
        let slow = |write| conditions(&Facts { now: now(), write, ..Facts::default() });
        assert_eq!(slow(Some(0.25))[0].problem, "the disk is slow: a write takes 250 ms");
        assert_eq!(slow(Some(0.01)), []);
    }

    #[test]
    fn backups_that_failed_or_are_old_are_named() {
        for (record, sentence) in [
            (json!({"failure": {"reason": "no room"}}), "the last backup failed: no room"),
            (json!({"success": {"time": "2026-05-30T00:00:00Z"}}), "the last backup is 48 hours old"),
        ] {
            let facts = Facts { now: now(), backup: record, ..Facts::default() };
            assert_eq!(conditions(&facts)[0].problem, sentence);
        }
    }
}
