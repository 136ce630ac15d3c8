//! Section 1: files of the control plane, and the settings of API server, controllers and scheduler.

use std::path::Path;

use super::facts::{Facts, FileFact};
use super::{Item, Outcome, item, store};

const NO_MANIFEST: &str = "the control plane is one process, not static pods with manifests";
const NO_SETTING: &str = "there is no setting that turns this off";
const RESTART: &str = "run `corten up` again, which closes the files";
const OWNER: &str = "chown -R root:root the directory";
const ETCD_FILES: &str = "name the CA and the client certificate of etcd by --etcd-cafile and --etcd-certfile";
const AUDIT_FLAGS: &str = "start the cluster without the audit flag that says otherwise";

pub const ITEMS: &[Item] = &[
    item("1.1.1", "The API server's manifest is writable by root alone", RESTART, no_manifest),
    item("1.1.2", "The API server's manifest belongs to root", OWNER, no_manifest),
    item("1.1.3", "The controller manager's manifest is writable by root alone", RESTART, no_manifest),
    item("1.1.4", "The controller manager's manifest belongs to root", OWNER, no_manifest),
    item("1.1.5", "The scheduler's manifest is writable by root alone", RESTART, no_manifest),
    item("1.1.6", "The scheduler's manifest belongs to root", OWNER, no_manifest),
    item("1.1.7", "The store's manifest is writable by root alone", RESTART, no_manifest),
    item("1.1.8", "The store's manifest belongs to root", OWNER, no_manifest),
    item("1.1.9", "Files of the pod network are writable by root alone", "chmod 600 the files", |facts| {
        modes(&facts.below(Path::new("/etc/cni/net.d")), 0o755, 0o644)
    }),
    item("1.1.10", "Files of the pod network belong to root", OWNER, |facts| {
        owners(&facts.below(Path::new("/etc/cni/net.d")))
    }),
    item("1.1.11", "The store's directory is readable by root alone", RESTART, |facts| {
        modes(&facts.store_files(), 0o700, 0o600)
    }),
    item("1.1.12", "The store's directory belongs to root, who the store runs as", OWNER, |facts| {
        owners(&facts.store_files())
    }),
    item("1.1.13", "The administrator's kubeconfig is readable by root alone", RESTART, |facts| {
        kubeconfig_modes(facts, "admin")
    }),
    item("1.1.14", "The administrator's kubeconfig belongs to root", OWNER, |facts| kubeconfig_owner(facts, "admin")),
    item("1.1.15", "The scheduler's kubeconfig is readable by root alone", RESTART, |facts| {
        kubeconfig_modes(facts, "scheduler")
    }),
    item("1.1.16", "The scheduler's kubeconfig belongs to root", OWNER, |facts| kubeconfig_owner(facts, "scheduler")),
    item("1.1.17", "The controller manager's kubeconfig is readable by root alone", RESTART, |facts| {
        kubeconfig_modes(facts, "controller-manager")
    }),
    item("1.1.18", "The controller manager's kubeconfig belongs to root", OWNER, |facts| {
        kubeconfig_owner(facts, "controller-manager")
    }),
    item("1.1.19", "Certificates and keys belong to root", OWNER, |facts| {
        owners(&facts.below(&facts.directories.pki()))
    }),
    item("1.1.20", "Certificates are writable by root alone", RESTART, |facts| {
        modes(&with_extension(facts, "crt"), 0o700, 0o600)
    }),
    item("1.1.21", "Keys are readable by root alone", RESTART, |facts| {
        modes(&with_extension(facts, "key"), 0o700, 0o600)
    }),
    item(
        "1.2.1",
        "Anonymous requests reach no resources",
        "delete the bindings of system:anonymous and system:unauthenticated, or name an AuthenticationConfiguration",
        anonymous,
    ),
    item("1.2.2", "Static token files are not used", "do not use static tokens", |_| {
        Outcome::NotApplicable("static token files are not supported")
    }),
    item(
        "1.2.3",
        "Services cannot claim external IPs",
        "make a ValidatingAdmissionPolicy that refuses spec.externalIPs, as the documentation of Kubernetes shows",
        external_ips,
    ),
    item("1.2.4", "The API server shows kubelets a client certificate", "restart the cluster", |facts| {
        let found = facts.nodes.iter().filter(|node| node.configuration.is_null());
        let found = found.map(|node| format!("the kubelet of {} does not answer the API server", node.name));
        Outcome::of(found.collect(), "every kubelet answers the API server and refuses others")
    }),
    item("1.2.5", "The API server verifies the certificates of kubelets", "restart the cluster", |_| {
        Outcome::NotApplicable(NO_SETTING)
    }),
    item(
        "1.2.6",
        "Not every request is allowed",
        "start the cluster without --authorization-mode AlwaysAllow",
        |facts| {
            let modes = &facts.flags.access.authorization_mode;
            let allows_all = modes.iter().any(|mode| mode == "AlwaysAllow");
            Outcome::when(!allows_all, authorizers(facts), "--authorization-mode names AlwaysAllow")
        },
    ),
    item("1.2.7", "Nodes reach only what belongs to their pods", "add Node to --authorization-mode", |facts| {
        authorizes_by(facts, "Node")
    }),
    item("1.2.8", "Rights are given by RBAC", "add RBAC to --authorization-mode", |facts| authorizes_by(facts, "RBAC")),
    item("1.2.9", "A flood of Events is limited", "restore the default FlowSchemas", |facts| {
        let count = facts.objects.flow_schemas.len();
        let seen = format!("priority and fairness limits every client by {count} FlowSchemas");
        Outcome::when(count > 0, seen, "there is no FlowSchema")
    }),
    item("1.2.10", "Admission is not skipped", "do not use AlwaysAdmit", |_| {
        Outcome::NotApplicable("the plugin AlwaysAdmit is not supported")
    }),
    item("1.2.11", "Images are pulled with the pod's own credentials", "use imagePullPolicy Always", |_| {
        Outcome::NotApplicable("the plugin AlwaysPullImages is not supported")
    }),
    item(
        "1.2.12",
        "Pods get a ServiceAccount",
        "start the cluster without --disable-admission-plugins ServiceAccount",
        |facts| match &facts.probes.default_account {
            Some(account) => Outcome::Pass(format!("a pod without one gets {account:?}")),
            None => Outcome::Fail(vec!["a pod without one gets none".to_owned()]),
        },
    ),
    item(
        "1.2.13",
        "Namespaces that do not exist take no objects",
        "start the cluster without --disable-admission-plugins NamespaceLifecycle",
        |facts| refused("a create in a namespace that does not exist", facts.probes.absent_namespace, &[404]),
    ),
    item(
        "1.2.14",
        "Nodes change only themselves",
        "start the cluster without --disable-admission-plugins NodeRestriction",
        |facts| refused("a change of another node's Node", facts.probes.foreign_node, &[403]),
    ),
    item("1.2.15", "The API server shows no profiles", "restart the cluster", |facts| {
        refused("/debug/pprof", facts.probes.profiling, &[403, 404])
    }),
    item("1.2.16", "Requests are written to an audit log", AUDIT_FLAGS, |facts| {
        let log = facts.directories.data.join("audit/audit.log");
        let path = facts.flags.audit.audit_log_path.as_deref().unwrap_or(&log);
        let is_there = path == Path::new("-") || !facts.below(path).is_empty();
        Outcome::when(is_there, format!("{} is written", path.display()), format!("{} is missing", path.display()))
    }),
    item("1.2.17", "Audit logs are kept for 30 days", AUDIT_FLAGS, |facts| {
        at_least("--audit-log-maxage", facts.flags.audit.audit_log_maxage, 30)
    }),
    item("1.2.18", "Ten audit logs are kept", AUDIT_FLAGS, |facts| {
        at_least("--audit-log-maxbackup", facts.flags.audit.audit_log_maxbackup as u64, 10)
    }),
    item("1.2.19", "Audit logs hold 100 MB", AUDIT_FLAGS, |facts| {
        at_least("--audit-log-maxsize", facts.flags.audit.audit_log_maxsize, 100)
    }),
    item("1.2.20", "Requests have a deadline", "none", |_| Outcome::NotApplicable(NO_SETTING)),
    item("1.2.21", "Tokens of deleted ServiceAccounts are refused", "none", |_| Outcome::NotApplicable(NO_SETTING)),
    item("1.2.22", "ServiceAccount tokens are signed by a key of their own", RESTART, |facts| {
        let key = facts.directories.pki().join("sa.key");
        Outcome::when(!facts.below(&key).is_empty(), format!("{} signs them", key.display()), "sa.key is missing")
    }),
    item("1.2.23", "The API server authenticates to the store", ETCD_FILES, store::authenticated),
    item("1.2.24", "The API server serves TLS alone", RESTART, |facts| {
        refused("a request with an invented token over TLS", facts.probes.wrong_token, &[401])
    }),
    item("1.2.25", "Client certificates are verified", RESTART, |facts| {
        let authority = facts.directories.pki().join("ca.crt");
        let seen = format!("by {}", authority.display());
        Outcome::when(!facts.below(&authority).is_empty(), seen, "pki/ca.crt is missing")
    }),
    item("1.2.26", "The API server verifies the store's certificate", ETCD_FILES, store::authenticated),
    item("1.2.27", "Secrets are encrypted at rest", "name an EncryptionConfiguration that encrypts secrets", |facts| {
        if facts.objects.secrets.is_empty() {
            return Outcome::NotApplicable("the cluster has no Secrets");
        }
        let seen = "no Secret is in the store's files";
        let wrong = "a Secret is in the store's files";
        Outcome::when(!facts.has_plain_secret, seen, wrong)
    }),
    item(
        "1.2.28",
        "Encryption at rest uses a strong cipher first",
        "put aesgcm, secretbox or kms before identity in the EncryptionConfiguration",
        encryption,
    ),
    item("1.2.29", "The API server offers strong ciphers alone", "none", |facts| {
        strong_tls("the API server", facts.probes.tls.offers_tls_1_1, facts.probes.tls.offers_weak_ciphers)
    }),
    item("1.2.30", "ServiceAccount tokens of pods are not extended to a year", "none", |_| {
        Outcome::NotApplicable(NO_SETTING)
    }),
    item("1.3.1", "Ended pods are collected", "none", |_| Outcome::NotApplicable(NO_SETTING)),
    item("1.3.2", "The controller manager shows no profiles", "none", |_| {
        Outcome::NotApplicable("there are no profiles to show")
    }),
    item("1.3.3", "Each controller has an account of its own", "none", |_| Outcome::NotApplicable(NO_SETTING)),
    item("1.3.4", "ServiceAccount tokens are signed by a private key", RESTART, |facts| {
        modes(&facts.below(&facts.directories.pki().join("sa.key")), 0o700, 0o600)
    }),
    item("1.3.5", "Pods get the authority that signs the API server", "none", |_| Outcome::NotApplicable(NO_SETTING)),
    item("1.3.6", "Serving certificates of kubelets are renewed", RESTART, |facts| {
        let old = facts.nodes.iter().filter(|node| node.certificate_days < 30);
        let old = old.map(|node| format!("the certificate of {} expires in {} days", node.name, node.certificate_days));
        Outcome::of(old.collect(), "every certificate is good for a month or more")
    }),
    item("1.3.7", "The controller manager listens on loopback alone", "none", |facts| loopback(facts, 10257)),
    item("1.4.1", "The scheduler shows no profiles", "none", |_| {
        Outcome::NotApplicable("there are no profiles to show")
    }),
    item("1.4.2", "The scheduler listens on loopback alone", "none", |facts| loopback(facts, 10259)),
];

fn no_manifest(_: &Facts) -> Outcome {
    Outcome::NotApplicable(NO_MANIFEST)
}

/// Fails for files with permissions beyond those wanted.
pub fn modes(files: &[&FileFact], directory: u32, file: u32) -> Outcome {
    if files.is_empty() {
        return Outcome::NotApplicable("there are no such files");
    }
    let wanted = |fact: &FileFact| if fact.is_directory { directory } else { file };
    let wrong = files.iter().filter(|fact| fact.mode & !wanted(fact) != 0);
    let wrong = wrong.map(|fact| format!("{} has mode {:o}", fact.path.display(), fact.mode));
    Outcome::of(wrong.collect(), format!("{} files and directories, as closed as mode {file:o}", files.len()))
}

/// Fails for files that do not belong to root.
pub fn owners(files: &[&FileFact]) -> Outcome {
    if files.is_empty() {
        return Outcome::NotApplicable("there are no such files");
    }
    let wrong = files.iter().filter(|fact| fact.uid != 0 || fact.gid != 0);
    let wrong = wrong.map(|fact| format!("{} belongs to {}:{}", fact.path.display(), fact.uid, fact.gid));
    Outcome::of(wrong.collect(), format!("{} files and directories belong to root", files.len()))
}

fn kubeconfig_modes(facts: &Facts, name: &str) -> Outcome {
    modes(&facts.below(&facts.directories.kubeconfig(name)), 0o700, 0o600)
}

fn kubeconfig_owner(facts: &Facts, name: &str) -> Outcome {
    owners(&facts.below(&facts.directories.kubeconfig(name)))
}

fn with_extension<'a>(facts: &'a Facts, extension: &str) -> Vec<&'a FileFact> {
    let mut files = facts.below(&facts.directories.pki());
    files.retain(|file| file.path.extension().is_some_and(|known| known == extension));
    files
}

/// The user and the group of requests without a credential.
const ANYONE: [&str; 2] = ["system:anonymous", "system:unauthenticated"];
/// The roles that every cluster gives them: version and health, the CA for machines that join, and the static pages of
/// the console. None reaches a resource.
const PUBLIC_ROLES: [&str; 3] = ["system:public-info-viewer", "kubeadm:bootstrap-signer-clusterinfo", "corten:pages"];

fn anonymous(facts: &Facts) -> Outcome {
    let mut wrong: Vec<String> = Vec::new();
    for (path, status) in facts.probes.anonymous.iter().filter(|(path, _)| path.starts_with("/api")) {
        if !matches!(status, 401 | 403) {
            wrong.push(format!("GET {path} without a credential is answered with {status}"));
        }
    }
    let bindings = facts.objects.cluster_role_bindings.iter().chain(&facts.objects.role_bindings);
    for binding in bindings {
        let role = binding["roleRef"]["name"].as_str().unwrap_or_default();
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        let is_public = subjects.any(|subject| ANYONE.iter().any(|name| subject["name"] == *name));
        if is_public && !PUBLIC_ROLES.contains(&role) {
            wrong.push(format!("{} gives {role} to everyone", binding["metadata"]["name"]));
        }
    }
    Outcome::of(wrong, "without a credential there are version, health and the public cluster-info alone")
}

fn external_ips(facts: &Facts) -> Outcome {
    let mut users: Vec<String> = Vec::new();
    for service in &facts.objects.services {
        if service["spec"]["externalIPs"].as_array().is_some_and(|addresses| !addresses.is_empty()) {
            let metadata = &service["metadata"];
            users.push(format!("Service {}/{} has external IPs", metadata["namespace"], metadata["name"]));
        }
    }
    if users.is_empty() && !matches!(facts.probes.external_ips, 403 | 422) {
        return Outcome::NotApplicable(
            "the plugin DenyServiceExternalIPs is not supported; no Service has external IPs, and a policy may refuse them",
        );
    }
    Outcome::of(users, "no Service has external IPs")
}

fn authorizers(facts: &Facts) -> String {
    let access = &facts.flags.access;
    match (&access.authorization_config, access.authorization_mode.is_empty()) {
        (Some(path), _) => format!("the authorizers are those of {}", path.display()),
        (None, true) => "the authorizers are Node and RBAC".to_owned(),
        (None, false) => format!("the authorizers are {}", access.authorization_mode.join(" and ")),
    }
}

fn authorizes_by(facts: &Facts, mode: &str) -> Outcome {
    let access = &facts.flags.access;
    if access.authorization_config.is_some() {
        return Outcome::NotApplicable(
            "an AuthorizationConfiguration names the authorizers; see --authorization-config",
        );
    }
    let has = access.authorization_mode.is_empty() || access.authorization_mode.iter().any(|known| known == mode);
    Outcome::when(has, authorizers(facts), format!("--authorization-mode does not name {mode}"))
}

fn refused(request: &str, status: u16, wanted: &[u16]) -> Outcome {
    let is_refused = wanted.contains(&status);
    Outcome::when(
        is_refused,
        format!("{request} is refused with {status}"),
        format!("{request} is answered with {status}"),
    )
}

/// Checks a minimum; zero stands for no limit.
fn at_least(flag: &str, value: u64, least: u64) -> Outcome {
    let is_enough = value == 0 || value >= least;
    Outcome::when(is_enough, format!("{flag} is {value}"), format!("{flag} is {value}, less than {least}"))
}

fn encryption(facts: &Facts) -> Outcome {
    let Some(configuration) = &facts.encryption else {
        return Outcome::when(
            !facts.below(&facts.directories.pki().join("secrets.key")).is_empty(),
            "Secrets are encrypted by secretbox with a key of the cluster's own",
            "pki/secrets.key is missing",
        );
    };
    let resources = configuration["resources"].as_array().into_iter().flatten();
    let weak = resources.filter(|entry| {
        let first = entry["providers"][0].as_object().and_then(|provider| provider.keys().next());
        !first.is_some_and(|name| ["aesgcm", "secretbox", "kms"].contains(&name.as_str()))
    });
    let weak = weak.map(|entry| format!("{} are written by a weak provider", entry["resources"]));
    Outcome::of(weak.collect(), "every first provider is a strong one")
}

pub fn strong_tls(name: &str, offers_old: bool, offers_weak: bool) -> Outcome {
    let mut wrong = Vec::new();
    if offers_old {
        wrong.push(format!("{name} speaks TLS 1.1"));
    }
    if offers_weak {
        wrong.push(format!("{name} takes a suite with CBC, RC4 or 3DES"));
    }
    Outcome::of(wrong, "TLS 1.1 and suites with CBC, RC4 and 3DES are refused")
}

fn loopback(facts: &Facts, port: u16) -> Outcome {
    let open = facts.reachable(port).into_iter().map(|address| format!("it listens on {address} port {port}"));
    Outcome::of(open.collect(), format!("port {port} is open on loopback alone, or not at all"))
}
