//! `/livez`, `/readyz`, `/healthz`: is the server alive, and has it started?

use corten_meta::quote::quote;
use corten_store::Health as StoreHealth;
use http::StatusCode;

use crate::body::Reply;
use crate::context::Context;
use crate::response;
use crate::server::Server;

/// Whether the store works at all. A full disk leaves it as it is: a restart would not help, and end the reads too.
const ETCD: &str = "etcd";
/// Whether the store takes writes.
const ETCD_READINESS: &str = "etcd-readiness";
/// The plugins that keep keys; there only if there are some.
const KMS: &str = "kms-providers";

/// What a server does that was told the name of its machine; see [`crate::bootstrap::identity`].
const IDENTITY: [&str; 3] = [
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
];

/// Which endpoints ask for a check: all of them, readiness alone, or the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Always,
    Readiness,
    Others,
}

impl Asked {
    fn by(self, endpoint: &str) -> bool {
        match self {
            Asked::Always => true,
            Asked::Readiness => endpoint == "readyz",
            Asked::Others => endpoint != "readyz",
        }
    }
}

/// The checks, in the order of upstream's output. The second word says who asks for it.
const CHECKS: &[(&str, Asked)] = &[
    ("ping", Asked::Always),
    ("log", Asked::Always),
    ("loopback-serving-certificate", Asked::Others),
    (ETCD, Asked::Always),
    (ETCD_READINESS, Asked::Readiness),
    (KMS, Asked::Always),
    ("informer-sync", Asked::Readiness),
    ("poststarthook/start-apiserver-admission-initializer", Asked::Always),
    ("poststarthook/generic-apiserver-start-informers", Asked::Always),
    ("poststarthook/priority-and-fairness-config-consumer", Asked::Always),
    ("poststarthook/priority-and-fairness-filter", Asked::Always),
    ("poststarthook/storage-object-count-tracker-hook", Asked::Always),
    ("poststarthook/start-apiextensions-informers", Asked::Always),
    ("poststarthook/start-apiextensions-controllers", Asked::Always),
    ("poststarthook/crd-informer-synced", Asked::Always),
    ("poststarthook/start-system-namespaces-controller", Asked::Always),
    (IDENTITY[0], Asked::Always),
    ("poststarthook/start-cluster-authentication-info-controller", Asked::Always),
    (IDENTITY[1], Asked::Always),
    (IDENTITY[2], Asked::Always),
    ("poststarthook/storage-readiness", Asked::Always),
    ("poststarthook/start-legacy-token-tracking-controller", Asked::Always),
    ("poststarthook/start-service-ip-repair-controllers", Asked::Always),
    ("poststarthook/rbac/bootstrap-roles", Asked::Always),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Asked::Always),
    ("poststarthook/priority-and-fairness-config-producer", Asked::Always),
    ("poststarthook/bootstrap-controller", Asked::Always),
    ("poststarthook/start-kubernetes-service-cidr-controller", Asked::Always),
    ("poststarthook/start-kube-aggregator-informers", Asked::Always),
    ("poststarthook/apiservice-status-local-available-controller", Asked::Always),
    ("poststarthook/apiservice-status-remote-available-controller", Asked::Always),
    ("poststarthook/apiservice-registration-controller", Asked::Always),
    ("poststarthook/apiservice-discovery-controller", Asked::Always),
    ("poststarthook/kube-apiserver-autoregistration", Asked::Always),
    ("autoregister-completion", Asked::Always),
    ("poststarthook/apiservice-openapi-controller", Asked::Always),
    ("poststarthook/apiservice-openapiv3-controller", Asked::Always),
    ("shutdown", Asked::Readiness),
];

/// Answers a health path, if it is one.
pub fn serve(server: &Server, context: &Context) -> Option<Reply> {
    let path = context.info.path.as_str();
    let endpoint = ["livez", "readyz", "healthz"].into_iter().find(|e| {
        path.strip_prefix('/')
            .and_then(|p| p.strip_prefix(e))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })?;
    let single = path.get(endpoint.len() + 2..).unwrap_or_default();
    if path.len() == endpoint.len() + 1 {
        return Some(all(server, context, endpoint));
    }
    let Some((name, _)) = checks(server).find(|(name, asked)| *name == single && asked.by(endpoint)) else {
        return Some(response::page_not_found());
    };
    // Upstream counts the checks of the whole endpoint alone.
    Some(match check(server, name) {
        Ok(()) => response::full(StatusCode::OK, "text/plain; charset=utf-8", "ok".into()),
        Err(why) => response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
    })
}

/// The path of every single check.
pub fn paths(server: &Server) -> impl Iterator<Item = String> {
    ["livez", "readyz", "healthz"].into_iter().flat_map(move |endpoint| {
        let asked = checks(server).filter(move |(_, asked)| asked.by(endpoint));
        asked.map(move |(name, _)| format!("/{endpoint}/{name}"))
    })
}

/// The checks that this server has.
fn checks(server: &Server) -> impl Iterator<Item = &'static (&'static str, Asked)> {
    let has_plugins = server.core.registry.transformer.health().is_some();
    let has_identity = server.core.config.hostname.is_some();
    CHECKS.iter().filter(move |(name, _)| match *name {
        KMS => has_plugins,
        name => has_identity || !IDENTITY.contains(&name),
    })
}

/// Makes a check, and counts its result.
fn counted(server: &Server, endpoint: &str, name: &str) -> Result<(), String> {
    let result = check(server, name);
    server.core.metrics.health.observe(name, endpoint, result.is_ok());
    result
}

fn check(server: &Server, name: &str) -> Result<(), String> {
    match name {
        KMS => server.core.registry.transformer.health().unwrap_or(Ok(())),
        ETCD => store(server, false),
        ETCD_READINESS => store(server, true),
        "shutdown" if server.core.shutdown.is_cancelled() => Err("process is shutting down".to_owned()),
        n if (n.starts_with("poststarthook/") || n == "autoregister-completion") && !server.health.is_ready() => {
            Err("not finished".to_owned())
        }
        _ => Ok(()),
    }
}

/// Returns why the store takes no writes; one that may recover is an error only to readiness.
fn store(server: &Server, is_readiness: bool) -> Result<(), String> {
    match server.core.registry.store.health() {
        StoreHealth::Broken { reason } => Err(format!("the store takes no more writes: {reason}")),
        StoreHealth::Failing { reason } if is_readiness => Err(format!("the store takes no writes: {reason}")),
        _ => Ok(()),
    }
}

fn all(server: &Server, context: &Context, endpoint: &str) -> Reply {
    let query = &context.info.query;
    let mut excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = false;
    for (name, _) in checks(server).filter(|(_, asked)| asked.by(endpoint)) {
        if excluded.contains(name) {
            excluded.retain(|other| other != name);
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        match counted(server, endpoint, name) {
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(_) => {
                failed = true;
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            }
        }
    }
    if !excluded.is_empty() {
        excluded.sort_unstable();
        let quoted: Vec<String> = excluded.iter().map(quote).collect();
        let unknown = quoted.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {unknown}\n"));
    }
    if failed {
        return response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n"));
    }
    if query.flag("verbose") {
        return response::text(StatusCode::OK, format!("{lines}{endpoint} check passed\n"));
    }
    response::text(StatusCode::OK, "ok")
}
