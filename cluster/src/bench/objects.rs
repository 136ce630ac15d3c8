//! The objects of a run: ConfigMaps in a namespace of its own, created and removed by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::target::{Connection, Target};

/// The size of an object's JSON in the request.
const OBJECT_BYTES: usize = 1024;
/// The number of connections that create and remove the objects of a scenario.
const SETUP_CONNECTIONS: usize = 16;
/// The time limit of a namespace controller for a namespace that is already empty.
const NAMESPACE_PATIENCE: u32 = 30;
const NAMESPACE_POLL: Duration = Duration::from_millis(100);

/// A namespace of the run's own.
pub struct Namespace<'t> {
    target: &'t Arc<Target>,
    name: String,
}

impl<'t> Namespace<'t> {
    pub async fn create(target: &'t Arc<Target>) -> Result<Namespace<'t>> {
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "generateName": "corten-bench-" } });
        let (status, made) = target.connect().await?.json(Method::POST, "/api/v1/namespaces", &body).await?;
        ensure!(status.is_success(), "no namespace can be made: {status}: {}", made["message"]);
        let name = made["metadata"]["name"].as_str().context("the namespace has no name")?.to_owned();
        Ok(Namespace { target, name })
    }

    /// Returns the collection of the namespace's ConfigMaps.
    pub fn config_maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.name)
    }

    pub fn config_map(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps/{name}", self.name)
    }

    /// Creates objects `<prefix>-0` to `<prefix>-<count - 1>`.
    pub async fn fill(&self, prefix: &str, count: u64) -> Result<()> {
        let path = self.config_maps();
        self.each(count, async |connection, number| {
            let name = format!("{prefix}-{number}");
            connection.call(Method::POST, &path, config_map(&name)).await.map(drop)
        })
        .await
    }

    /// Removes these objects.
    pub async fn empty(&self, prefix: &str, count: u64) -> Result<()> {
        self.each(count, async |connection, number| {
            let path = self.config_map(&format!("{prefix}-{number}"));
            connection.call(Method::DELETE, &path, Bytes::new()).await.map(drop)
        })
        .await
    }

    async fn each(&self, count: u64, act: impl AsyncFn(&mut Connection, u64) -> Result<()>) -> Result<()> {
        let next = AtomicU64::new(0);
        let workers = self.target.connections(SETUP_CONNECTIONS).await?.into_iter().map(async |mut connection| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, anyhow::Error>(());
                }
                act(&mut connection, number).await?;
            }
        });
        futures::future::try_join_all(workers).await.map(drop)
    }

    /// Removes the namespace. An API server without controllers would keep it for ever: then the finalizer is removed
    /// here, as the namespace is empty.
    pub async fn delete(self) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}", self.name);
        let mut connection = self.target.connect().await?;
        // An interrupted scenario may have left objects.
        connection.json(Method::DELETE, &self.config_maps(), &Value::Null).await?;
        connection.json(Method::DELETE, &path, &Value::Null).await?;
        for _ in 0..NAMESPACE_PATIENCE {
            let (status, _) = connection.json(Method::GET, &path, &Value::Null).await?;
            if status.as_u16() == 404 {
                return Ok(());
            }
            tokio::time::sleep(NAMESPACE_POLL).await;
        }
        let (_, mut namespace) = connection.json(Method::GET, &path, &Value::Null).await?;
        namespace["spec"]["finalizers"] = json!([]);
        let (status, answer) = connection.json(Method::PUT, &format!("{path}/finalize"), &namespace).await?;
        let is_gone = status.is_success() || status.as_u16() == 404;
        ensure!(is_gone, "the namespace {} stays: {}", self.name, answer["message"]);
        Ok(())
    }
}

/// Returns a ConfigMap whose JSON is exactly 1 KiB.
pub fn config_map(name: &str) -> Bytes {
    sized_config_map(name, OBJECT_BYTES)
}

/// Returns a ConfigMap of a size, or of the smallest that its name needs.
pub fn sized_config_map(name: &str, bytes: usize) -> Bytes {
    let head = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"app":"bench"}}}},"data":{{"payload":""#
    );
    let mut body = head.into_bytes();
    let tail = br#""}}"#;
    // The text is neither random nor one repeated character: it compresses about as well as configuration.
    let filling = format!("{name} The quick brown fox jumps over the lazy dog; ");
    let mut missing = bytes.saturating_sub(body.len() + tail.len());
    while missing > 0 {
        let part = &filling.as_bytes()[..missing.min(filling.len())];
        body.extend_from_slice(part);
        missing -= part.len();
    }
    body.extend_from_slice(tail);
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_their_size() {
        for name in ["a", "create-12-345678"] {
            let body = config_map(name);
            assert_eq!(body.len(), OBJECT_BYTES);
            let value: Value = serde_json::from_slice(&body).expect("it is JSON");
            assert_eq!(value["metadata"]["name"], name);
        }
    }
}
