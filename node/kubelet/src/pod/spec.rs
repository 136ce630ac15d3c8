//! Accessors of a Pod's spec: its containers, their roles, and the decision of their restart policies on an exit. Pure;
//! it never reads the runtime.

use std::borrow::Cow;
use std::sync::LazyLock;

use corten_api::k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, EphemeralContainer, Pod, PodSpec, PodStatus,
};
use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The role of a container; it decides when the container starts and what its exit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs to completion before the next one and before the main containers.
    Init,
    /// An init container with `restartPolicy: Always`: runs beside the main containers.
    Sidecar,
    /// One of `spec.containers`.
    Main,
    /// Added to a running pod for debugging; never restarted.
    Ephemeral,
}

/// A container of the spec with its role.
#[derive(Clone, Debug)]
pub struct Declared<'a> {
    pub role: Role,
    pub container: Cow<'a, Container>,
    /// The container whose process namespace an ephemeral container joins.
    pub target: Option<&'a str>,
}

static NO_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
static NO_STATUS: LazyLock<PodStatus> = LazyLock::new(PodStatus::default);

/// Returns the pod's spec, empty if absent.
pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&NO_SPEC)
}

/// Returns the pod's status, empty if absent.
pub fn status(pod: &Pod) -> &PodStatus {
    pod.status.as_ref().unwrap_or(&NO_STATUS)
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

/// Returns the init containers in order, including sidecars.
pub fn init_containers(pod: &Pod) -> impl DoubleEndedIterator<Item = (Role, &Container)> {
    spec(pod).init_containers.iter().flatten().map(|container| (init_role(container), container))
}

/// Returns the ephemeral containers, each as an ordinary container.
pub fn ephemeral_containers(pod: &Pod) -> impl Iterator<Item = Declared<'_>> {
    spec(pod).ephemeral_containers.iter().flatten().map(|container| Declared {
        role: Role::Ephemeral,
        target: container.target_container_name.as_deref().filter(|target| !target.is_empty()),
        container: Cow::Owned(from_ephemeral(container)),
    })
}

/// Returns every container of the pod: init, main, ephemeral.
pub fn containers(pod: &Pod) -> impl Iterator<Item = Declared<'_>> {
    let init = init_containers(pod).map(|(role, container)| Declared {
        role,
        container: Cow::Borrowed(container),
        target: None,
    });
    let main = spec(pod).containers.iter().map(|container| Declared {
        role: Role::Main,
        container: Cow::Borrowed(container),
        target: None,
    });
    init.chain(main).chain(ephemeral_containers(pod))
}

pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<Declared<'a>> {
    containers(pod).find(|declared| declared.container.name == name)
}

fn init_role(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init }
}

fn from_ephemeral(from: &EphemeralContainer) -> Container {
    let from = from.clone();
    Container {
        args: from.args,
        command: from.command,
        env: from.env,
        env_from: from.env_from,
        image: from.image,
        image_pull_policy: from.image_pull_policy,
        lifecycle: None,
        liveness_probe: None,
        name: from.name,
        ports: from.ports,
        readiness_probe: None,
        resize_policy: None,
        resources: from.resources,
        restart_policy: None,
        restart_policy_rules: None,
        security_context: from.security_context,
        startup_probe: None,
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        tty: from.tty,
        volume_devices: from.volume_devices,
        volume_mounts: from.volume_mounts,
        working_dir: from.working_dir,
    }
}

/// Reports whether a container is restarted after this exit code.
pub fn should_restart(pod: &Pod, role: Role, container: &Container, exit_code: i32) -> bool {
    match role {
        Role::Sidecar => return true,
        Role::Ephemeral => return false,
        Role::Init | Role::Main => {}
    }
    if rule_restarts(container, exit_code) {
        return true;
    }
    let policy = container.restart_policy.as_deref().or(spec(pod).restart_policy.as_deref()).unwrap_or("Always");
    match (policy, role) {
        ("Never", _) => false,
        ("OnFailure", _) | (_, Role::Init) => exit_code != 0,
        _ => true,
    }
}

fn rule_restarts(container: &Container, exit_code: i32) -> bool {
    let rule = matching_rule(container, exit_code);
    rule.is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | "RestartAllContainers"))
}

/// Returns the first restart rule of the container that matches this exit code.
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = &rule.exit_codes else { return false };
        let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
        if codes.operator == "NotIn" { !listed } else { listed }
    })
}

/// Returns the grace period of a container in seconds: that of the deletion if the pod is being deleted, else that of
/// the spec.
pub fn grace_period_seconds(pod: &Pod) -> i64 {
    pod.metadata
        .deletion_grace_period_seconds
        .filter(|_| pod.metadata.deletion_timestamp.is_some())
        .or(spec(pod).termination_grace_period_seconds)
        .unwrap_or(30)
}

/// Reports whether the pod is critical: a static pod, a mirror pod, or one of a system-critical priority.
pub fn is_critical(pod: &Pod) -> bool {
    const SYSTEM_CRITICAL: i32 = 2_000_000_000;
    let own = super::source::is_static(pod) || super::source::is_mirror(pod);
    own || spec(pod).priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL)
}

/// Returns the number of a container's port by number or name.
pub fn port_number(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|declared| declared.name.as_deref() == Some(name))
            .and_then(|declared| u16::try_from(declared.container_port).ok())
            .or_else(|| name.parse().ok()),
    }
    .filter(|number| *number > 0)
}

/// Formats a pod as `name_namespace(uid)`, as upstream does in messages.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}
