//! From the kubelet's request and the image's configuration to a spec.
//!
//! Nothing here touches the system except that devices of the node are looked at, which is passed in.

use std::path::{Path, PathBuf};

use corten_cri::v1;

use super::{
    Capabilities, Device, Namespaces, PidNamespace, Process, Rootfs, Spec, User, capabilities, mounts, seccomp,
};
use crate::Error;
use crate::images::ProcessConfig;

/// Everything that a container is made from.
pub(crate) struct Input<'a> {
    pub id: &'a str,
    pub config: &'a v1::ContainerConfig,
    pub sandbox: &'a v1::PodSandboxConfig,
    pub image: &'a ProcessConfig,
    pub image_layers: mounts::FindLayers<'a>,
    /// The layers of the container's own image, highest first.
    pub lower: Vec<String>,
    pub layers_folder: PathBuf,
    /// The container's folder that survives a reboot.
    pub folder: &'a Path,
    /// The sandbox's folders.
    pub sandbox_files: &'a Path,
    pub sandbox_run: &'a Path,
    pub socket: PathBuf,
    /// The first process of the container whose pid namespace is joined.
    pub target_pid: Option<i32>,
    /// Capabilities that the runtime itself has.
    pub available_capabilities: u64,
    /// Devices of the node, for privileged containers.
    pub node_devices: Vec<Device>,
    pub cgroup_v2: bool,
}

/// Builds the spec. Control groups are filled in by whoever creates them.
pub(crate) fn build(input: &Input<'_>) -> Result<Spec, Error> {
    let linux = input.config.linux.clone().unwrap_or_default();
    let security = linux.security_context.clone().unwrap_or_default();
    let privileged = security.privileged;
    let mount_context = mounts::Context {
        privileged,
        readonly_rootfs: security.readonly_rootfs,
        sandbox_files: input.sandbox_files,
        shared_memory: &shared_memory(input, &security),
        image_layers: input.image_layers,
    };
    Ok(Spec {
        id: input.id.to_string(),
        process: process(input, &linux, &security)?,
        rootfs: rootfs(input, security.readonly_rootfs),
        mounts: mounts::decide(&input.config.mounts, &mount_context)?,
        devices: devices(input, privileged)?,
        namespaces: namespaces(input, &security)?,
        masked_paths: if privileged { Vec::new() } else { security.masked_paths.clone() },
        readonly_paths: if privileged { Vec::new() } else { security.readonly_paths.clone() },
        cgroup_procs: Vec::new(),
        oom_counter: None,
        private_cgroup_namespace: input.cgroup_v2 && !privileged,
        stdin: input.config.stdin,
        stdin_once: input.config.stdin_once,
        log_path: log_path(input),
        exit_path: input.folder.join("exit.json"),
        socket_path: input.socket.clone(),
    })
}

fn process(
    input: &Input<'_>,
    linux: &v1::LinuxContainerConfig,
    security: &v1::LinuxContainerSecurityContext,
) -> Result<Process, Error> {
    let asked = security.capabilities.clone().unwrap_or_default();
    let request = capabilities::Request {
        add: &asked.add_capabilities,
        drop: &asked.drop_capabilities,
        ambient: &asked.add_ambient_capabilities,
        privileged: security.privileged,
    };
    let capabilities = capabilities::decide(&request, input.available_capabilities)?;
    Ok(Process {
        args: arguments(input.config, input.image)?,
        env: environment(input),
        cwd: working_directory(input),
        terminal: input.config.tty,
        user: user(security, input.image)?,
        capabilities,
        no_new_privileges: security.no_new_privs,
        seccomp: seccomp_programs(security, &capabilities)?,
        oom_score_adj: linux.resources.as_ref().and_then(|resources| i32::try_from(resources.oom_score_adj).ok()),
    })
}

/// A command replaces entry point and arguments of the image; arguments alone replace its arguments.
fn arguments(config: &v1::ContainerConfig, image: &ProcessConfig) -> Result<Vec<String>, Error> {
    let (command, arguments) = match (config.command.is_empty(), config.args.is_empty()) {
        (true, true) => (&image.entrypoint, &image.cmd),
        (true, false) => (&image.entrypoint, &config.args),
        (false, _) => (&config.command, &config.args),
    };
    let all: Vec<String> = command.iter().chain(arguments).cloned().collect();
    if all.is_empty() {
        return Err(Error::Invalid("failed to generate spec: no command specified".into()));
    }
    Ok(all)
}

/// The image's variables, overridden by the pod's; a later one wins over an earlier one.
fn environment(input: &Input<'_>) -> Vec<String> {
    let mut env: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| match env.iter_mut().find(|(known, _)| known == name) {
        Some(entry) => entry.1 = value,
        None => env.push((name.to_string(), value)),
    };
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
    if input.config.tty {
        set("TERM", "xterm".into());
    }
    if !input.sandbox.hostname.is_empty() {
        set("HOSTNAME", input.sandbox.hostname.clone());
    }
    for entry in &input.image.env {
        let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
        set(name, value.to_string());
    }
    for entry in &input.config.envs {
        set(&entry.key, String::from_utf8_lossy(&entry.value).into_owned());
    }
    env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn working_directory(input: &Input<'_>) -> String {
    let chosen = [&input.config.working_dir, &input.image.working_dir].into_iter().find(|path| !path.is_empty());
    chosen.cloned().unwrap_or_else(|| "/".into())
}

fn user(security: &v1::LinuxContainerSecurityContext, image: &ProcessConfig) -> Result<User, Error> {
    let name = match (&security.run_as_user, security.run_as_username.as_str()) {
        (Some(uid), _) => uid.value.to_string(),
        (None, "") => image.user.clone(),
        (None, name) => name.to_string(),
    };
    let id = |id: i64| u32::try_from(id).map_err(|_| Error::Invalid(format!("{id} is not a group id")));
    Ok(User {
        name,
        gid: security.run_as_group.as_ref().map(|gid| id(gid.value)).transpose()?,
        supplemental_groups: security.supplemental_groups.iter().map(|gid| id(*gid)).collect::<Result<_, _>>()?,
        strict_groups: security.supplemental_groups_policy() == v1::SupplementalGroupsPolicy::Strict,
    })
}

fn seccomp_programs(
    security: &v1::LinuxContainerSecurityContext,
    capabilities: &Capabilities,
) -> Result<Vec<seccomp::Program>, Error> {
    let Some(profile) = security.seccomp.as_ref().filter(|_| !security.privileged) else { return Ok(Vec::new()) };
    match profile.profile_type() {
        v1::security_profile::ProfileType::Unconfined => Ok(Vec::new()),
        v1::security_profile::ProfileType::RuntimeDefault => {
            seccomp::compile(&seccomp::runtime_default(capabilities.bounding))
        }
        v1::security_profile::ProfileType::Localhost => {
            seccomp::compile(&seccomp::read(Path::new(&profile.localhost_ref))?)
        }
    }
}

fn rootfs(input: &Input<'_>, readonly: bool) -> Rootfs {
    Rootfs {
        layers_folder: input.layers_folder.clone(),
        lower: input.lower.clone(),
        upper: input.folder.join("upper"),
        work: input.folder.join("work"),
        mount_point: input.folder.join("rootfs"),
        readonly,
    }
}

fn options(security: &v1::LinuxContainerSecurityContext) -> v1::NamespaceOption {
    security.namespace_options.clone().unwrap_or_default()
}

fn shared_memory(input: &Input<'_>, security: &v1::LinuxContainerSecurityContext) -> PathBuf {
    match options(security).ipc() {
        v1::NamespaceMode::Node => PathBuf::from("/dev/shm"),
        _ => input.sandbox_run.join("shm"),
    }
}

fn namespaces(input: &Input<'_>, security: &v1::LinuxContainerSecurityContext) -> Result<Namespaces, Error> {
    let options = options(security);
    let pinned = |mode: v1::NamespaceMode, name: &str| match mode {
        v1::NamespaceMode::Node => None,
        _ => Some(input.sandbox_run.join(name)),
    };
    let pid = match options.pid() {
        v1::NamespaceMode::Container => PidNamespace::Own,
        v1::NamespaceMode::Node => PidNamespace::Node,
        v1::NamespaceMode::Pod => PidNamespace::Join(input.sandbox_run.join("pid")),
        v1::NamespaceMode::Target => {
            let target = input.target_pid.ok_or_else(|| {
                Error::Invalid(format!("invalid target container: container {:?} is not running", options.target_id))
            })?;
            PidNamespace::Join(format!("/proc/{target}/ns/pid").into())
        }
    };
    if options.userns_options.as_ref().is_some_and(|user| user.mode() == v1::NamespaceMode::Pod) {
        return Err(Error::Invalid("user namespaces are not supported by this runtime".into()));
    }
    Ok(Namespaces {
        network: pinned(options.network(), "net"),
        ipc: pinned(options.ipc(), "ipc"),
        // The host name goes with the network, as pods of the node's network carry the node's name.
        uts: pinned(options.network(), "uts"),
        pid,
    })
}

fn devices(input: &Input<'_>, privileged: bool) -> Result<Vec<Device>, Error> {
    let device = |path: &str, major, minor| Device {
        path: path.into(),
        block: false,
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    let mut devices = vec![
        device("/dev/null", 1, 3),
        device("/dev/zero", 1, 5),
        device("/dev/full", 1, 7),
        device("/dev/random", 1, 8),
        device("/dev/urandom", 1, 9),
        device("/dev/tty", 5, 0),
    ];
    if privileged {
        let known = |path: &str| devices.iter().any(|device| device.path == path);
        let more: Vec<Device> = input.node_devices.iter().filter(|device| !known(&device.path)).cloned().collect();
        devices.extend(more);
        return Ok(devices);
    }
    for requested in &input.config.devices {
        let mut found = node_device(Path::new(&requested.host_path))?;
        found.path = requested.container_path.clone();
        devices.push(found);
    }
    Ok(devices)
}

/// A device of the node, as it stands.
pub(crate) fn node_device(path: &Path) -> Result<Device, Error> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = std::fs::metadata(path).map_err(Error::file("look at device", path))?;
    let kind = metadata.file_type();
    if !kind.is_block_device() && !kind.is_char_device() {
        return Err(Error::Invalid(format!("{} is not a device", path.display())));
    }
    Ok(Device {
        path: path.display().to_string(),
        block: kind.is_block_device(),
        major: rustix::fs::major(metadata.rdev()),
        minor: rustix::fs::minor(metadata.rdev()),
        mode: metadata.mode() & 0o777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

fn log_path(input: &Input<'_>) -> Option<PathBuf> {
    let (folder, file) = (&input.sandbox.log_directory, &input.config.log_path);
    (!folder.is_empty() && !file.is_empty()).then(|| Path::new(folder).join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn command_and_arguments_follow_the_rules_of_pods() {
        let image = ProcessConfig { entrypoint: words("/entry"), cmd: words("a b"), ..ProcessConfig::default() };
        for (command, args, expected) in
            [("", "", "/entry a b"), ("", "x", "/entry x"), ("/c", "", "/c"), ("/c", "x y", "/c x y")]
        {
            let config =
                v1::ContainerConfig { command: words(command), args: words(args), ..v1::ContainerConfig::default() };
            assert_eq!(arguments(&config, &image).expect("arguments"), words(expected));
        }
        assert!(arguments(&v1::ContainerConfig::default(), &ProcessConfig::default()).is_err());
    }

    #[test]
    fn the_pods_user_wins_over_the_images() {
        let image = ProcessConfig { user: "web:www".into(), ..ProcessConfig::default() };
        let mut security = v1::LinuxContainerSecurityContext::default();
        assert_eq!(user(&security, &image).expect("user").name, "web:www");
        security.run_as_user = Some(v1::Int64Value { value: 1000 });
        security.run_as_group = Some(v1::Int64Value { value: 2000 });
        let found = user(&security, &image).expect("user");
        assert_eq!((found.name.as_str(), found.gid), ("1000", Some(2000)));
        security.run_as_group = Some(v1::Int64Value { value: -1 });
        assert!(user(&security, &image).is_err());
    }
}
