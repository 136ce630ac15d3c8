//! `/livez`, `/readyz`, `/healthz`: is the server alive, and has it started?

use std::sync::atomic::{AtomicBool, Ordering};

use corten_meta::quote::quote;
use http::StatusCode;

use crate::body::Reply;
use crate::metrics::{HEALTH_CHECK, HEALTH_CHECKS};
use crate::pipeline::Context;
use crate::response;
use crate::server::Server;

/// What has been reached.
#[derive(Default)]
pub struct Health {
    ready: AtomicBool,
}

/// The plugins that keep keys; there only if there are some.
const KMS: &str = "kms-providers";

/// What a server does that was told the name of its machine; see [`crate::bootstrap::identity`].
const IDENTITY: [&str; 2] = [
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
];

/// The checks, in the order of upstream's output. The second word says whether only readiness asks for it.
const CHECKS: &[(&str, bool)] = &[
    ("ping", false),
    ("log", false),
    ("etcd", false),
    ("etcd-readiness", true),
    (KMS, false),
    ("informer-sync", true),
    ("poststarthook/start-apiserver-admission-initializer", false),
    ("poststarthook/generic-apiserver-start-informers", false),
    ("poststarthook/priority-and-fairness-config-consumer", false),
    ("poststarthook/priority-and-fairness-filter", false),
    ("poststarthook/storage-object-count-tracker-hook", false),
    ("poststarthook/start-apiextensions-informers", false),
    ("poststarthook/start-apiextensions-controllers", false),
    ("poststarthook/crd-informer-synced", false),
    ("poststarthook/start-system-namespaces-controller", false),
    ("poststarthook/start-cluster-authentication-info-controller", false),
    (IDENTITY[0], false),
    (IDENTITY[1], false),
    ("poststarthook/storage-readiness", false),
    ("poststarthook/start-legacy-token-tracking-controller", false),
    ("poststarthook/start-service-ip-repair-controllers", false),
    ("poststarthook/rbac/bootstrap-roles", false),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", false),
    ("poststarthook/priority-and-fairness-config-producer", false),
    ("poststarthook/bootstrap-controller", false),
    ("poststarthook/start-kubernetes-service-cidr-controller", false),
    ("poststarthook/start-kube-aggregator-informers", false),
    ("poststarthook/apiservice-status-local-available-controller", false),
    ("poststarthook/apiservice-status-remote-available-controller", false),
    ("poststarthook/apiservice-registration-controller", false),
    ("poststarthook/apiservice-discovery-controller", false),
    ("poststarthook/kube-apiserver-autoregistration", false),
    ("autoregister-completion", false),
    ("poststarthook/apiservice-openapi-controller", false),
    ("poststarthook/apiservice-openapiv3-controller", false),
    ("shutdown", true),
];

impl Health {
    pub fn mark_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

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
        let Some((name, _)) = checks(server).find(|(name, _)| *name == single) else {
            return Some(response::page_not_found());
        };
        Some(match judged(server, endpoint, name) {
            Ok(()) => response::full(StatusCode::OK, "text/plain; charset=utf-8", "ok".into()),
            Err(why) => response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
        })
    }
}

/// The path of every single check.
pub fn paths(server: &Server) -> impl Iterator<Item = String> {
    ["livez", "readyz", "healthz"].into_iter().flat_map(move |endpoint| {
        let asked = checks(server).filter(move |(_, readiness_only)| !readiness_only || endpoint == "readyz");
        asked.map(move |(name, _)| format!("/{endpoint}/{name}"))
    })
}

/// The checks that this server has.
fn checks(server: &Server) -> impl Iterator<Item = &'static (&'static str, bool)> {
    let has_plugins = server.registry.transformer.health().is_some();
    let has_identity = server.config.hostname.is_some();
    CHECKS.iter().filter(move |(name, _)| match *name {
        KMS => has_plugins,
        name => has_identity || !IDENTITY.contains(&name),
    })
}

/// Makes a check, and counts how it ended.
fn judged(server: &Server, endpoint: &str, name: &str) -> Result<(), String> {
    let result = check(server, name);
    let (health, is_well) = (&server.metrics.health, result.is_ok());
    health.series(&HEALTH_CHECK, &[name, endpoint]).set(f64::from(u8::from(is_well)));
    let status = if is_well { "success" } else { "error" };
    health.series(&HEALTH_CHECKS, &[name, status, endpoint]).add(1.0);
    result
}

fn check(server: &Server, name: &str) -> Result<(), String> {
    match name {
        KMS => server.registry.transformer.health().unwrap_or(Ok(())),
        "shutdown" if server.shutdown.is_cancelled() => Err("process is shutting down".to_owned()),
        n if (n.starts_with("poststarthook/") || n == "autoregister-completion")
            && !server.health.ready.load(Ordering::Acquire) =>
        {
            Err("not finished".to_owned())
        }
        _ => Ok(()),
    }
}

fn all(server: &Server, context: &Context, endpoint: &str) -> Reply {
    let query = &context.info.query;
    let mut excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = false;
    for (name, readiness_only) in checks(server) {
        if *readiness_only && endpoint != "readyz" {
            continue;
        }
        if excluded.contains(name) {
            excluded.retain(|other| other != name);
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        match judged(server, endpoint, name) {
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
