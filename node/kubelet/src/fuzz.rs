//! Entry points of the fuzz targets: decoders of bytes from containers, pods, clients, D-Bus and the kernel. Nothing
//! else may use this.

use std::collections::BTreeMap;
use std::path::Path;

use corten_api::k8s_openapi::api::core::v1::{ObjectFieldSelector, Pod, Secret};
use jiff::Timestamp;

use crate::container::{env_file, expansion};
use crate::images::credentials;
use crate::logs::{line, options::LogOptions};
use crate::pod::downward_api;
use crate::pods::static_pods;
use crate::server::node_logs::LogQuery;
use crate::server::query;
use crate::shutdown::dbus;
use crate::summary::Time;
use crate::{cpus, stats};

/// Reads a line of a container's log.
pub fn log_line(raw: &[u8]) {
    let _ = line::parse(raw).and_then(|line| line.time());
}

/// Reads a message of D-Bus.
pub fn bus_message(bytes: &[u8]) {
    if let Ok(Some(length)) = dbus::message_length(bytes)
        && let Some(whole) = bytes.get(..length)
    {
        let _ = dbus::decode(whole);
    }
    let _ = dbus::decode(bytes);
}

/// Finds a variable in a file that a container wrote.
pub fn env_file(text: &str, key: &str) -> Option<String> {
    env_file::find(text, key).ok().flatten()
}

/// Reads the query of a request for logs of a container and of the node.
pub fn log_query(text: &str) {
    let _ = LogOptions::parse(&query::map(Some(text)), Timestamp::UNIX_EPOCH);
    let _ = LogQuery::parse(&query::pairs(Some(text)));
}

/// Searches a pull secret for the credentials of an image.
pub fn credentials(secret: Secret, image: &str) -> usize {
    credentials::lookup(&[secret], image).len()
}

/// Reads a static pod's manifest.
pub fn static_pod(text: &str) -> Option<Pod> {
    static_pods::parse(text, Path::new("/manifests/pod.yaml"), "node").ok()
}

/// Returns the value of a path of the downward API.
pub fn downward_path(pod: &Pod, path: &str) -> Option<String> {
    let selector = ObjectFieldSelector { field_path: path.to_owned(), ..ObjectFieldSelector::default() };
    downward_api::field(pod, &downward_api::Downward::default(), &selector).ok()
}

/// Expands the references of a command.
pub fn expand(text: &str, environment: &BTreeMap<String, String>) -> String {
    let all = expansion::expand_all(&[text.to_owned()], environment);
    let _ = expansion::expand_strict(text, environment);
    all.concat()
}

/// Parses a CPU set and formats it again.
pub fn cpu_set(text: &str) -> Option<String> {
    cpus::set::parse(text).map(|set| cpus::set::format(&set))
}

/// Reads the statistics of the kernel.
pub fn kernel_figures(text: &str) {
    let _ = stats::node::parse_cpu(text);
    let _ = stats::node::parse_memory(text, text, Time::from_nanoseconds(0));
    let _ = stats::node::parse_load(text);
    let _ = stats::node::parse_interfaces(text);
    let _ = stats::node::default_interface(text);
}

/// The file name of the device manager's checkpoint.
pub const DEVICE_RECORD: &str = crate::devices::checkpoint::FILE;

/// Reads the checkpoint of allocated devices; returns the number of resources that it names.
pub fn device_record(directory: &Path) -> usize {
    crate::devices::checkpoint::read(directory).1.len()
}
