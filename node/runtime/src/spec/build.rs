//! Builds a spec from the kubelet's request and the image's configuration.
//!
//! Pure, except that it reads the node's devices.

use std::path::{Path, PathBuf};

use corten_cri::v1;

use super::{
    Capabilities, Device, Namespaces, PidNamespace, Process, Rootfs, Spec, User, capabilities, cdi, mounts, seccomp,
};
use crate::Error;
use crate::id_mapping::Mapping;
use crate::images::ProcessConfig;

/// The profile of `RuntimeDefault`; the administrator of the node loads it.
const DEFAULT_APPARMOR_PROFILE: &str = "corten-default";

/// The input of a container's spec.
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
    /// Whether the node cannot filter the devices of containers.
    pub devices_open: bool,
    /// The folder of `Localhost` seccomp profiles.
    pub seccomp_profiles: &'a Path,
    /// The edits of the requested CDI devices.
    pub edits: &'a cdi::Edits,
}

/// Builds the spec. The creator of the control groups fills them in.
pub(crate) fn build(input: &Input<'_>) -> Result<Spec, Error> {
    let linux = input.config.linux.clone().unwrap_or_default();
    let security = linux.security_context.clone().unwrap_or_default();
    let privileged = security.privileged;
    let mount_context = mounts::Context {
        privileged,
        readonly_rootfs: security.readonly_rootfs,
        sandbox_files: input.sandbox_files,
        shared_memory: &shared_memory(input),
        image_layers: input.image_layers,
        users: Mapping::of(&options(&security))?,
        nodev: input.devices_open && !privileged,
    };
    let mut devices = devices(input, privileged)?;
    let mut mounts = mounts::decide(&input.config.mounts, &mount_context)?;
    input.edits.apply(&mut devices, &mut mounts);
    if let Some(users) = mount_context.users {
        own_devices(&mut devices, users);
    }
    Ok(Spec {
        id: input.id.to_string(),
        process: process(input, &linux, &security)?,
        rootfs: Rootfs { nodev: mount_context.nodev, ..rootfs(input, security.readonly_rootfs) },
        mounts,
        devices,
        namespaces: namespaces(input, &security)?,
        masked_paths: if privileged { Vec::new() } else { security.masked_paths.clone() },
        readonly_paths: if privileged { Vec::new() } else { security.readonly_paths.clone() },
        writable_paths: image_volumes(input, security.readonly_rootfs),
        cgroup_procs: Vec::new(),
        oom_counter: None,
        private_cgroup_namespace: input.cgroup_v2 && !privileged,
        stdin: input.config.stdin,
        stdin_once: input.config.stdin_once,
        log_path: log_path(input),
        exit_path: input.folder.join("exit.json"),
        socket_path: input.socket.clone(),
        oci: None,
    })
}

fn process(
    input: &Input<'_>,
    linux: &v1::LinuxContainerConfig,
    security: &v1::LinuxContainerSecurityContext,
) -> Result<Process, Error> {
    let requested = security.capabilities.clone().unwrap_or_default();
    let request = capabilities::Request {
        add: &requested.add_capabilities,
        drop: &requested.drop_capabilities,
        ambient: &requested.add_ambient_capabilities,
        privileged: security.privileged,
        devices_open: input.devices_open,
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
        seccomp: seccomp_programs(input.seccomp_profiles, security, &capabilities)?,
        apparmor: apparmor(security)?,
        oom_score_adj: linux.resources.as_ref().and_then(|resources| i32::try_from(resources.oom_score_adj).ok()),
    })
}

/// Returns the image's volumes that the pod does not mount: writable also in a read-only root.
fn image_volumes(input: &Input<'_>, readonly: bool) -> Vec<String> {
    let mounted =
        |path: &str| input.config.mounts.iter().any(|mount| Path::new(&mount.container_path) == Path::new(path));
    let declared = input.image.volumes.keys().filter(|path| readonly && path.as_str() != "/" && !mounted(path));
    declared.cloned().collect()
}

/// Returns the AppArmor profile of the program. A container whose profile is not loaded is refused.
fn apparmor(security: &v1::LinuxContainerSecurityContext) -> Result<Option<String>, Error> {
    let Some(profile) = security.apparmor.as_ref().filter(|_| !security.privileged) else { return Ok(None) };
    let name = match profile.profile_type() {
        v1::security_profile::ProfileType::Unconfined => return Ok(None),
        v1::security_profile::ProfileType::RuntimeDefault => DEFAULT_APPARMOR_PROFILE,
        v1::security_profile::ProfileType::Localhost => profile.localhost_ref.trim_start_matches("localhost/"),
    };
    let loaded = std::fs::read_to_string("/sys/kernel/security/apparmor/profiles").unwrap_or_default();
    if loaded.lines().any(|line| line.split(" (").next() == Some(name)) {
        return Ok(Some(name.to_owned()));
    }
    Err(Error::Invalid(format!("AppArmor profile {name:?} is not loaded")))
}

/// Returns the command line. A command replaces entry point and arguments of the image; arguments alone replace its
/// arguments.
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

/// Returns the image's variables, overridden by the pod's; a later one wins over an earlier one.
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
    // CRI: a group without a user is an error; the image's user may belong to other groups.
    if let (None, "", Some(gid)) = (&security.run_as_user, security.run_as_username.as_str(), &security.run_as_group) {
        return Err(Error::Invalid(format!("user group {:?} is specified without user", gid.value.to_string())));
    }
    Ok(User {
        name,
        gid: security.run_as_group.as_ref().map(|gid| id(gid.value)).transpose()?,
        supplemental_groups: security.supplemental_groups.iter().map(|gid| id(*gid)).collect::<Result<_, _>>()?,
        strict_groups: security.supplemental_groups_policy() == v1::SupplementalGroupsPolicy::Strict,
    })
}

fn seccomp_programs(
    profiles: &Path,
    security: &v1::LinuxContainerSecurityContext,
    capabilities: &Capabilities,
) -> Result<Vec<seccomp::Program>, Error> {
    seccomp_profile(profiles, security, capabilities)?.map_or(Ok(Vec::new()), |profile| seccomp::compile(&profile))
}

/// Returns the profile that the pod requests; `None` is unconfined.
pub(crate) fn seccomp_profile(
    profiles: &Path,
    security: &v1::LinuxContainerSecurityContext,
    capabilities: &Capabilities,
) -> Result<Option<seccomp::Profile>, Error> {
    let Some(profile) = security.seccomp.as_ref().filter(|_| !security.privileged) else { return Ok(None) };
    match profile.profile_type() {
        v1::security_profile::ProfileType::Unconfined => Ok(None),
        v1::security_profile::ProfileType::RuntimeDefault => Ok(Some(seccomp::runtime_default(capabilities.bounding))),
        v1::security_profile::ProfileType::Localhost => seccomp::read(profiles, &profile.localhost_ref).map(Some),
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
        nodev: false,
    }
}

fn options(security: &v1::LinuxContainerSecurityContext) -> v1::NamespaceOption {
    security.namespace_options.clone().unwrap_or_default()
}

/// Returns the namespaces of the sandbox. Its containers are in its network and IPC, whatever they request.
pub(crate) fn sandbox_options(sandbox: &v1::PodSandboxConfig) -> v1::NamespaceOption {
    let security = sandbox.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    security.and_then(|security| security.namespace_options.clone()).unwrap_or_default()
}

fn shared_memory(input: &Input<'_>) -> PathBuf {
    match sandbox_options(input.sandbox).ipc() {
        v1::NamespaceMode::Node => PathBuf::from("/dev/shm"),
        _ => input.sandbox_run.join("shm"),
    }
}

fn namespaces(input: &Input<'_>, security: &v1::LinuxContainerSecurityContext) -> Result<Namespaces, Error> {
    let options = options(security);
    let shared = sandbox_options(input.sandbox);
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
    let users = Mapping::of(&options)?.map(|mapping| (input.sandbox_run.join("user"), mapping));
    Ok(Namespaces {
        network: pinned(shared.network(), "net"),
        ipc: pinned(shared.ipc(), "ipc"),
        // The host name belongs to the network, as pods of the node's network have the node's name.
        uts: pinned(shared.network(), "uts"),
        pid,
        users,
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
    }
    for requested in &input.config.devices {
        let mut found = node_device(Path::new(&requested.host_path))?;
        found.path = requested.container_path.clone();
        // A device that the pod requests wins over a device of the node with the same path.
        devices.retain(|known| known.path != found.path);
        devices.push(found);
    }
    Ok(devices)
}

/// Maps the owners of device nodes to the pod's ids; ids that the pod does not have stay unmapped.
fn own_devices(devices: &mut [Device], users: Mapping) {
    for device in devices {
        if device.uid < users.length && device.gid < users.length {
            (device.uid, device.gid) = (device.uid + users.uid, device.gid + users.gid);
        }
    }
}

/// Returns a device of the node with its owner and mode.
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
    let folder = &input.sandbox.log_directory;
    let file = &input.config.log_path;
    (!folder.is_empty() && !file.is_empty()).then(|| Path::new(folder).join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn command_and_arguments_override_those_of_the_image() {
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
        security.run_as_group = Some(v1::Int64Value { value: 2000 });
        security.run_as_user = None;
        let error = user(&security, &image).expect_err("no user").to_string();
        assert!(error.contains("user group \"2000\" is specified without user"), "{error}");
        security.run_as_username = "web".into();
        assert_eq!(user(&security, &image).expect("user").gid, Some(2000));
    }
}
