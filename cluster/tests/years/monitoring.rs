//! The view of a cluster from outside: alerts and a dashboard that fit its metrics, pages that Prometheus reads, and the
//! file of `corten support`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::read::GzDecoder;
use testkit::cluster::Cluster;
use testkit::interruption::Running;
use testkit::{tools, wait};

use crate::alerts::{self, Series};
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

/// Plays the tests of the rules as promtool does, but for the words of the annotations.
#[test]
fn alerts_fire_as_their_tests_say() {
    let rules = alerts::rules(&read(&dist("corten.rules.yaml")));
    let tests = corten_meta::decode_yaml(read(&dist("corten.rules.test.yaml")).as_bytes()).unwrap();
    let mut played = BTreeSet::new();
    for group in tests["tests"].as_array().unwrap() {
        let text = |value: &corten_meta::Value| value.as_str().unwrap().to_owned();
        let inputs = group["input_series"].as_array().unwrap().iter();
        let series: Vec<_> = inputs.map(|one| alerts::written(&text(&one["series"]), &text(&one["values"]))).collect();
        for test in group["alert_rule_test"].as_array().unwrap() {
            let name = text(&test["alertname"]);
            let rule = rules.iter().find(|rule| rule.alert == name).unwrap();
            let mut expected: Vec<alerts::Labels> = Vec::new();
            for alert in test["exp_alerts"].as_array().unwrap() {
                let labels = alert["exp_labels"].as_object().unwrap().iter();
                let labels = labels.filter(|(label, _)| *label != "severity");
                expected.push(labels.map(|(label, value)| (label.to_string(), text(value))).collect());
                played.insert(name.clone());
            }
            let mut firing = rule.firing(&series, alerts::seconds(&text(&test["eval_time"])));
            firing.iter_mut().for_each(|labels| drop(labels.remove("__name__")));
            assert_eq!(firing, expected, "{name} at {}", test["eval_time"]);
        }
    }
    let all: BTreeSet<String> = rules.iter().map(|rule| rule.alert.clone()).collect();
    assert_eq!(played, all, "each alert fires in a test");
    assert!(rules.iter().all(|rule| rule.help.starts_with("corten ") || rule.help.starts_with("kubectl ")));
}

#[test]
fn promtool_says_the_same_of_the_alerts() {
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

/// Reads the pages that Prometheus would, at this moment.
fn scrape(cluster: &Cluster) -> Vec<Series> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let page = |job: &str, arguments: &[&str]| {
        alerts::scraped(&cluster.kubectl(&[&["get", "--raw"], arguments].concat()), job, at)
    };
    let manager = ["/metrics", "--server", "https://127.0.0.1:10257"];
    [page("apiserver", &["/metrics"]), page("state", &["/metrics/state"]), page("controller-manager", &manager)]
        .concat()
}

/// The alerts of faults that hold for a time, and those of `corten status` that have the same cause.
const FAULTS: [(&str, &str); 5] = [
    ("CortenCertificateEnds", "the certificate pki/forgotten.crt was not renewed in time"),
    ("CortenBackupOld", "the last backup is 30 hours old"),
    ("CortenNodeNotReady", "the node lost is not Ready"),
    ("CortenStoreDiskFull", "the disk of the data directory has "),
    ("CortenStoreNotWritable", "the API server is not ready"),
];

#[test]
fn faults_of_a_running_cluster_fire_alerts_and_are_named_by_its_status() {
    if is_skipped() {
        return;
    }
    let rules = alerts::rules(&read(&dist("corten.rules.yaml")));
    let rule = |name: &str| rules.iter().find(|rule| rule.alert == name).unwrap();
    let cluster = Cluster::machine(CORTEN);
    let data = cluster.data_dir();
    let shell = |script: &str| {
        let output = cluster.machine.command(&tools::busybox()).args(["sh", "-c", script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let at = data.display();
    shell(&format!("mkdir -p -m 0700 {at} && mount -t tmpfs -o mode=0700,size=4g tmpfs {at}"));
    cluster.start(&["--node-name", "one"]);
    let healthy = scrape(&cluster);
    let now = healthy[0].samples[0].0 + 1.0;
    for one in rules.iter().filter(|rule| rule.alert != "CortenNoBackup") {
        assert!(!one.holds(&healthy, now), "{} of a healthy cluster", one.alert);
    }
    assert!(rule("CortenNoBackup").holds(&healthy, now), "it fires when the cluster is a day old");
    let status = cluster.corten(&["status"]);
    assert!(FAULTS.iter().all(|(_, problem)| !status.contains(problem)), "{status}");

    // The disk is slow, where strace can make it so.
    slow_writes(&cluster, rule("CortenStoreSlow"));

    // A certificate that nothing renews, the record of an old backup, a node without a kubelet.
    let clock = SystemTime::now();
    let mut params = rcgen::CertificateParams::new(vec!["forgotten".to_owned()]).unwrap();
    params.not_before = (clock - Duration::from_secs(7200)).into();
    params.not_after = (clock + Duration::from_secs(600)).into();
    let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let inside = |name: &str| cluster.machine.path(data.join(name).to_str().unwrap());
    std::fs::write(inside("pki/forgotten.crt"), certificate.pem()).unwrap();
    let taken = corten_meta::time::now() - jiff::SignedDuration::from_hours(30);
    let record = serde_json::json!({"success": {"time": taken.to_string(), "place": "/b", "bytes": 7}});
    std::fs::write(inside("backup.json"), record.to_string()).unwrap();
    cluster.apply("apiVersion: v1\nkind: Node\nmetadata: {name: lost}\n");
    let lost = r#"{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}"#;
    cluster.kubectl(&["patch", "node", "lost", "--subresource=status", "-p", lost]);
    // The disk fills up.
    shell(&format!("mount -o remount,size=400m {at}; dd if=/dev/zero of={at}/fill bs=1M"));
    let big = cluster.scratch().join("big");
    std::fs::write(&big, vec![b'x'; 900 << 10]).unwrap();
    let from = format!("--from-file={}", big.display());
    let mut number = 0;
    wait::until("a write that is refused", wait::BOUND, || {
        number += 1;
        let mut create = cluster.kubectl_command(&["create", "configmap", &format!("big-{number}"), &from]);
        let output = create.output().map_err(|error| error.to_string())?;
        if output.status.success() { Err(format!("{number} were written")) } else { Ok(()) }
    });

    let faulty = scrape(&cluster);
    let begun = faulty[0].samples[0].0;
    // The faults last for half an hour.
    let mut series = Vec::new();
    for minute in 0..30 {
        let later = |one: &Series| Series {
            labels: one.labels.clone(),
            samples: one.samples.iter().map(|(time, value)| (time + f64::from(minute) * 60.0, *value)).collect(),
        };
        alerts::merge(&mut series, faulty.iter().map(later).collect());
    }
    let status = cluster.corten(&["status"]);
    for (alert, problem) in FAULTS {
        assert!(!rule(alert).firing(&series, begun + 25.0 * 60.0).is_empty(), "{alert} does not fire");
        assert!(status.contains(problem), "{problem}: {status}");
    }
}

/// Slows down the disk of a store, and checks that the alert about it holds.
fn slow_writes(cluster: &Cluster, rule: &alerts::Rule) {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: strace is not installed");
        return;
    }
    let mut tracer = cluster.machine.command(Path::new("strace"));
    tracer.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]);
    tracer.args(["-e", "inject=fdatasync,fsync:delay_exit=900000", "-p", &cluster.server_pid()]);
    let tracer = Running::start(tracer);
    let mut series = scrape(cluster);
    let mut number = 0;
    wait::until(&rule.alert, wait::BOUND, || {
        number += 1;
        cluster.kubectl(&["create", "configmap", &format!("slow-{number}")]);
        alerts::merge(&mut series, scrape(cluster));
        let now = series[0].samples.iter().map(|(time, _)| *time).fold(0.0, f64::max);
        if rule.holds(&series, now) { Ok(()) } else { Err(format!("not after {number} writes")) }
    });
    drop(tracer);
}
