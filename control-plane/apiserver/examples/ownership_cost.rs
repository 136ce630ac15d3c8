//! The cost of tracking field owners: `cargo run --example ownership_cost`.
//!
//! Renews a lease and writes the status of a pod many times over, once with managedFields and once after they were
//! reset, and prints the CPU time of a write in both cases. Store, pipeline and encoding are the same.

use std::time::Duration;

use corten_apiserver::{Body, Config, InProcess, Server, User};
use serde_json::{Value, json};

const WRITES: u32 = 2000;

async fn send(client: &InProcess, method: &str, path: &str, body: &Value) -> Result<Value, Box<dyn std::error::Error>> {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .header("user-agent", "kubelet/v1.36.0");
    let reply = client.call(request.body(body.to_string().into())?).await;
    let ok = reply.status().is_success();
    match reply.into_body() {
        Body::Full(bytes) if ok => Ok(serde_json::from_slice(&bytes)?),
        body => Err(format!("{method} {path}: {body:?}").into()),
    }
}

/// Returns the CPU time of this thread, which does not depend on the load of the machine.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split(' ').next().unwrap_or_default().parse()?))
}

/// Returns the CPU time of one write, as the mean of many.
async fn measure(
    client: &InProcess,
    path: &str,
    change: impl Fn(u32) -> Value,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let started = cpu_time()?;
    for round in 0..WRITES {
        send(client, "PATCH", path, &change(round)).await?;
    }
    Ok((cpu_time()? - started) / WRITES)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let store = corten_store::Embedded::open(corten_store::Config::new(directory.path()))?;
    let keys = vec![rcgen::KeyPair::generate()?.serialize_pem()];
    let server = Server::new(Config { service_account_keys: keys, ..Config::default() }, store).await?;
    let admin = server.in_process(User::new("admin", &["system:masters"]));
    let lease = json!({ "metadata": { "name": "n" }, "spec": { "holderIdentity": "n", "leaseDurationSeconds": 40 } });
    send(&admin, "POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &lease).await?;
    send(&admin, "POST", "/api/v1/namespaces/default/serviceaccounts", &json!({ "metadata": { "name": "default" } }))
        .await?;
    let container = |n: u32| json!({ "name": format!("c{n}"), "image": "i", "env": [{ "name": "A", "value": "b" }] });
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": (0..3).map(container).collect::<Vec<_>>() } });
    send(&admin, "POST", "/api/v1/namespaces/default/pods", &pod).await?;

    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
    let pod = "/api/v1/namespaces/default/pods/p";
    let renew = |n: u32| json!({ "spec": { "renewTime": format!("2026-01-01T00:00:00.{n:06}Z") } });
    let status = |n: u32| {
        let of = |c: u32| json!({ "name": format!("c{c}"), "restartCount": n, "ready": n.is_multiple_of(2), "image": "i", "imageID": "" });
        json!({ "status": { "containerStatuses": (0..3).map(of).collect::<Vec<_>>() } })
    };
    for (what, path, object, change) in [
        ("lease", lease.to_owned(), lease, &renew as &dyn Fn(u32) -> Value),
        ("pod status", format!("{pod}/status"), pod, &status),
    ] {
        let with = measure(&admin, &path, change).await?;
        let size = send(&admin, "PATCH", object, &json!({})).await?.to_string().len();
        send(&admin, "PATCH", object, &json!({ "metadata": { "managedFields": [{}] } })).await?;
        let without = measure(&admin, &path, |n| change(n + WRITES)).await?;
        let bare = send(&admin, "PATCH", object, &json!({})).await?.to_string().len();
        println!("{what}: {with:?} and {size} bytes with owners, {without:?} and {bare} bytes without");
    }
    Ok(())
}
