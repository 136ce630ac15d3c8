//! Two machines made of namespaces: a cluster on the first, an agent on the second.

use testkit::agent::Agent;
use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

pub const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
pub const SECOND: &str = "10.88.0.3";

/// Two machines with a cluster, and an agent on the second.
pub struct TwoMachines {
    pub agent: Option<Agent>,
    pub first: Cluster,
    pub second: Cluster,
}

impl TwoMachines {
    pub fn up(flags: &[&str]) -> TwoMachines {
        let first = Cluster::up(CORTEN, &[&["--node-name", "first"], flags].concat());
        let second = Cluster::machine(CORTEN);
        first.machine.connect(&second.machine, SECOND);
        let mut machines = TwoMachines { agent: None, first, second };
        machines.join();
        let archive = testkit::image::busybox_archive(machines.second.scratch(), IMAGE);
        machines.second.corten(&["image", "import", &archive.to_string_lossy()]);
        machines.first.apply(&sleeper("second"));
        machines.first.kubectl_wait(&["wait", "--for=condition=Ready", "pod/on-second"]);
        machines
    }

    /// Joins the second machine by a new token.
    pub fn join(&mut self) {
        let command = self.first.corten(&["token", "create", "--print-join-command"]);
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        self.agent = Some(Agent::start(&self.second, &[&words[..], &["--node-name", "second"]].concat()));
        self.first.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 2);
    }

    /// Stops the agent on the second machine before its processes are looked for.
    pub fn down(mut self) {
        self.second.corten(&["down"]);
        drop(self.agent.take());
    }
}

/// Returns a pod on a node that says hello and sleeps.
pub fn sleeper(node: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: on-{node}}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: {node}
  containers: [{{name: c, image: {IMAGE}, command: [sh, -c, 'echo hello; exec sleep 3600']}}]
"
    )
}

/// Reports whether this process may not make machines, and says so.
pub fn is_skipped() -> bool {
    let is_skipped = !tools::is_root();
    if is_skipped {
        eprintln!("skipped: a cluster needs root");
    }
    is_skipped
}
