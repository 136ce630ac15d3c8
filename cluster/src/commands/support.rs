//! `corten support`: one file with what is needed to find out what is wrong with a cluster.
//!
//! It has logs, status, configuration and lists of objects. Must never: hold a key, a token, a Secret or the values of a
//! pod's environment.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Event, Node, Pod};
use corten_client::{Client, ListOptions};
use corten_meta::{Value, time};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::config_file;
use crate::directories::Directories;
use crate::flag_values::DirectoryFlags;
use crate::user_cli::Support;
use crate::version::VERSION;
use crate::{preflight, private};

/// The most bytes of the end of a log.
const LOG: u64 = 8 << 20;
/// The most objects of one kind.
const MOST: usize = 5000;
/// The parts of the names of settings whose values are hidden.
const HIDDEN: [&str; 4] = ["token", "password", "secret", "passphrase"];

/// Runs the command.
pub async fn run(flags: &Support, config: &Path) -> Result<()> {
    preflight::root_for("support")?;
    let directories = Directories::of(&flags.directories);
    let path = flags
        .file
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("corten-support-{}.tar.gz", time::now().strftime("%Y%m%dT%H%M%SZ"))));
    ensure!(!path.exists(), "{} exists already", path.display());
    let mut files = vec![Part::text("version", format!("corten {VERSION}\n"))];
    files.extend(of_machine());
    files.push(Part::text("config.yaml", configuration(config)));
    for command in ["status", "certificate list"] {
        files.push(Part::text(&format!("{}.txt", command.replace(' ', "-")), own_output(command, &flags.directories)));
    }
    files.extend(logs(&directories));
    files.extend(of_cluster(&directories).await);
    write(&path, &files)?;
    println!("wrote {}: logs, status, configuration and lists of objects, without keys and Secrets", path.display());
    Ok(())
}

/// A file of the archive.
struct Part {
    name: String,
    content: Vec<u8>,
}

impl Part {
    fn text(name: &str, content: String) -> Part {
        Part { name: name.to_owned(), content: content.into_bytes() }
    }
}

fn write(path: &Path, files: &[Part]) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let file = private::append(path)?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for Part { name, content } in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(time::now().as_second()).unwrap_or(0));
        archive.append_data(&mut header, format!("corten-support/{name}"), content.as_slice()).with_context(failed)?;
    }
    archive.into_inner().and_then(GzEncoder::finish).and_then(|mut file| file.flush()).with_context(failed)
}

/// Returns facts of the machine.
fn of_machine() -> Vec<Part> {
    let files = [
        ("/proc/version", "kernel"),
        ("/proc/meminfo", "meminfo"),
        ("/proc/mounts", "mounts"),
        ("/proc/pressure/io", "pressure-io"),
        ("/proc/loadavg", "loadavg"),
        ("/etc/os-release", "os-release"),
    ];
    let read =
        |(path, name): (&str, &str)| Some(Part::text(&format!("machine/{name}"), std::fs::read_to_string(path).ok()?));
    let mut parts: Vec<Part> = files.into_iter().filter_map(read).collect();
    let links = crate::config::addresses_of_links();
    let lines: Vec<String> = links.iter().map(|(name, address)| format!("{name} {address}\n")).collect();
    parts.push(Part::text("machine/addresses", lines.concat()));
    parts
}

/// Returns the output of another command of this binary.
fn own_output(command: &str, directories: &DirectoryFlags) -> String {
    let Ok(own) = std::env::current_exe() else { return String::new() };
    let mut process = Command::new(own);
    process.args(command.split(' ')).arg("--data-dir").arg(&directories.data_dir);
    let output = process.arg("--run-dir").arg(&directories.run_dir).output();
    output.map_or_else(
        |error| error.to_string(),
        |output| format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
    )
}

/// Returns the settings of the configuration file, without the values that are secret.
fn configuration(path: &Path) -> String {
    let settings = match config_file::read(path) {
        Ok(settings) => settings,
        Err(error) => return format!("# {error:#}\n"),
    };
    let line = |setting: &config_file::Setting| {
        let is_hidden = HIDDEN.iter().any(|part| setting.name.contains(part)) && !setting.name.ends_with("-file");
        let values = if is_hidden { "(hidden)".to_owned() } else { setting.values.join(", ") };
        format!("{}: {values}\n", setting.name)
    };
    settings.iter().map(line).collect()
}

/// Returns the ends of the logs of this machine.
fn logs(directories: &Directories) -> Vec<Part> {
    let mut all = vec![("server".to_owned(), directories.log())];
    all.extend(directories.further_nodes().into_iter().map(|name| (name.clone(), directories.node(&name).log())));
    let read =
        |(name, path): (String, PathBuf)| Some(Part { name: format!("logs/{name}.log"), content: end_of(&path).ok()? });
    all.into_iter().filter_map(read).collect()
}

fn end_of(path: &Path) -> Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LOG)))?;
    let mut content = Vec::new();
    file.take(LOG).read_to_end(&mut content)?;
    Ok(content)
}

/// Returns what the API server says of itself and of its objects; errors are part of it.
async fn of_cluster(directories: &Directories) -> Vec<Part> {
    let client = match Client::from_kubeconfig(directories.kubeconfig("admin"), None) {
        Ok(client) => client,
        Err(error) => return vec![Part::text("cluster/error", error.to_string())],
    };
    let mut parts = Vec::new();
    for (path, name) in [("/readyz?verbose", "readyz"), ("/version", "version"), ("/metrics", "metrics")] {
        let content = client.get_raw(path).await.map_or_else(|error| error.to_string().into(), |bytes| bytes.to_vec());
        parts.push(Part { name: format!("cluster/{name}"), content });
    }
    parts.push(Part::text("cluster/nodes.json", listed::<Node>(&client, Value::clone).await));
    parts.push(Part::text("cluster/pods.json", listed::<Pod>(&client, outline).await));
    parts.push(Part::text("cluster/events.json", listed::<Event>(&client, Value::clone).await));
    parts
}

/// Lists the objects of a kind, each reduced to what may be shown.
async fn listed<K: Typed>(client: &Client, shown: fn(&Value) -> Value) -> String {
    match client.list::<K>("", &ListOptions::default()).await {
        Ok(list) => {
            let objects = list.items.iter().take(MOST).map(|object| shown(&object.to_value()));
            serde_json::to_string_pretty(&objects.collect::<Vec<_>>()).unwrap_or_default()
        }
        Err(error) => error.to_string(),
    }
}

/// Returns the names, the node and the status of a pod: its spec may hold secrets.
fn outline(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    serde_json::json!({
        "metadata": {
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "creationTimestamp": metadata["creationTimestamp"],
            "deletionTimestamp": metadata["deletionTimestamp"],
        },
        "spec": {"nodeName": pod["spec"]["nodeName"], "priority": pod["spec"]["priority"]},
        "status": pod["status"],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_shown_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, "port: 7443\ntoken: abc.def\ns3-secret-key: x\npassphrase-file: /etc/p\n").unwrap();
        let shown = configuration(&path);
        assert_eq!(shown, "passphrase-file: /etc/p\nport: 7443\ns3-secret-key: (hidden)\ntoken: (hidden)\n");
        assert!(configuration(&dir.path().join("none")).starts_with("# cannot read"));
    }

    #[test]
    fn pods_are_shown_without_their_environment() {
        let env = json!([{"name": "PASSWORD", "value": "hunter2"}]);
        let pod = json!({"metadata": {"name": "a", "annotations": {"x": "y"}}, "spec": {"nodeName": "n",
            "containers": [{"env": env}]}, "status": {"phase": "Running"}});
        let shown = outline(&pod);
        assert_eq!(shown["status"]["phase"], "Running");
        assert_eq!(shown["spec"]["nodeName"], "n");
        assert!(!shown.to_string().contains("hunter2"));
    }

    #[test]
    fn the_end_of_a_long_log_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, [vec![b'a'; LOG as usize], b"end".to_vec()].concat()).unwrap();
        let end = end_of(&path).unwrap();
        assert!(end.len() == LOG as usize && end.ends_with(b"end"));
    }
}
