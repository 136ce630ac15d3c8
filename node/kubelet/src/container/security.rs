//! The security context in CRI's terms: the pod's and the container's merged, the container's first. Pure. It must
//! never weaken a setting of the spec.

use std::path::{Component, Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};
use corten_cri::v1 as cri;

use crate::config::{Config, SECCOMP_PROFILES};
use crate::error::{Error, Result};
use crate::pod::spec;
use crate::users::Range;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The largest user id that a container may have.
const LARGEST_ID: i64 = i32::MAX as i64;

/// The user of an image. An image without one runs as root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    Id(i64),
    Name(String),
}

impl ImageUser {
    pub const ROOT: ImageUser = ImageUser::Id(0);

    /// Returns the user that the runtime reports.
    pub fn of(image: &cri::Image) -> ImageUser {
        match &image.uid {
            Some(uid) => ImageUser::Id(uid.value),
            None if image.username.is_empty() => ImageUser::ROOT,
            None => ImageUser::Name(image.username.clone()),
        }
    }

    fn id(&self) -> Option<i64> {
        match self {
            ImageUser::Id(id) => Some(*id),
            ImageUser::Name(_) => None,
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            ImageUser::Id(_) => None,
            ImageUser::Name(name) => Some(name),
        }
    }
}

fn pod_context(pod: &Pod) -> PodSecurityContext {
    spec::spec(pod).security_context.clone().unwrap_or_default()
}

fn own_context(container: &Container) -> SecurityContext {
    container.security_context.clone().unwrap_or_default()
}

fn int64(value: i64) -> cri::Int64Value {
    cri::Int64Value { value }
}

/// Returns the namespaces of a pod's containers.
pub fn namespaces(pod: &Pod, users: Option<Range>) -> cri::NamespaceOption {
    let spec = spec::spec(pod);
    let mode = |host: Option<bool>, otherwise| if host == Some(true) { cri::NamespaceMode::Node } else { otherwise };
    let own_pids = if spec.share_process_namespace == Some(true) {
        cri::NamespaceMode::Pod
    } else {
        cri::NamespaceMode::Container
    };
    cri::NamespaceOption {
        network: mode(spec.host_network, cri::NamespaceMode::Pod) as i32,
        pid: mode(spec.host_pid, own_pids) as i32,
        ipc: mode(spec.host_ipc, cri::NamespaceMode::Pod) as i32,
        userns_options: users.map(|range| cri::UserNamespace {
            mode: cri::NamespaceMode::Pod as i32,
            uids: range.mapping(),
            gids: range.mapping(),
        }),
        ..cri::NamespaceOption::default()
    }
}

/// Returns the context of the sandbox: the pod's own, and privileged if any container is.
pub fn sandbox(pod: &Pod, users: Option<Range>, config: &Config) -> cri::LinuxSandboxSecurityContext {
    let context = pod_context(pod);
    let privileged = spec::containers(pod).any(|declared| own_context(&declared.container).privileged == Some(true));
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, users)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(int64),
        run_as_group: context.run_as_group.filter(|_| context.run_as_user.is_some()).map(int64),
        supplemental_groups: supplemental_groups(&context),
        supplemental_groups_policy: groups_policy(&context),
        privileged,
        seccomp: Some(seccomp(context.seccomp_profile.as_ref(), privileged, config)),
        ..cri::LinuxSandboxSecurityContext::default()
    }
}

/// Returns the context of a container. `target` is the container whose processes an ephemeral one joins.
pub fn container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<String>,
    users: Option<Range>,
    config: &Config,
) -> Result<cri::LinuxContainerSecurityContext> {
    let shared = pod_context(pod);
    let own = own_context(container);
    verify_non_root(pod, container, &shared, &own, image)?;
    let privileged = own.privileged == Some(true);
    let user = own.run_as_user.or(shared.run_as_user);
    let mut namespaces = namespaces(pod, users);
    if let Some(target) = target {
        namespaces.pid = cri::NamespaceMode::Target as i32;
        namespaces.target_id = target;
    }
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let paths =
        |list: &[&str]| if unmasked { Vec::new() } else { list.iter().map(|path| (*path).to_owned()).collect() };
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|capabilities| cri::Capability {
            add_capabilities: capabilities.add.clone().unwrap_or_default(),
            drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged,
        namespace_options: Some(namespaces),
        selinux_options: own.se_linux_options.as_ref().or(shared.se_linux_options.as_ref()).map(selinux),
        run_as_user: user.or(image.id()).map(int64),
        run_as_username: image.name().filter(|_| user.is_none()).unwrap_or_default().to_owned(),
        run_as_group: own.run_as_group.or(shared.run_as_group).map(int64),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental_groups(&shared),
        supplemental_groups_policy: groups_policy(&shared),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(seccomp(own.seccomp_profile.as_ref().or(shared.seccomp_profile.as_ref()), privileged, config)),
        apparmor: own.app_armor_profile.as_ref().or(shared.app_armor_profile.as_ref()).map(apparmor),
    })
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    shared: &PodSecurityContext,
    own: &SecurityContext,
    image: &ImageUser,
) -> Result<()> {
    if own.run_as_non_root.or(shared.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let problem = match (own.run_as_user.or(shared.run_as_user), image) {
        (Some(0), _) => "container's runAsUser breaks non-root policy".to_owned(),
        (Some(_), _) => return Ok(()),
        (None, ImageUser::Id(0)) => "container has runAsNonRoot and image will run as root".to_owned(),
        (None, ImageUser::Id(1..=LARGEST_ID)) => return Ok(()),
        (None, ImageUser::Id(id)) => format!(
            "container has runAsNonRoot and image has an invalid user id ({id}). (Must be 1-({LARGEST_ID})): \
             must be between 0 and {LARGEST_ID}, inclusive"
        ),
        (None, ImageUser::Name(name)) => format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        ),
    };
    let container = &container.name;
    Err(Error::pod(format!("{problem} (pod: {:?}, container: {container})", spec::describe(pod))))
}

/// Returns the supplemental groups of every process of the pod, including the fsGroup.
fn supplemental_groups(context: &PodSecurityContext) -> Vec<i64> {
    let mut groups = context.supplemental_groups.clone().unwrap_or_default();
    groups.extend(context.fs_group.filter(|group| !groups.contains(group)));
    groups
}

fn groups_policy(context: &PodSecurityContext) -> i32 {
    match context.supplemental_groups_policy.as_deref() {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict as i32,
        _ => cri::SupplementalGroupsPolicy::Merge as i32,
    }
}

/// Returns the seccomp profile. No profile means the runtime's default, unless `seccompDefault` is off; a privileged
/// container has none.
fn seccomp(profile: Option<&SeccompProfile>, privileged: bool, config: &Config) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    let (profile_type, localhost_ref) = match profile.map(|profile| profile.type_.as_str()) {
        _ if privileged => (ProfileType::Unconfined, String::new()),
        Some("Unconfined") => (ProfileType::Unconfined, String::new()),
        Some("Localhost") => (ProfileType::Localhost, profile_path(profile, config)),
        None if !config.seccomp_default => (ProfileType::Unconfined, String::new()),
        _ => (ProfileType::RuntimeDefault, String::new()),
    };
    cri::SecurityProfile { profile_type: profile_type as i32, localhost_ref }
}

/// Returns the path of a profile for runtimes: absolute, and always below the kubelet's directory of profiles.
fn profile_path(profile: Option<&SeccompProfile>, config: &Config) -> String {
    let name = profile.and_then(|profile| profile.localhost_profile.as_deref()).unwrap_or_default();
    let parts = Path::new(name).components().filter(|part| matches!(part, Component::Normal(_)));
    let path = config.root_dir.join(SECCOMP_PROFILES).join(parts.collect::<PathBuf>());
    path.display().to_string()
}

fn apparmor(profile: &AppArmorProfile) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    let profile_type = match profile.type_.as_str() {
        "Unconfined" => ProfileType::Unconfined,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::RuntimeDefault,
    };
    let localhost_ref = profile.localhost_profile.clone().unwrap_or_default();
    cri::SecurityProfile { profile_type: profile_type as i32, localhost_ref }
}

fn selinux(options: &SELinuxOptions) -> cri::SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    cri::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn of(spec_json: &str, image: &ImageUser) -> Result<cri::LinuxContainerSecurityContext> {
        let pod = fixtures::pod(spec_json);
        container(&pod, &spec::spec(&pod).containers[0], image, None, None, &Config::default())
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let context = of(
            r#"{"securityContext":{"runAsUser":1000,"fsGroup":2000,"supplementalGroups":[3000],"seccompProfile":{"type":"Unconfined"}},
                "containers":[{"name":"c","securityContext":{"runAsUser":1001,"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true,
                "capabilities":{"drop":["ALL"]},"seccompProfile":{"type":"Localhost","localhostProfile":"x.json"}}}]}"#,
            &ImageUser::ROOT,
        )
        .unwrap();
        assert_eq!(context.run_as_user, Some(int64(1001)));
        assert_eq!(context.supplemental_groups, [3000, 2000]);
        assert!(context.no_new_privs && context.readonly_rootfs);
        assert_eq!(context.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert_eq!(context.seccomp.unwrap().localhost_ref, "/var/lib/corten/kubelet/seccomp/x.json");
        assert_eq!(context.masked_paths.len(), MASKED_PATHS.len());
    }

    #[test]
    fn the_default_is_confined_and_privileged_is_not() {
        let plain = of(r#"{"containers":[{"name":"c"}]}"#, &ImageUser::ROOT).unwrap();
        assert_eq!(plain.seccomp.unwrap().profile_type, cri::security_profile::ProfileType::RuntimeDefault as i32);
        let privileged =
            of(r#"{"containers":[{"name":"c","securityContext":{"privileged":true}}]}"#, &ImageUser::ROOT).unwrap();
        assert_eq!(privileged.seccomp.unwrap().profile_type, cri::security_profile::ProfileType::Unconfined as i32);
        assert!(privileged.masked_paths.is_empty());
        let relaxed = Config { seccomp_default: false, ..Config::default() };
        let free = seccomp(None, false, &relaxed).profile_type;
        assert_eq!(free, cri::security_profile::ProfileType::Unconfined as i32, "the node may be told not to");
    }

    #[test]
    fn profiles_are_below_the_kubelets_directory() {
        for (name, path) in [
            ("audit/x.json", "/var/lib/corten/kubelet/seccomp/audit/x.json"),
            ("../../../../dev/zero", "/var/lib/corten/kubelet/seccomp/dev/zero"),
            ("/dev/zero", "/var/lib/corten/kubelet/seccomp/dev/zero"),
        ] {
            let profile = SeccompProfile { type_: "Localhost".into(), localhost_profile: Some(name.into()) };
            assert_eq!(seccomp(Some(&profile), false, &Config::default()).localhost_ref, path);
        }
    }

    #[test]
    fn non_root_is_verified() {
        let strict = r#"{"securityContext":{"runAsNonRoot":true},"containers":[{"name":"c"}]}"#;
        let refusal = |user: &ImageUser| of(strict, user).unwrap_err().to_string();
        assert_eq!(
            refusal(&ImageUser::ROOT),
            "container has runAsNonRoot and image will run as root (pod: \"p_ns(pod-uid)\", container: c)"
        );
        assert!(refusal(&ImageUser::Name("web".into())).contains("non-numeric user (web)"));
        for id in [-1, LARGEST_ID + 1] {
            assert!(refusal(&ImageUser::Id(id)).contains(&format!("invalid user id ({id})")));
        }
        assert!(of(strict, &ImageUser::Id(7)).is_ok());
        let explicit = r#"{"containers":[{"name":"c","securityContext":{"runAsNonRoot":true,"runAsUser":0}}]}"#;
        let message = of(explicit, &ImageUser::Id(7)).unwrap_err().to_string();
        assert!(message.starts_with("container's runAsUser breaks non-root policy"), "{message}");
    }

    #[test]
    fn an_image_without_a_user_runs_as_root() {
        let image = |uid: Option<i64>, username: &str| cri::Image {
            uid: uid.map(int64),
            username: username.to_owned(),
            ..cri::Image::default()
        };
        assert_eq!(ImageUser::of(&image(None, "")), ImageUser::ROOT);
        assert_eq!(ImageUser::of(&image(Some(1234), "")), ImageUser::Id(1234));
        assert_eq!(ImageUser::of(&image(None, "web")), ImageUser::Name("web".into()));
    }
}
