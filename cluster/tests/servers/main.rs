//! Several servers on machines made of namespaces, with a real etcd: they join by one command each, outlive the loss of
//! one, take a machine of the same name in its place, let a server go with its Node, and keep every promise under faults.
//!
//! The tests need root and an etcd (`ETCD_BINARY`, or in the search path), and say so where either is missing.

#![allow(clippy::unwrap_used)]

mod faults;
mod killed;
mod machines;
mod recover;
mod rotation;
mod upgrade;

use std::fs::File;
use std::time::Duration;

use corten_members::Members;
use faults::{Length, Run, World};
use machines::{CORTEN, TwoServers, credentials, etcd, join, known_servers, members, refusal, signal_etcd, words};
use testkit::agent::Agent;
use testkit::cluster::Cluster;
use testkit::{tools, wait};

#[test]
fn three_servers_outlive_one_and_take_a_machine_of_its_name_in_its_place() {
    let Some(etcd) = etcd() else { return };
    let etcd = etcd.to_str().unwrap();
    let one = Cluster::machine(CORTEN);
    one.start(&["--cluster-init", "--node-name", "one", "--etcd-binary", etcd]);
    members(&one, &["one"]);

    let two = Cluster::machine(CORTEN);
    one.machine.connect(&two.machine, "10.88.0.3");
    // Nothing is written on a machine that is refused.
    let command = one.corten(&["token", "create", "--print-join-command"]);
    let of_agent = words(&command);
    let join_flags = |words: &[&str]| {
        let mut flags = vec!["server", "--etcd-binary", etcd, "--join", "https://10.88.0.2:6443"];
        flags.extend(words.iter().skip_while(|word| **word != "--token"));
        flags.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let borrowed = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let with_agents_token = join_flags(&of_agent);
    let said = refusal(&two, &borrowed(&with_agents_token).split(' ').collect::<Vec<_>>());
    assert!(said.contains("an agent's token"), "{said}");
    let command = one.corten(&["token", "create", "--server", "--print-join-command"]);
    let mut wrong_hash = join_flags(&words(&command));
    *wrong_hash.last_mut().unwrap() = "sha256:00".to_owned();
    let said = refusal(&two, &borrowed(&wrong_hash).split(' ').collect::<Vec<_>>());
    assert!(said.contains("not the one that was pinned"), "{said}");
    let mut wrong_key = join_flags(&words(&command));
    let token = wrong_key.iter_mut().find(|word| word.matches('.').count() == 2 && word.len() == 56).unwrap();
    let last = if token.ends_with('0') { '1' } else { '0' };
    token.pop();
    token.push(last);
    let said = refusal(&two, &borrowed(&wrong_key).split(' ').collect::<Vec<_>>());
    assert!(said.contains("does not open the cluster's keys"), "{said}");
    assert!(!two.data_dir().join("pki").exists() && !two.data_dir().join("etcd").exists());

    join(&two, &one, "two", etcd, &[]);
    let three = Cluster::machine(CORTEN);
    two.machine.connect(&three.machine, "10.88.0.4");
    join(&three, &two, "three", etcd, &[]);
    members(&one, &["one", "three", "two"]);
    let endpoints = ["get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}"];
    two.kubectl_until(&endpoints, |text| text.split_whitespace().count() == 3);

    // An agent that joined through the first server.
    let agent_machine = Cluster::machine(CORTEN);
    three.machine.connect(&agent_machine.machine, "10.88.0.5");
    let named = [&of_agent[..], &["--node-name", "agent"]].concat();
    let _agent = Agent::start(&agent_machine, &named);
    two.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 4);
    let servers = agent_machine.data_dir().join("servers.json");
    known_servers(&servers, &["10.88.0.2:6443", "10.88.0.3:6443", "10.88.0.4:6443"]);

    // The first server knows members that came after its start: it goes on without its own.
    signal_etcd(&one, "-STOP");
    one.kubectl_until(&["create", "configmap", "written-by-others"], |text| text.contains("created"));
    signal_etcd(&one, "-CONT");
    members(&one, &["one", "three", "two"]);
    // Machines that join still find the cluster by the server that was there first.
    let published = ["get", "configmap", "-n", "kube-public", "cluster-info", "-o", "jsonpath={.data.kubeconfig}"];
    let info = two.kubectl(&published);
    assert!(info.contains("https://10.88.0.2:6443"), "{info}");

    // The first machine dies. Writes go on, and the agent finds another server.
    one.kill_hard();
    two.kubectl_until(&["create", "configmap", "written", "--from-literal=after=death"], |text| {
        text.contains("created")
    });
    let lease = ["get", "lease", "-n", "kube-node-lease", "agent", "-o", "jsonpath={.spec.renewTime}"];
    for _ in 0..2 {
        let before = two.kubectl_until(&lease, |text| !text.is_empty());
        two.kubectl_until(&lease, |text| text != before);
    }
    three.kubectl_until(&["get", "configmap", "written"], |text| text.contains("written"));

    // Another machine takes its name and its place.
    let replacement = Cluster::machine(CORTEN);
    agent_machine.machine.connect(&replacement.machine, "10.88.0.6");
    join(&replacement, &two, "one", etcd, &[]);
    members(&two, &["one", "three", "two"]);
    two.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 4);

    // The server that cluster-info named is no more, and another one is named.
    two.kubectl_until(&published, |info| !info.contains("https://10.88.0.2:6443") && info.contains("https://10.88.0."));

    // A server leaves with its Node.
    two.kubectl(&["delete", "node", "three", "--wait=false"]);
    members(&two, &["one", "two"]);
    wait::until("the end of the server that was removed", wait::BOUND, || {
        let output = three.corten_command(&["status"]).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("removed from the cluster") { Ok(()) } else { Err(said) }
    });
}

#[test]
fn three_servers_on_one_machine_by_one_command() {
    let Some(etcd) = etcd() else { return };
    let etcd = etcd.to_str().unwrap();
    let cluster = Cluster::machine(CORTEN);
    cluster.start(&["--servers", "3", "--node-name", "one", "--etcd-binary", etcd]);
    members(&cluster, &["one", "one-2", "one-3"]);
    cluster.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]);
    cluster.corten(&["down"]);
    let processes = cluster.machine.processes().join("\n");
    assert!(!processes.contains("etcd"), "{processes}");
    // The number of servers is kept, and the binary.
    cluster.start(&["--node-name", "one"]);
    members(&cluster, &["one", "one-2", "one-3"]);
    assert!(cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]).contains('b'));
    cluster.corten(&["down", "--purge"]);
    let left = cluster.machine.processes().join("\n");
    assert!(!left.contains("etcd") && !left.contains("corten"), "{left}");
}

/// Returns the hash of all keys of a member, as its machine's own certificate may read them.
fn hash(on: &Cluster, address: &str, revision: u64) -> u32 {
    let members = Members::new(vec![format!("https://{address}:2379")], &credentials(on)).unwrap();
    on.machine.in_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(members.hash(revision)).unwrap()
    })
}

/// Returns the containers of a pod as its status shows them: ids and restarts.
fn containers(on: &Cluster, pod: &str) -> String {
    let template = "jsonpath={.status.containerStatuses[*]['containerID','restartCount']}";
    on.kubectl(&["get", "pod", pod, "-o", template])
}

#[test]
fn a_cluster_of_one_server_becomes_one_of_several() {
    let Some(etcd) = etcd() else { return };
    let etcd = etcd.to_str().unwrap();
    let one = Cluster::up(CORTEN, &["--node-name", "one", "--nodes", "2"]);
    one.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]);
    one.kubectl(&["run", "web", "--image", testkit::cluster::IMAGE, "--restart=Always", "--", "sleep", "1000000"]);
    one.kubectl_wait(&["wait", "--for=condition=Ready", "pod/web"]);
    let before = containers(&one, "web");
    let identity = |on: &Cluster| {
        on.kubectl(&[
            "get",
            "configmap",
            "kept",
            "-o",
            "jsonpath={.metadata.uid} {.metadata.resourceVersion} {.data.a}",
        ])
    };
    let kept = identity(&one);
    let database = one.data_dir().join("etcd/data/member/snap/db");
    one.kill_hard();

    // A migration that is killed once etcd has the objects leaves the old store in its place.
    let mut interrupted =
        one.corten_command(&["server", "--cluster-init", "--node-name", "one", "--etcd-binary", etcd]);
    let log = File::options().create(true).append(true).open(one.scratch().join("interrupted.log")).unwrap();
    let mut interrupted = interrupted.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    wait::until("the member's database", wait::BOUND, || match database.exists() {
        true => Ok(()),
        false => Err(std::fs::read_to_string(one.scratch().join("interrupted.log")).unwrap_or_default()),
    });
    let is_before_the_end = one.data_dir().join("store").exists();
    one.kill_hard();
    let _ = interrupted.wait();
    if is_before_the_end {
        one.start(&["--node-name", "one"]);
        assert_eq!(identity(&one), kept, "the old store is whole");
        one.kill_hard();
    }

    one.start(&["--cluster-init", "--node-name", "one", "--etcd-binary", etcd]);
    members(&one, &["one"]);
    assert_eq!(identity(&one), kept);
    assert!(!one.data_dir().join("store").exists() && one.data_dir().join("store.migrated-1").exists());
    one.kubectl_wait(&["wait", "--for=condition=Ready", "pod/web", "node/one", "node/one-2"]);
    assert_eq!(containers(&one, "web"), before, "no container was restarted");
    one.kubectl(&["create", "configmap", "later"]);

    // Others join, also at another port, and the agents of this machine learn of them.
    let two = Cluster::machine(CORTEN);
    one.machine.connect(&two.machine, "10.88.0.3");
    let command = one.corten(&["token", "create", "--server", "--print-join-command"]);
    let flags = [&words(&command)[1..], &["--node-name", "two", "--etcd-binary", etcd, "--port", "7443"]].concat();
    two.start(&flags);
    members(&two, &["one", "two"]);
    assert_eq!(identity(&two), kept);
    let revision = kept.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(hash(&one, "10.88.0.2", revision), hash(&one, "10.88.0.3", revision), "both members have all objects");
    known_servers(&one.data_dir().join("nodes/one-2/servers.json"), &["10.88.0.2:6443", "10.88.0.3:7443"]);

    // The member refuses strangers, and its files are root's alone.
    let audit = two.corten_command(&["audit", "--output", "json"]).output().unwrap();
    let audit: serde_json::Value = serde_json::from_slice(&audit.stdout).unwrap();
    let items = audit["items"].as_array().unwrap();
    for id in ["1.1.11", "1.1.12", "1.2.23", "1.2.26", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7"] {
        let item = items.iter().find(|item| item["id"] == id).unwrap();
        assert_eq!(item["status"], "pass", "{item}");
    }

    // The next start needs no flag.
    one.kill_hard();
    one.start(&["--node-name", "one"]);
    members(&one, &["one", "two"]);
    assert_eq!(identity(&one), kept);
}

/// Returns a number of the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn every_promise_is_kept_under_faults() {
    let Some(etcd) = etcd() else { return };
    let world = World::new(&etcd, &[]);
    let length = match number("FAULTS_MINUTES") {
        Some(minutes) => Length::Time(Duration::from_secs(minutes * 60)),
        None => Length::Faults(5),
    };
    let seed = number("FAULTS_SEED").unwrap_or(1);
    faults::run(&world, &Run { seed, rate: number("FAULTS_RATE").unwrap_or(150), length });
}

#[test]
fn servers_that_join_and_leave_keep_every_promise() {
    let Some(etcd) = etcd() else { return };
    // A short run has one machine more than servers, a long one as many as a cluster may sensibly have.
    let minutes = number("CHURN_MINUTES");
    let world = World::with(&etcd, &[], if minutes.is_some() { 7 } else { 4 });
    let length = match minutes {
        Some(minutes) => Length::Time(Duration::from_secs(minutes * 60)),
        None => Length::Faults(2),
    };
    let seed = number("FAULTS_SEED").unwrap_or(1);
    faults::churn(&world, &Run { seed, rate: number("FAULTS_RATE").unwrap_or(100), length });
}

#[test]
fn a_rolling_restart_fails_no_request() {
    let Some(etcd) = etcd() else { return };
    let world = World::new(&etcd, &[]);
    faults::rolling_restart(&world, 1, number("FAULTS_RATE").unwrap_or(150));
}

/// Runs busybox on a machine.
fn busybox(on: &Cluster, arguments: &[&str]) -> bool {
    on.machine.command(&tools::busybox()).args(arguments).output().unwrap().status.success()
}

/// Waits until `corten status` of a server shows these words.
fn status_until(on: &Cluster, expected: &str) {
    wait::until(&format!("{expected:?} in the status"), wait::BOUND, || {
        let output = on.corten_command(&["status"]).output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if text.contains(expected) { Ok(()) } else { Err(format!("{text}{errors}")) }
    });
}

#[test]
fn a_server_with_a_full_disk_says_so_and_heals_when_there_is_room() {
    let Some(etcd) = etcd() else { return };
    let etcd = etcd.to_str().unwrap();
    let TwoServers { one, two } = TwoServers::up(etcd);
    let three = Cluster::machine(CORTEN);
    two.machine.connect(&three.machine, "10.88.0.4");
    let data = three.data_dir();
    std::fs::create_dir_all(&data).unwrap();
    assert!(busybox(&three, &["mount", "-t", "tmpfs", "-o", "size=400m,mode=0700", "tmpfs", data.to_str().unwrap()]));
    join(&three, &two, "three", etcd, &[]);
    members(&one, &["one", "three", "two"]);

    // The disk fills up to its last byte, and further objects need more room.
    let filler = data.join("filler");
    busybox(&three, &["dd", "if=/dev/zero", &format!("of={}", filler.display()), "bs=64k"]);
    let payload = one.scratch().join("payload");
    std::fs::write(&payload, "x".repeat(500_000)).unwrap();
    let mut number = 0;
    wait::until("the failure of the member", wait::BOUND, || {
        number += 1;
        let source = format!("--from-file={}", payload.display());
        one.kubectl(&["create", "configmap", &format!("large-{number}"), &source]);
        let output = one.corten_command(&["status"]).output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains("2 of 3 members answer; 2 are needed") { Ok(()) } else { Err(text) }
    });
    status_until(&three, "its disk is full");
    one.kubectl(&["create", "configmap", "written-by-the-others"]);

    assert!(busybox(&three, &["rm", filler.to_str().unwrap()]));
    members(&one, &["one", "three", "two"]);
    status_until(&three, "3 of 3 members answer; 2 are needed");
}
