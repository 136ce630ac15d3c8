//! `status.phase`, by upstream's counting of container states.

use corten_api::k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, PodStatus};

use super::Facts;
use crate::pod::spec::{self, Role};
use crate::pods::restart_all;

/// The number of containers in each state.
#[derive(Default)]
struct Count {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// The state of one container for the phase.
enum Stage<'a> {
    Running {
        started: bool,
    },
    Ended(&'a ContainerStateTerminated),
    /// Waits after an earlier exit.
    Restarting(&'a ContainerStateTerminated),
    Waiting,
}

fn stage(status: &ContainerStatus) -> Stage<'_> {
    let Some(state) = &status.state else { return Stage::Waiting };
    if state.running.is_some() {
        return Stage::Running { started: status.started == Some(true) };
    }
    if let Some(terminated) = &state.terminated {
        return Stage::Ended(terminated);
    }
    match status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
        Some(terminated) => Stage::Restarting(terminated),
        None => Stage::Waiting,
    }
}

fn find<'a>(statuses: Option<&'a Vec<ContainerStatus>>, container: &Container) -> Option<&'a ContainerStatus> {
    statuses?.iter().find(|status| status.name == container.name)
}

pub fn phase(facts: &Facts<'_>, new: &PodStatus) -> &'static str {
    let mut count = Count::default();
    let mut pending_init = 0;
    let mut pending_sidecars = 0;
    for (role, container) in spec::init_containers(facts.pod) {
        let Some(status) = find(new.init_container_statuses.as_ref(), container) else {
            pending_init += 1;
            continue;
        };
        match (role, stage(status)) {
            (Role::Sidecar, Stage::Running { started }) => {
                pending_sidecars += usize::from(!started);
                count.running += 1;
            }
            (Role::Sidecar, Stage::Waiting) => {
                pending_sidecars += 1;
                count.waiting += 1;
            }
            (Role::Sidecar, _) => {}
            (_, Stage::Ended(end) | Stage::Restarting(end)) => {
                if end.exit_code != 0 && !runs_again(facts, role, container, end) {
                    return "Failed";
                }
            }
            (_, Stage::Running { .. } | Stage::Waiting) => pending_init += 1,
        }
    }
    for container in &spec::spec(facts.pod).containers {
        match find(new.container_statuses.as_ref(), container) {
            Some(status) => count_main(facts, container, status, &mut count),
            None => count.unknown += 1,
        }
    }
    let main_started = new
        .container_statuses
        .iter()
        .flatten()
        .any(|status| matches!(stage(status), Stage::Running { .. } | Stage::Ended(_) | Stage::Restarting(_)));
    let pending = pending_init > 0 || (pending_sidecars > 0 && !main_started) || count.waiting > 0;
    conclude(facts, pending, &count)
}

/// Reports whether a container is restarted after this exit.
fn runs_again(facts: &Facts<'_>, role: Role, container: &Container, end: &ContainerStateTerminated) -> bool {
    end.reason.as_deref() == Some(restart_all::REASON)
        || spec::should_restart(facts.pod, role, container, end.exit_code)
}

fn count_main(facts: &Facts<'_>, container: &Container, status: &ContainerStatus, count: &mut Count) {
    let for_good = |exit: &ContainerStateTerminated| usize::from(!runs_again(facts, Role::Main, container, exit));
    match stage(status) {
        Stage::Running { .. } => count.running += 1,
        Stage::Waiting => count.waiting += 1,
        Stage::Ended(end) => {
            count.stopped += 1;
            count.stopped_for_good += for_good(end);
            count.succeeded += usize::from(end.exit_code == 0);
        }
        Stage::Restarting(end) => {
            count.stopped += 1;
            count.stopped_for_good += for_good(end);
        }
    }
}

fn conclude(facts: &Facts<'_>, pending: bool, count: &Count) -> &'static str {
    if facts.ended && count.running == 0 {
        // Nothing will run again, regardless of the restart policy; a container that never ran is a failure.
        return if count.stopped > 0 && count.stopped == count.succeeded && !pending { "Succeeded" } else { "Failed" };
    }
    if pending {
        return "Pending";
    }
    if count.running > 0 && count.unknown == 0 {
        return "Running";
    }
    if count.stopped > 0 && count.unknown == 0 {
        if count.stopped != count.stopped_for_good {
            return "Running";
        }
        return if count.stopped == count.succeeded { "Succeeded" } else { "Failed" };
    }
    "Pending"
}
