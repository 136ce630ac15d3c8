//! The security context in CRI's terms: the pod's and the container's together, the container's first.
//! Pure; what it must never do is weaken a setting that the spec makes.

use corten_api::k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};
use corten_cri::v1 as cri;

use crate::error::{Error, Result};
use crate::pods::spec;
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

/// Who an image says it runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub username: String,
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

/// The namespaces a pod's containers live in.
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

/// The context of the sandbox: the pod's own, and privileged if any container is. `confined` says whether what names no
/// seccomp profile gets the default one.
pub fn sandbox(pod: &Pod, users: Option<Range>, confined: bool) -> cri::LinuxSandboxSecurityContext {
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
        seccomp: Some(seccomp(context.seccomp_profile.as_ref(), privileged, confined)),
        ..cri::LinuxSandboxSecurityContext::default()
    }
}

/// The context of a container. `target` is the container whose processes an ephemeral one joins.
pub fn container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<String>,
    users: Option<Range>,
    confined: bool,
) -> Result<cri::LinuxContainerSecurityContext> {
    let (shared, own) = (pod_context(pod), own_context(container));
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
        run_as_user: user.or(image.uid).map(int64),
        run_as_username: if user.is_none() && image.uid.is_none() { image.username.clone() } else { String::new() },
        run_as_group: own.run_as_group.or(shared.run_as_group).map(int64),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental_groups(&shared),
        supplemental_groups_policy: groups_policy(&shared),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(seccomp(own.seccomp_profile.as_ref().or(shared.seccomp_profile.as_ref()), privileged, confined)),
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
    let where_ = format!("(pod: {:?}, container: {})", spec::describe(pod), container.name);
    let message = match (own.run_as_user.or(shared.run_as_user), image.uid) {
        (Some(0), _) => format!("container's runAsUser breaks non-root policy {where_}"),
        (Some(_), _) => return Ok(()),
        (None, Some(0)) => format!("container has runAsNonRoot and image will run as root {where_}"),
        (None, None) if !image.username.is_empty() => format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root {where_}",
            image.username
        ),
        (None, _) => return Ok(()),
    };
    Err(Error::pod(message))
}

/// The groups every process of the pod is in, the volumes' group among them.
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

/// No profile means the runtime's default, if `confined` says so; a privileged container is confined by none.
fn seccomp(profile: Option<&SeccompProfile>, privileged: bool, confined: bool) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    let (profile_type, localhost_ref) = match profile.map(|profile| profile.type_.as_str()) {
        _ if privileged => (ProfileType::Unconfined, None),
        Some("Unconfined") => (ProfileType::Unconfined, None),
        Some("Localhost") => (ProfileType::Localhost, profile.and_then(|profile| profile.localhost_profile.clone())),
        None if !confined => (ProfileType::Unconfined, None),
        _ => (ProfileType::RuntimeDefault, None),
    };
    cri::SecurityProfile { profile_type: profile_type as i32, localhost_ref: localhost_ref.unwrap_or_default() }
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
        container(&pod, &spec::spec(&pod).containers[0], image, None, None, true)
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let context = of(
            r#"{"securityContext":{"runAsUser":1000,"fsGroup":2000,"supplementalGroups":[3000],"seccompProfile":{"type":"Unconfined"}},
                "containers":[{"name":"c","securityContext":{"runAsUser":1001,"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true,
                "capabilities":{"drop":["ALL"]},"seccompProfile":{"type":"Localhost","localhostProfile":"x.json"}}}]}"#,
            &ImageUser::default(),
        )
        .unwrap();
        assert_eq!(context.run_as_user, Some(int64(1001)));
        assert_eq!(context.supplemental_groups, [3000, 2000]);
        assert!(context.no_new_privs && context.readonly_rootfs);
        assert_eq!(context.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert_eq!(context.seccomp.unwrap().localhost_ref, "x.json");
        assert_eq!(context.masked_paths.len(), MASKED_PATHS.len());
    }

    #[test]
    fn the_default_is_confined_and_privileged_is_not() {
        let plain = of(r#"{"containers":[{"name":"c"}]}"#, &ImageUser::default()).unwrap();
        assert_eq!(plain.seccomp.unwrap().profile_type, cri::security_profile::ProfileType::RuntimeDefault as i32);
        let privileged =
            of(r#"{"containers":[{"name":"c","securityContext":{"privileged":true}}]}"#, &ImageUser::default())
                .unwrap();
        assert_eq!(privileged.seccomp.unwrap().profile_type, cri::security_profile::ProfileType::Unconfined as i32);
        assert!(privileged.masked_paths.is_empty());
        let free = seccomp(None, false, false).profile_type;
        assert_eq!(free, cri::security_profile::ProfileType::Unconfined as i32, "the node may be told not to");
    }

    #[test]
    fn non_root_is_verified() {
        let strict = r#"{"securityContext":{"runAsNonRoot":true},"containers":[{"name":"c"}]}"#;
        let root = ImageUser { uid: Some(0), username: String::new() };
        let message = of(strict, &root).unwrap_err().to_string();
        assert_eq!(
            message,
            "container has runAsNonRoot and image will run as root (pod: \"p_ns(pod-uid)\", container: c)"
        );
        let named = ImageUser { uid: None, username: "web".into() };
        assert!(of(strict, &named).unwrap_err().to_string().contains("non-numeric user (web)"));
        assert!(of(strict, &ImageUser { uid: Some(7), username: String::new() }).is_ok());
    }
}
