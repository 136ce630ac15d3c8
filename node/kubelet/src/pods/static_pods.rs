//! Static pods: manifests in a directory of the node, which run without the API server. This file reads them for the
//! manager; the API shows their mirror pods (`mirror`).
//!
//! An invalid manifest is skipped with a warning; it never affects the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::Value;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::logs::follow::LogWatcher;
use crate::pod::source::{CONFIG_HASH, CONFIG_SOURCE};

/// The interval of reads without a notification, as a safety net: upstream's file check frequency.
const PERIOD: Duration = Duration::from_secs(20);
/// The time without changes after which a file is read: it is written in more than one step.
const SETTLE: Duration = Duration::from_millis(50);

/// Reads the directory now, and after every change until shutdown.
pub async fn follow(
    directory: PathBuf,
    node_name: String,
    watcher: LogWatcher,
    found: watch::Sender<Vec<Arc<Pod>>>,
    shutdown: CancellationToken,
) {
    loop {
        let changed = watcher.follow(&directory);
        let pods = read(&directory, &node_name);
        found.send_if_modified(|known| {
            let changed = *known != pods;
            *known = pods;
            changed
        });
        let news = async {
            match &changed {
                Ok(changed) => {
                    changed.notified().await;
                    tokio::time::sleep(SETTLE).await;
                }
                Err(error) => {
                    debug!(%error, directory = %directory.display(), "the directory of static pods is not watched");
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = news => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Returns every pod of the directory, by name; hidden files are skipped, as upstream does.
pub fn read(directory: &Path, node_name: &str) -> Vec<Arc<Pod>> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_manifest(path)).collect();
    paths.sort_unstable();
    let mut pods: Vec<Arc<Pod>> = Vec::new();
    for path in paths {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                warn!(%error, path = %path.display(), "a manifest cannot be read");
                continue;
            }
        };
        match parse(&text, &path, node_name) {
            Ok(pod) => pods.push(Arc::new(pod)),
            Err(error) => warn!(error, path = %path.display(), "a manifest is not a pod"),
        }
    }
    pods
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !hidden && path.is_file()
}

/// Parses a manifest to a pod of this node: defaulted and validated as the API does, with a name and a uid that stay
/// the same as long as the manifest does.
pub fn parse(text: &str, path: &Path, node_name: &str) -> Result<Pod, String> {
    let mut pod: Value = corten_meta::codec::decode_yaml(text.as_bytes()).map_err(|error| error.to_string())?;
    if pod["kind"] != "Pod" || pod["apiVersion"] != "v1" {
        return Err("it is not a Pod of v1".into());
    }
    let kind = corten_api::lookup("", "v1", "pods").ok_or("this kubelet knows no pods")?;
    if let Some(error) = corten_api::check_fields(&kind.schema, &pod).type_errors.into_iter().next() {
        return Err(error);
    }
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let hash = identity(text, path, node_name);
    let metadata = &mut pod["metadata"];
    metadata["name"] = format!("{name}-{}", node_name.to_lowercase()).into();
    if metadata["namespace"].as_str().is_none_or(str::is_empty) {
        metadata["namespace"] = "default".into();
    }
    if metadata["uid"].as_str().is_none_or(str::is_empty) {
        metadata["uid"] = hash.clone().into();
    }
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    metadata["annotations"][CONFIG_HASH] = hash.into();
    metadata["annotations"][CONFIG_SOURCE] = "file".into();
    pod["spec"]["nodeName"] = node_name.into();
    pod["status"] = json!({"phase": "Pending"});
    kind.default(&mut pod);
    tolerate_everything(&mut pod["spec"]);
    let errors = kind.validate(&pod);
    if !errors.is_empty() {
        return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    Pod::from_value(pod).map_err(|error| error.to_string())
}

/// Adds a toleration for every NoExecute taint: a tainted node still runs its static pods.
fn tolerate_everything(spec: &mut Value) {
    let all = json!({"operator": "Exists", "effect": "NoExecute"});
    match spec["tolerations"].as_array_mut() {
        Some(tolerations) if tolerations.contains(&all) => {}
        Some(tolerations) => tolerations.push(all),
        None => spec["tolerations"] = json!([all]),
    }
}

fn identity(text: &str, path: &Path, node_name: &str) -> String {
    let mut hash = Sha256::new();
    for part in [text.as_bytes(), path.as_os_str().as_encoded_bytes(), node_name.as_bytes()] {
        hash.update(part);
        hash.update([0]);
    }
    let digest = hash.finalize();
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::source::{is_mirror, is_static};

    const MANIFEST: &str =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: i\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_the_node() {
        let pod = parse(MANIFEST, Path::new("/m/web.yaml"), "node1").unwrap();
        assert_eq!(
            (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref()),
            (Some("web-node1"), Some("default"))
        );
        assert!(is_static(&pod) && !is_mirror(&pod));
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.restart_policy.as_deref()), (Some("node1"), Some("Always")));
        let again = parse(MANIFEST, Path::new("/m/web.yaml"), "node1").unwrap();
        assert_eq!(pod, again, "the same file is the same pod");
        let changed = parse(&MANIFEST.replace("image: i", "image: j"), Path::new("/m/web.yaml"), "node1").unwrap();
        assert_ne!(pod.metadata.uid, changed.metadata.uid, "another content is another pod");
    }

    #[test]
    fn nonsense_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("good.yaml"), MANIFEST).unwrap();
        std::fs::write(directory.path().join(".hidden.yaml"), MANIFEST).unwrap();
        std::fs::write(directory.path().join("bad.yaml"), "kind: Pod\napiVersion: v1\nmetadata: {name: x}\nspec: {}\n")
            .unwrap();
        std::fs::write(directory.path().join("other.yaml"), "kind: Service\napiVersion: v1\n").unwrap();
        for (name, part) in [("text", "metadata: a"), ("list", "spec: [1]"), ("inside", "metadata: {annotations: 1}")] {
            let manifest = format!("kind: Pod\napiVersion: v1\n{part}\n");
            std::fs::write(directory.path().join(name), manifest).unwrap();
        }
        let pods = read(directory.path(), "n");
        assert_eq!(pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect::<Vec<_>>(), ["web-n"]);
        assert!(read(Path::new("/no/such/directory"), "n").is_empty());
    }
}
