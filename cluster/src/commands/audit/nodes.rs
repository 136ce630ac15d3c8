//! Section 4: the nodes and their kubelets.

use corten_meta::Value;

use super::control_plane::{modes, owners, strong_tls};
use super::facts::{Facts, FileFact, NodeFact};
use super::{Item, Outcome, item};

const NO_SERVICE: &str = "the kubelet is part of the node's process and has no service file";
const RESTART: &str = "run `corten up` again, which closes the files";
const OWNER: &str = "chown -R root:root the directory";
const CONFIGURATION: &str = "change it in the file that --kubelet-config names";

pub const ITEMS: &[Item] = &[
    item("4.1.1", "The kubelet's service file is writable by root alone", RESTART, |_| {
        Outcome::NotApplicable(NO_SERVICE)
    }),
    item("4.1.2", "The kubelet's service file belongs to root", OWNER, |_| Outcome::NotApplicable(NO_SERVICE)),
    item("4.1.3", "The proxy's kubeconfig is readable by root alone", RESTART, |facts| {
        modes(&named(facts, "proxy.conf"), 0o700, 0o600)
    }),
    item("4.1.4", "The proxy's kubeconfig belongs to root", OWNER, |facts| owners(&named(facts, "proxy.conf"))),
    item("4.1.5", "Kubeconfigs of kubelets are readable by root alone", RESTART, |facts| {
        modes(&named(facts, "kubelet.conf"), 0o700, 0o600)
    }),
    item("4.1.6", "Kubeconfigs of kubelets belong to root", OWNER, |facts| owners(&named(facts, "kubelet.conf"))),
    item("4.1.7", "The authority of client certificates is writable by root alone", RESTART, |facts| {
        modes(&named(facts, "ca.crt"), 0o700, 0o600)
    }),
    item("4.1.8", "The authority of client certificates belongs to root", OWNER, |facts| {
        owners(&named(facts, "ca.crt"))
    }),
    item("4.1.9", "The kubelet's configuration is writable by root alone", "chmod 600 the file", |facts| {
        modes(&configuration_files(facts), 0o700, 0o644)
    }),
    item("4.1.10", "The kubelet's configuration belongs to root", OWNER, |facts| owners(&configuration_files(facts))),
    item("4.2.1", "Kubelets answer no anonymous requests", CONFIGURATION, |facts| {
        each(facts, "without a credential kubelets answer 401", |node| match node.anonymous_status {
            Some(401) => None,
            Some(status) => Some(format!("it answers /pods with {status}")),
            None => Some("it does not answer".to_owned()),
        })
    }),
    item("4.2.2", "Kubelets ask the API server what callers may do", CONFIGURATION, |facts| {
        each(facts, "the mode is Webhook", |node| {
            let mode = &node.configuration["authorization"]["mode"];
            (mode != "Webhook").then(|| format!("authorization.mode is {mode}"))
        })
    }),
    item("4.2.3", "Kubelets verify client certificates", CONFIGURATION, |facts| {
        each(facts, "the API server's certificate is taken, and no credential is refused", |node| {
            let is_verified = !node.configuration.is_null() && node.anonymous_status == Some(401);
            (!is_verified).then(|| "it does not tell the API server from others".to_owned())
        })
    }),
    item("4.2.4", "Kubelets have no read-only port", CONFIGURATION, |facts| {
        let open = facts.listening.iter().filter(|address| address.port() == 10255);
        let open: Vec<String> = open.map(|address| format!("{address} is open")).collect();
        if !open.is_empty() {
            return Outcome::Fail(open);
        }
        each(facts, "port 10255 is closed", |node| {
            let port = node.configuration["readOnlyPort"].as_u64().unwrap_or(0);
            (port != 0).then(|| format!("readOnlyPort is {port}"))
        })
    }),
    item("4.2.5", "Idle streams are closed", CONFIGURATION, |facts| {
        each(facts, "streamingConnectionIdleTimeout is set", |node| {
            let time = &node.configuration["streamingConnectionIdleTimeout"];
            (time.is_null() || time == "0s").then(|| "streamingConnectionIdleTimeout is 0".to_owned())
        })
    }),
    item("4.2.6", "Kubelets keep the chains of iptables that the proxy needs", CONFIGURATION, |_| {
        Outcome::NotApplicable("the proxy needs no chains of the kubelet")
    }),
    item("4.2.7", "Nodes have the names of their machines", "start without --node-name", |facts| {
        let given = facts.flags.node_name.as_deref();
        Outcome::when(given.is_none(), "the first node has its host's name", format!("--node-name is {given:?}"))
    }),
    item("4.2.8", "Events are not dropped", CONFIGURATION, |facts| {
        each(facts, "eventRecordQPS is no lower than 1", |node| {
            let rate = node.configuration["eventRecordQPS"].as_i64().unwrap_or(50);
            (rate < 0).then(|| format!("eventRecordQPS is {rate}"))
        })
    }),
    item(
        "4.2.9",
        "Kubelets serve certificates that the cluster signed",
        "remove tlsCertFile from the configuration",
        |facts| {
            each(facts, "none is signed by itself", |node| {
                node.is_self_signed.then(|| "its certificate is signed by itself".to_owned())
            })
        },
    ),
    item("4.2.10", "Client certificates of kubelets are renewed", CONFIGURATION, |facts| {
        each(facts, "rotateCertificates is not false", |node| {
            (node.configuration["rotateCertificates"] == false).then(|| "rotateCertificates is false".to_owned())
        })
    }),
    item("4.2.11", "Serving certificates of kubelets are renewed", RESTART, |facts| {
        each(facts, "every certificate is good for a month or more", |node| {
            (node.certificate_days < 30).then(|| format!("its certificate expires in {} days", node.certificate_days))
        })
    }),
    item("4.2.12", "Kubelets offer strong ciphers alone", "none", |facts| {
        let nodes = facts.nodes.iter();
        let wrong = nodes.filter_map(|node| {
            match strong_tls(&node.name, node.tls.offers_tls_1_1, node.tls.offers_weak_ciphers) {
                Outcome::Fail(found) => Some(found),
                _ => None,
            }
        });
        Outcome::of(wrong.flatten().collect(), "TLS 1.1 and suites with CBC, RC4 and 3DES are refused")
    }),
    item("4.2.13", "Pods have a limit of processes", CONFIGURATION, |facts| {
        let is_set = |node: &NodeFact| node.configuration["podPidsLimit"].as_i64().is_some_and(|limit| limit > 0);
        if facts.nodes.iter().all(is_set) {
            return Outcome::Pass("podPidsLimit is set".to_owned());
        }
        Outcome::NotApplicable("without podPidsLimit the kubelet holds every pod to half of the node's processes")
    }),
    item("4.2.14", "Containers get the runtime's seccomp profile", CONFIGURATION, |facts| {
        each(facts, "seccompDefault is true", |node| {
            (node.configuration["seccompDefault"] != true).then(|| "seccompDefault is not true".to_owned())
        })
    }),
    item("4.3.1", "The proxy's metrics are served on loopback alone", "none", |facts| {
        let open = facts.reachable(10249).into_iter().map(|address| format!("it listens on {address} port 10249"));
        Outcome::of(open.collect(), "port 10249 is open on loopback alone, or not at all")
    }),
];

/// Returns the files with this name in the directories of all nodes of this machine.
fn named<'a>(facts: &'a Facts, name: &str) -> Vec<&'a FileFact> {
    let mut files = facts.below(&facts.directories.data);
    files.retain(|file| file.path.file_name().is_some_and(|known| known == name));
    files
}

fn configuration_files(facts: &Facts) -> Vec<&FileFact> {
    facts.flags.kubelet.config.as_deref().map(|path| facts.below(path)).unwrap_or_default()
}

/// Checks every node.
fn each(facts: &Facts, seen: &str, wrong: impl Fn(&NodeFact) -> Option<String>) -> Outcome {
    let unknown = |node: &NodeFact| node.configuration == Value::Null;
    let found = facts.nodes.iter().filter_map(|node| {
        let what = if unknown(node) { Some("its configuration cannot be read".to_owned()) } else { wrong(node) };
        what.map(|what| format!("{}: {what}", node.name))
    });
    Outcome::of(found.collect(), format!("{} nodes: {seen}", facts.nodes.len()))
}
