//! Two machines: one runs the cluster, the other joins it by a token, leaves and comes back without one.

#![allow(clippy::unwrap_used)]

use testkit::agent::Agent;
use testkit::cluster::{Cluster, IMAGE};
use testkit::{machine, tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const SECOND: &str = "10.88.0.3";
const TOKEN: &str = "abcdef.0123456789abcdef";

fn web(node: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: on-{node}, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: {node}
  containers:
  - {{name: web, image: {IMAGE}, command: [sh, -c, 'echo {node} > /www/index.html; exec httpd -f -p 80 -h /www']}}
"#
    )
}

#[test]
fn a_machine_joins_by_a_token_and_comes_back_without_one() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let first = Cluster::up(CORTEN, &["--node-name", "first"]);
    let second = Cluster::machine(CORTEN);
    first.machine.connect(&second.machine, SECOND);

    let command = first.corten(&["token", "create", "--print-join-command"]);
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    assert_eq!((words[0], words[2]), ("agent", "https://10.88.0.2:6443"), "{command}");
    let mut wrong = words.clone();
    *wrong.last_mut().unwrap() = "sha256:00";
    let refused = second.corten_command(&wrong).output().unwrap();
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && printed.contains("not the one that was pinned"), "{printed}");

    // A machine may have its token before the cluster knows it.
    let mut named = [&words[..], &["--node-name", "second"]].concat();
    let position = named.iter().position(|word| *word == "--token").unwrap() + 1;
    named[position] = TOKEN;
    let agent = Agent::start(&second, &named);
    wait::until("the agent waits for its token", wait::BOUND, || {
        let log = std::fs::read_to_string(second.agent_log()).unwrap();
        if log.contains("does not know the token") { Ok(()) } else { Err(log) }
    });
    first.corten(&["token", "create", TOKEN]);
    first.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 2);
    assert!(!second.machine.processes().join("\n").contains(TOKEN), "the token is in the process list");
    let archive = testkit::image::busybox_archive(second.scratch(), IMAGE);
    second.corten(&["image", "import", &archive.to_string_lossy()]);
    first.apply(&web("first"));
    first.apply(&web("second"));
    first.kubectl_wait(&["wait", "--for=condition=Ready", "pod/on-first", "pod/on-second"]);

    // Pods of both machines reach each other, and the API server reaches the kubelet by the certificate that it
    // requested.
    for (from, to) in [("first", "second"), ("second", "first")] {
        let address = first.kubectl(&["get", "pod", &format!("on-{to}"), "-o", "jsonpath={.status.podIP}"]);
        assert_eq!(first.fetch_in(&format!("on-{from}"), &address, "80"), format!("{to}\n"));
    }

    // A Service of type LoadBalancer has the addresses of both, and both serve it.
    first.kubectl(&["create", "service", "loadbalancer", "web", "--tcp=8080:80"]);
    let addresses = ["get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"];
    first.kubectl_until(&addresses, |text| text == format!("{} {SECOND}", machine::ADDRESS));
    for (machine, address) in [(&first, SECOND), (&second, machine::ADDRESS)] {
        wait::until("the load balancer", wait::BOUND, || machine.machine.fetch(address, "8080"));
    }

    agent.stop(&second);
    let agent = Agent::start(&second, &["agent", "--node-name", "second"]);
    let lease = ["get", "lease", "-n", "kube-node-lease", "second", "-o", "jsonpath={.spec.renewTime}"];
    let before = first.kubectl(&lease);
    first.kubectl_until(&lease, |text| text != before);
    first.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 2);
    agent.stop(&second);
}
