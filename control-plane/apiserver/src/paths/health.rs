//! `/livez`, `/readyz`, `/healthz`: the health checks of the server.

use std::borrow::Cow;

use corten_meta::quote::quote;
use corten_store::Health as StoreHealth;
use http::StatusCode;

use crate::body::Reply;
use crate::context::Context;
use crate::response;
use crate::server::Server;

/// The check that the store works at all. A full disk does not fail it: a restart would not help, and would end the
/// reads too.
const ETCD: &str = "etcd";
/// The check that the store takes writes.
const ETCD_READINESS: &str = "etcd-readiness";
/// The same checks of a store of its own for some resources, by its number.
const ETCD_OVERRIDE: &str = "etcd-override-";
const ETCD_OVERRIDE_READINESS: &str = "etcd-override-readiness-";
/// The check of KMS plugins; it exists only if there are some.
const KMS: &str = "kms-providers";

/// The checks of a server that has a hostname; see [`crate::bootstrap::identity`].
const IDENTITY: [&str; 3] = [
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
];

/// The endpoints that include a check: all of them, readiness alone, or the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Endpoints {
    All,
    Readiness,
    Others,
}

impl Endpoints {
    fn include(self, endpoint: &str) -> bool {
        match self {
            Endpoints::All => true,
            Endpoints::Readiness => endpoint == "readyz",
            Endpoints::Others => endpoint != "readyz",
        }
    }
}

/// The checks, in the order of upstream's output, each with its endpoints.
const CHECKS: &[(&str, Endpoints)] = &[
    ("ping", Endpoints::All),
    ("log", Endpoints::All),
    ("loopback-serving-certificate", Endpoints::Others),
    (ETCD, Endpoints::All),
    (ETCD_READINESS, Endpoints::Readiness),
    (KMS, Endpoints::All),
    ("informer-sync", Endpoints::Readiness),
    ("poststarthook/start-apiserver-admission-initializer", Endpoints::All),
    ("poststarthook/generic-apiserver-start-informers", Endpoints::All),
    ("poststarthook/priority-and-fairness-config-consumer", Endpoints::All),
    ("poststarthook/priority-and-fairness-filter", Endpoints::All),
    ("poststarthook/storage-object-count-tracker-hook", Endpoints::All),
    ("poststarthook/start-apiextensions-informers", Endpoints::All),
    ("poststarthook/start-apiextensions-controllers", Endpoints::All),
    ("poststarthook/crd-informer-synced", Endpoints::All),
    ("poststarthook/start-system-namespaces-controller", Endpoints::All),
    (IDENTITY[0], Endpoints::All),
    ("poststarthook/start-cluster-authentication-info-controller", Endpoints::All),
    (IDENTITY[1], Endpoints::All),
    (IDENTITY[2], Endpoints::All),
    ("poststarthook/storage-readiness", Endpoints::All),
    ("poststarthook/start-legacy-token-tracking-controller", Endpoints::All),
    ("poststarthook/start-service-ip-repair-controllers", Endpoints::All),
    ("poststarthook/rbac/bootstrap-roles", Endpoints::All),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Endpoints::All),
    ("poststarthook/priority-and-fairness-config-producer", Endpoints::All),
    ("poststarthook/bootstrap-controller", Endpoints::All),
    ("poststarthook/start-kubernetes-service-cidr-controller", Endpoints::All),
    ("poststarthook/start-kube-aggregator-informers", Endpoints::All),
    ("poststarthook/apiservice-status-local-available-controller", Endpoints::All),
    ("poststarthook/apiservice-status-remote-available-controller", Endpoints::All),
    ("poststarthook/apiservice-registration-controller", Endpoints::All),
    ("poststarthook/apiservice-discovery-controller", Endpoints::All),
    ("poststarthook/kube-apiserver-autoregistration", Endpoints::All),
    ("autoregister-completion", Endpoints::All),
    ("poststarthook/apiservice-openapi-controller", Endpoints::All),
    ("poststarthook/apiservice-openapiv3-controller", Endpoints::All),
    ("shutdown", Endpoints::Readiness),
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
    let Some((name, _)) = checks(server).find(|(name, endpoints)| *name == single && endpoints.include(endpoint))
    else {
        return Some(response::page_not_found());
    };
    // Upstream counts only the checks of a whole endpoint.
    Some(match check(server, &name) {
        Ok(()) => response::full(StatusCode::OK, "text/plain; charset=utf-8", "ok".into()),
        Err(why) => response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
    })
}

/// Returns the path of every single check.
pub fn paths(server: &Server) -> impl Iterator<Item = String> {
    ["livez", "readyz", "healthz"].into_iter().flat_map(move |endpoint| {
        let included = checks(server).filter(move |(_, endpoints)| endpoints.include(endpoint));
        included.map(move |(name, _)| format!("/{endpoint}/{name}"))
    })
}

/// Returns the checks that this server has. A store of its own for some resources has two, as in upstream.
fn checks(server: &Server) -> impl Iterator<Item = (Cow<'static, str>, Endpoints)> {
    let has_plugins = server.core.registry.transformer.health().is_some();
    let has_identity = server.core.config.hostname.is_some();
    let overrides = server.core.registry.caches.feeds().len() - 1;
    let is_there = move |name: &str| match name {
        KMS => has_plugins,
        name => has_identity || !IDENTITY.contains(&name),
    };
    let with_overrides = move |&(name, endpoints): &(&'static str, Endpoints)| {
        let count = if name == ETCD_READINESS { overrides } else { 0 };
        let of_stores = (0..count).flat_map(|number| {
            let health = (Cow::Owned(format!("{ETCD_OVERRIDE}{number}")), Endpoints::All);
            let readiness = (Cow::Owned(format!("{ETCD_OVERRIDE_READINESS}{number}")), Endpoints::Readiness);
            [health, readiness]
        });
        std::iter::once((Cow::Borrowed(name), endpoints)).chain(of_stores)
    };
    CHECKS.iter().filter(move |(name, _)| is_there(name)).flat_map(with_overrides)
}

/// Runs a check, and counts its result.
fn counted(server: &Server, endpoint: &str, name: &str) -> Result<(), String> {
    let result = check(server, name);
    server.core.metrics.health.observe(name, endpoint, result.is_ok());
    result
}

fn check(server: &Server, name: &str) -> Result<(), String> {
    match name {
        KMS => server.core.registry.transformer.health().unwrap_or(Ok(())),
        ETCD => store(server, 0, false),
        ETCD_READINESS => store(server, 0, true),
        "shutdown" if server.core.stopping.is_cancelled() => Err("process is shutting down".to_owned()),
        n if (n.starts_with("poststarthook/") || n == "autoregister-completion") && !server.health.is_ready() => {
            Err("not finished".to_owned())
        }
        name => override_of(name).map_or(Ok(()), |(number, is_readiness)| store(server, number + 1, is_readiness)),
    }
}

/// Returns the number of the store that a check is of, and whether it is one of readiness.
fn override_of(name: &str) -> Option<(usize, bool)> {
    let readiness = name.strip_prefix(ETCD_OVERRIDE_READINESS);
    let number = readiness.or_else(|| name.strip_prefix(ETCD_OVERRIDE))?.parse().ok()?;
    Some((number, readiness.is_some()))
}

/// Returns why a store takes no writes; a failure that may recover is an error only for readiness.
fn store(server: &Server, number: usize, is_readiness: bool) -> Result<(), String> {
    let Some(feed) = server.core.registry.caches.feeds().get(number) else { return Ok(()) };
    match feed.store.health() {
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
    for (name, _) in checks(server).filter(|(_, endpoints)| endpoints.include(endpoint)) {
        let name = &*name;
        if excluded.contains(&name) {
            excluded.retain(|other| *other != name);
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
