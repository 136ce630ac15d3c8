//! The checks of a cluster with parts of both projects.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::image::IMAGE;
use super::parts::Cluster;

/// The time limit of each check, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(500);
const NAMESPACE: &str = "swapped";

/// Runs all checks; the first that fails ends them.
pub fn run(cluster: &Cluster) -> Result<()> {
    until("the node is Ready", || {
        let nodes = cluster.kubectl(&["get", "nodes", "--no-headers"])?;
        ensure!(nodes.split_whitespace().nth(1) == Some("Ready"), "{nodes}");
        Ok(())
    })?;
    cluster.kubectl(&["create", "namespace", NAMESPACE])?;
    until("the namespace has its ServiceAccount", || {
        kubectl(cluster, &["get", "serviceaccount", "default"]).map(drop)
    })?;
    let manifest = cluster.file("manifest.yaml");
    std::fs::write(&manifest, manifest_of())?;
    kubectl(cluster, &["apply", "-f", &manifest.to_string_lossy()])?;
    deployment(cluster)?;
    until("the Job is complete", || {
        let done = kubectl(cluster, &["get", "job", "once", "-o", "jsonpath={.status.succeeded}"])?;
        ensure!(done == "1", "{done} pods of the Job succeeded");
        Ok(())
    })?;
    until("the log of the Job", || {
        let log = kubectl(cluster, &["logs", "job/once"])?;
        ensure!(log.trim() == "done", "the log is {log:?}");
        Ok(())
    })?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    until("the namespace is deleted", || {
        let left = cluster.kubectl(&["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"])?;
        ensure!(left.is_empty(), "{left} is there");
        Ok(())
    })
}

/// Waits for a Deployment and its Service, and rolls it.
fn deployment(cluster: &Cluster) -> Result<()> {
    rolled_out(cluster)?;
    let address = kubectl(cluster, &["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"])?;
    answers(cluster, &address, "first")?;
    kubectl(cluster, &["set", "env", "deployment/web", "PAGE=second"])?;
    rolled_out(cluster)?;
    answers(cluster, &address, "second")?;
    until("old pods are gone", || {
        let pods = kubectl(cluster, &["get", "pods", "-l", "app=web", "-o", "name"])?;
        ensure!(pods.lines().count() == 3, "{pods}");
        Ok(())
    })
}

fn rolled_out(cluster: &Cluster) -> Result<()> {
    until("the Deployment is rolled out", || {
        let format = "jsonpath={.metadata.generation} {.status.observedGeneration} {.status.replicas} \
                      {.status.updatedReplicas} {.status.availableReplicas}";
        let counts = kubectl(cluster, &["get", "deployment", "web", "-o", format])?;
        let words: Vec<&str> = counts.split_whitespace().collect();
        ensure!(words.len() == 5 && words[0] == words[1] && words[2..] == ["3", "3", "3"], "{counts}");
        Ok(())
    })
}

/// Waits until the Service answers with a page, several times in a row: no old endpoint is left.
fn answers(cluster: &Cluster, address: &str, page: &str) -> Result<()> {
    until(&format!("the Service answers {page:?}"), || {
        for _ in 0..5 {
            let answer = cluster.fetch(address)?;
            ensure!(answer.trim() == page, "the answer is {answer:?}");
        }
        Ok(())
    })
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.kubectl(&[arguments, &["-n", NAMESPACE]].concat())
}

/// Repeats a check until it succeeds.
fn until(title: &str, check: impl Fn() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    loop {
        let Err(error) = check() else { return Ok(()) };
        if began.elapsed() > PATIENCE {
            bail!("not within {PATIENCE:?}: {title}: {error:#}");
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the objects of the checks.
fn manifest_of() -> String {
    let serve = "mkdir -p /tmp/www; echo ${PAGE} > /tmp/www/index.html; exec busybox httpd -f -p 8080 -h /tmp/www";
    let serve = serve.replace("mkdir", "busybox mkdir");
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: {IMAGE}
        imagePullPolicy: Never
        env: [{{name: PAGE, value: first}}]
        command: [busybox, sh, -c, '{serve}']
        ports: [{{containerPort: 8080}}]
        readinessProbe: {{httpGet: {{port: 8080, path: /}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: once}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: c, image: {IMAGE}, imagePullPolicy: Never, command: [busybox, echo, done]}}]
"
    )
}
