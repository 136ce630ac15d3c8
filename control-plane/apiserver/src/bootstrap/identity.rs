//! The identities of a cluster's API servers: each renews a Lease of `kube-system`, and removes the expired Leases of
//! others. A server without a configured host name has no Lease.

use std::time::Duration;

use corten_meta::{Status, Value};
use corten_store::{Expect, Op};
use serde_json::json;
use sha2::Digest;
use tokio_util::sync::CancellationToken;

use super::Wanted;
use crate::core::Core;
use crate::error::Error;

/// The renewal interval of the Lease, its duration, and the interval of removing others; upstream's.
const RENEWAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i64 = 3600;
const COLLECTION: Duration = Duration::from_secs(3600);

const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
const COMPONENT: &str = "kube-apiserver";

/// Returns the name of the server on a machine, the same after every start.
pub fn name(hostname: &str) -> String {
    // Each part has its length before it.
    let parts = [hostname, COMPONENT].map(|part| [&(part.len() as u16).to_be_bytes(), part.as_bytes()].concat());
    let hash = sha2::Sha256::digest(parts.concat());
    format!("apiserver-{}", base32(&hash[..16]))
}

/// Encodes bytes as base 32 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let character = |at: usize| (at..at + 5).fold(0, |value, at| value << 1 | bit(at));
    (0..bytes.len() * 8).step_by(5).map(|at| char::from(ALPHABET[usize::from(character(at))])).collect()
}

/// Renews the Lease until shutdown.
pub async fn keep(core: &Core, shutdown: &CancellationToken) {
    let Some(hostname) = core.config.hostname.clone() else { return };
    let holder = uuid::Uuid::new_v4().to_string();
    let mut renewal = tokio::time::interval(RENEWAL);
    let mut collection = tokio::time::interval(COLLECTION);
    loop {
        let collects = tokio::select! {
            () = shutdown.cancelled() => return,
            _ = renewal.tick() => false,
            _ = collection.tick() => true,
        };
        let done = match collects {
            true => collect(core).await,
            false => renew(core, &hostname, &holder).await,
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the Lease of this server could not be kept");
        }
    }
}

async fn renew(core: &Core, hostname: &str, holder: &str) -> Result<(), Error> {
    let wanted = Wanted::new("coordination.k8s.io", "v1", "leases", lease(core, hostname, holder));
    let operations = super::operations(core, vec![wanted.repaired_by(renewed)]).await;
    commit(core, operations.map_err(|status| Error::Bootstrap(status.message))?).await
}

fn lease(core: &Core, hostname: &str, holder: &str) -> Value {
    let name = name(hostname);
    let now = corten_meta::time::rfc3339_micro(jiff::Timestamp::now());
    let mut labels = json!({ LABEL: COMPONENT });
    // A host name may be longer than a label can be.
    if hostname.len() <= 63 {
        labels["kubernetes.io/hostname"] = hostname.into();
    }
    json!({
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            "annotations": { "kubernetes.io/peer-advertise-address": core.config.host_port() },
        },
        "spec": {
            "holderIdentity": format!("{name}_{holder}"),
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        },
    })
}

/// Returns the renewed Lease: all its fields belong to its server.
fn renewed(present: &Value, wanted: &Value) -> Option<Value> {
    let mut object = present.clone();
    object["spec"] = wanted["spec"].clone();
    for field in ["labels", "annotations"] {
        object["metadata"][field] = wanted["metadata"][field].clone();
    }
    Some(object)
}

/// Removes the expired Leases of other servers.
async fn collect(core: &Core) -> Result<(), Error> {
    let status = |status: Status| Error::Bootstrap(status.message);
    let resource = core.registry.required("coordination.k8s.io", "v1", "leases").map_err(status)?;
    let now = jiff::Timestamp::now();
    let mut operations = Vec::new();
    for object in resource.storage().map_err(status)?.cache.list(NAMESPACE) {
        let value = object.value();
        if is_expired(&value, now) {
            let name = corten_meta::name(&value);
            let expect = Expect::ModRevision(object.revision);
            operations.push(core.registry.remove(&resource, NAMESPACE, name, expect).map_err(status)?);
        }
    }
    commit(core, operations).await
}

/// Reports whether a Lease belongs to a server and was not renewed in time; one without a renewTime or duration never
/// expires.
fn is_expired(lease: &Value, now: jiff::Timestamp) -> bool {
    if lease["metadata"]["labels"][LABEL] != COMPONENT {
        return false;
    }
    let spec = &lease["spec"];
    let renewed = spec["renewTime"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    let ends = renewed
        .zip(spec["leaseDurationSeconds"].as_i64())
        .and_then(|(at, seconds)| at.checked_add(jiff::SignedDuration::from_secs(seconds)).ok());
    ends.is_none_or(|end| end < now)
}

async fn commit(core: &Core, operations: Vec<Op>) -> Result<(), Error> {
    if !operations.is_empty() {
        // If another server wrote it first, the next run sees that.
        core.registry.commit_all(operations).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams() {
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(name("vm"), "apiserver-wlv32tlttr4jl3gtroqexyxapa");
    }

    #[test]
    fn only_expired_leases_of_servers_are_removed() {
        let now: jiff::Timestamp = "2026-01-01T02:00:00Z".parse().unwrap();
        let lease = |label: &str, spec: Value| json!({ "metadata": { "labels": { LABEL: label } }, "spec": spec });
        let renewed = |time: &str| json!({ "renewTime": time, "leaseDurationSeconds": 3600 });
        for (lease, expired) in [
            (lease(COMPONENT, renewed("2026-01-01T00:59:59.000000Z")), true),
            (lease(COMPONENT, renewed("2026-01-01T01:00:01.000000Z")), false),
            (lease(COMPONENT, json!({})), true),
            (lease("other", renewed("2025-01-01T00:00:00.000000Z")), false),
            (json!({ "metadata": {}, "spec": renewed("2025-01-01T00:00:00.000000Z") }), false),
        ] {
            assert_eq!(is_expired(&lease, now), expired, "{lease}");
        }
    }
}
