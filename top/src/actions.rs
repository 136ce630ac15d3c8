//! The work of keys: logs, a shell, a description, a deletion.

use std::path::Path;
use std::process::Command;

use corten_client::{Client, DeleteOptions, Error, Resource};
use corten_meta::Value;
use corten_meta::codec::encode_yaml;

use crate::state::{Section, Target};

/// The last lines of a container's log that are shown.
const LOG_LINES: usize = 1000;
const LOG_BYTES: usize = 1 << 20;
/// The command of a shell: the better one if it is there.
const SHELL: &str = "command -v bash >/dev/null 2>&1 && exec bash || exec sh";

/// Returns the resource of a section's objects.
pub fn resource(section: Section) -> Resource {
    Resource::new("", "v1", section.plural(), section != Section::Nodes)
}

/// Returns the logs of all containers of a pod.
pub async fn logs(client: &Client, target: &Target) -> Result<String, Error> {
    let pod = client.dynamic(&resource(Section::Pods)).get(&target.namespace, &target.name).await?;
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = containers.filter_map(|container| container["name"].as_str()).collect();
    let mut text = String::new();
    for name in &names {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/log?container={name}&tailLines={LOG_LINES}&limitBytes={LOG_BYTES}",
            target.namespace, target.name
        );
        if names.len() > 1 {
            text.push_str(&format!("== {name}\n"));
        }
        match client.get_raw(&path).await {
            Ok(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Err(error) => text.push_str(&format!("{error}\n")),
        }
    }
    Ok(text)
}

/// Returns the object as YAML, without the owners of its fields.
pub async fn yaml(client: &Client, target: &Target) -> Result<String, Error> {
    let mut object = client.dynamic(&resource(target.section)).get(&target.namespace, &target.name).await?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    Ok(encode_yaml(&object))
}

/// Deletes an object.
pub async fn delete(client: &Client, target: &Target) -> Result<(), Error> {
    let objects = client.dynamic(&resource(target.section));
    objects.delete(&target.namespace, &target.name, &DeleteOptions::default()).await
}

/// Runs a shell in a pod, by kubectl.
pub fn shell(kubeconfig: Option<&Path>, target: &Target) -> Result<(), String> {
    let mut command = Command::new("kubectl");
    if let Some(path) = kubeconfig {
        command.arg("--kubeconfig").arg(path);
    }
    command.args(["exec", "-it", "-n", &target.namespace, &target.name, "--", "sh", "-c", SHELL]);
    match command.status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("a shell needs kubectl".to_owned()),
        Err(error) => Err(format!("kubectl cannot run: {error}")),
        // The shell's own code is that of its last command.
        Ok(_) => Ok(()),
    }
}
