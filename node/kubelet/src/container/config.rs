//! Makes the configuration of a sandbox or a container from the parts of the other files.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use corten_cri::v1 as cri;

use super::environment::Environment;
use super::security::{self, ImageUser};
use super::{dns, expansion, hosts, mounts};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::pod::spec::{self, Declared};
use crate::pod::{labels, resources};
use crate::users::Range;
use crate::volumes::MountedVolumes;

/// Returns the configuration of the pod's sandbox; it is the same every time, for the calls that repeat it.
pub fn sandbox(config: &Config, pod: &Pod, users: Option<Range>, attempt: u32) -> cri::PodSandboxConfig {
    let namespace = spec::namespace(pod);
    let name = spec::name(pod);
    let uid = spec::uid(pod);
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt,
        }),
        // A pod in the host's network is in the host's UTS namespace too, and must not rename the host.
        hostname: if spec::host_network(pod) {
            String::new()
        } else {
            hosts::sandbox_hostname(pod, &config.cluster_domain)
        },
        log_directory: config.pod_log_dir(namespace, name, uid).display().to_string(),
        dns_config: Some(dns::dns(config, pod)),
        port_mappings: port_mappings(pod),
        labels: labels::sandbox_labels(pod),
        annotations: labels::sandbox_annotations(pod),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: resources::pod_cgroup(&config.cgroup_root, pod),
            security_context: Some(security::sandbox(pod, users, config)),
            sysctls: sysctls(pod),
            resources: Some(resources::pod_resources(pod)),
            ..cri::LinuxPodSandboxConfig::default()
        }),
    }
}

fn sysctls(pod: &Pod) -> std::collections::HashMap<String, String> {
    let declared = spec::spec(pod).security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    declared.map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone())).collect()
}

fn port_mappings(pod: &Pod) -> Vec<cri::PortMapping> {
    let ports = spec::containers(pod).flat_map(|declared| declared.container.ports.clone().unwrap_or_default());
    ports
        .map(|port| cri::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => cri::Protocol::Udp,
                Some("SCTP") => cri::Protocol::Sctp,
                _ => cri::Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.unwrap_or_default(),
        })
        .collect()
}

/// The parts of a container's configuration.
pub struct Parts<'a> {
    pub config: &'a Config,
    pub pod: &'a Pod,
    pub declared: &'a Declared<'a>,
    pub restart_count: u32,
    pub environment: &'a Environment,
    pub volumes: &'a MountedVolumes,
    /// The images that are mounted as volumes, by the volume's name.
    pub image_volumes: &'a HashMap<String, String>,
    pub image_ref: &'a str,
    pub image_user: &'a ImageUser,
    pub pod_ips: &'a [String],
    /// The id of the container whose processes an ephemeral container joins.
    pub target: Option<String>,
    pub memory_capacity: i64,
    /// The ids of a pod in a user namespace.
    pub users: Option<Range>,
}

/// Returns the configuration of one container instance, and creates the files that it needs.
pub fn container(parts: &Parts<'_>) -> Result<cri::ContainerConfig> {
    let container: &Container = &parts.declared.container;
    let pod_dir = parts.config.pod_dir(spec::uid(parts.pod));
    make_log_directory(parts, &container.name)?;
    let hosts_file = hosts::write(parts.pod, &pod_dir, parts.pod_ips, &parts.config.cluster_domain)?;
    let termination_file = make_termination_file(parts, &container.name)?;
    let sources = mounts::MountSources {
        volumes: parts.volumes,
        image_volumes: parts.image_volumes,
        pod_dir: &pod_dir,
        hosts_file: &hosts_file,
        termination_file: &termination_file,
        users: parts.users,
    };
    let expand =
        |list: &Option<Vec<String>>| expansion::expand_all(list.as_deref().unwrap_or_default(), parts.environment);
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt: parts.restart_count }),
        image: Some(cri::ImageSpec {
            image: parts.image_ref.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..cri::ImageSpec::default()
        }),
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: parts
            .environment
            .iter()
            .map(|(key, value)| cri::KeyValue { key: key.clone(), value: value.clone().into() })
            .collect(),
        mounts: mounts::mounts(container, parts.environment, &sources)?,
        devices: mounts::devices(container, parts.volumes)?,
        labels: labels::container_labels(parts.pod, container),
        annotations: labels::container_annotations(parts.pod, container, parts.restart_count),
        log_path: format!("{}/{}.log", container.name, parts.restart_count),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources::container_resources(parts.pod, container, parts.memory_capacity)),
            security_context: Some(security::container(
                parts.pod,
                container,
                parts.image_user,
                parts.target.clone(),
                parts.users,
                parts.config,
            )?),
        }),
        stop_signal: stop_signal(container) as i32,
        ..cri::ContainerConfig::default()
    })
}

fn stop_signal(container: &Container) -> cri::Signal {
    let name = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let name = name.map(|name| format!("SIGNAL_{name}"));
    name.and_then(|name| cri::Signal::from_str_name(&name)).unwrap_or(cri::Signal::RuntimeDefault)
}

fn make_log_directory(parts: &Parts<'_>, container: &str) -> Result<()> {
    let namespace = spec::namespace(parts.pod);
    let name = spec::name(parts.pod);
    let uid = spec::uid(parts.pod);
    let directory = parts.config.pod_log_dir(namespace, name, uid).join(container);
    fs::create_dir_all(&directory).map_err(Error::file("create", &directory))
}

/// Creates the file of the termination message; any user of the container may write it.
fn make_termination_file(parts: &Parts<'_>, container: &str) -> Result<PathBuf> {
    let path = termination_file(parts.config, spec::uid(parts.pod), container, parts.restart_count);
    let directory = path.parent().unwrap_or(&path);
    fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    fs::write(&path, b"").map_err(Error::file("create", &path))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(Error::file("chmod", &path))?;
    Ok(path)
}

/// Returns the path of an instance's termination message.
pub fn termination_file(config: &Config, uid: &str, container: &str, restart_count: u32) -> PathBuf {
    config.pod_dir(uid).join("containers").join(container).join(restart_count.to_string())
}
