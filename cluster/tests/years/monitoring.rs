//! The view of a cluster from outside: alerts and a dashboard that fit its metrics, pages that Prometheus reads, and the
//! file of `corten support`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use testkit::cluster::Cluster;

use crate::machines::{CORTEN, is_skipped};

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/monitoring").join(name)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Returns the names of metrics in an expression or a page of them.
fn metrics(text: &str) -> BTreeSet<String> {
    let prefixes = ["corten_", "etcd_", "apiserver_", "scheduler_", "workqueue_", "coredns_", "kubelet_", "process_"];
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let named = words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)));
    named.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let reference = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md"));
    for file in ["corten.rules.yaml", "corten-dashboard.json"] {
        let used = metrics(&read(&dist(file)));
        assert!(used.len() > 5, "{file}: {used:?}");
        for name in used {
            assert!(reference.contains(&format!("`{name}`")), "{file}: {name}");
        }
    }
    let board: corten_meta::Value = serde_json::from_str(&read(&dist("corten-dashboard.json"))).unwrap();
    assert_eq!(board["panels"].as_array().map(Vec::len), Some(12));
}

/// Runs promtool; none if it is not installed.
fn promtool(arguments: &[&str], input: &[u8]) -> Option<(i32, String)> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: promtool is not installed");
        return None;
    };
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    Some((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&printed).into_owned()))
}

#[test]
fn alerts_fire_as_their_tests_say() {
    let rules = dist("corten.rules.yaml");
    let tests = dist("corten.rules.test.yaml");
    for arguments in [["check", "rules", &rules.to_string_lossy()], ["test", "rules", &tests.to_string_lossy()]] {
        let Some((code, printed)) = promtool(&arguments, b"") else { return };
        assert_eq!(code, 0, "{printed}");
    }
}

/// The code of promtool for metrics that it can read and whose names it would choose differently. Most are upstream's.
const LINT: i32 = 3;

#[test]
fn metrics_are_readable_and_support_has_no_secrets() {
    if is_skipped() {
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--node-name", "one"]);
    for page in ["/metrics", "/api/v1/nodes/one/proxy/metrics", "/api/v1/nodes/one/proxy/metrics/cadvisor"] {
        let text = cluster.kubectl(&["get", "--raw", page]);
        if let Some((code, printed)) = promtool(&["check", "metrics"], text.as_bytes()) {
            assert!(code == 0 || code == LINT, "{page}: {printed}");
        }
    }
    cluster.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=key=hunter2hunter2"]);
    let token = cluster.corten(&["token", "create"]);
    let file = cluster.scratch().join("support.tar.gz");
    let printed = cluster.corten(&["support", &file.to_string_lossy()]);
    assert!(printed.contains("without keys and Secrets"), "{printed}");
    let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(&file).unwrap()));
    let mut all = String::new();
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        names.push(entry.path().unwrap().to_string_lossy().into_owned());
        entry.read_to_string(&mut all).unwrap();
    }
    for name in ["status.txt", "certificate-list.txt", "logs/server.log", "cluster/nodes.json", "cluster/metrics"] {
        assert!(names.contains(&format!("corten-support/{name}")), "{name}: {names:?}");
    }
    assert!(all.contains("API server   https://127.0.0.1:6443") && all.contains("\"kind\": \"Node\""));
    let secret = token.trim().split('.').nth(1).unwrap();
    for hidden in ["hunter2", "aHVudGVyMmh1bnRlcjI", "PRIVATE KEY", secret] {
        assert!(!all.contains(hidden), "{hidden}");
    }
    let again = cluster.corten_command(&["support", &file.to_string_lossy()]).output().unwrap();
    assert!(!again.status.success(), "a file that exists is not replaced");
}
