//! The containers whose exit a new status shows for the first time. They are counted once, however often the status is
//! written.

use corten_api::k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

/// A container that has exited.
#[derive(Debug, PartialEq, Eq)]
pub struct Termination<'a> {
    /// The type of the container in metrics.
    pub container_type: &'static str,
    pub exit_code: i32,
    pub reason: &'a str,
}

/// Returns the containers that are terminated in `new` and were not in `old`.
pub fn new_terminations<'a>(old: &PodStatus, new: &'a PodStatus) -> Vec<Termination<'a>> {
    let lists = [
        ("init_container", &old.init_container_statuses, &new.init_container_statuses),
        ("container", &old.container_statuses, &new.container_statuses),
        ("ephemeral_container", &old.ephemeral_container_statuses, &new.ephemeral_container_statuses),
    ];
    let mut found = Vec::new();
    for (container_type, before, now) in lists {
        let was_terminated = |name: &str| {
            before
                .iter()
                .flatten()
                .find(|status| status.name == name)
                .is_some_and(|status| terminated(status).is_some())
        };
        for status in now.iter().flatten().filter(|status| !was_terminated(&status.name)) {
            let Some(end) = terminated(status) else { continue };
            let reason = end.reason.as_deref().unwrap_or_default();
            found.push(Termination { container_type, exit_code: end.exit_code, reason });
        }
    }
    found
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::k8s_openapi::api::core::v1::{ContainerState, ContainerStateRunning};

    fn status(name: &str, exit_code: Option<i32>) -> ContainerStatus {
        let terminated = exit_code.map(|exit_code| ContainerStateTerminated {
            exit_code,
            reason: Some("Error".into()),
            ..ContainerStateTerminated::default()
        });
        let running = exit_code.is_none().then(ContainerStateRunning::default);
        let state = ContainerState { running, terminated, waiting: None };
        ContainerStatus { name: name.to_owned(), state: Some(state), ..ContainerStatus::default() }
    }

    #[test]
    fn an_end_is_found_once() {
        let before = PodStatus { container_statuses: Some(vec![status("a", None)]), ..PodStatus::default() };
        let after = PodStatus {
            init_container_statuses: Some(vec![status("i", Some(0))]),
            container_statuses: Some(vec![status("a", Some(139)), status("b", None)]),
            ..PodStatus::default()
        };
        let found = new_terminations(&before, &after);
        let expected = [("init_container", 0), ("container", 139)].map(|(container_type, exit_code)| Termination {
            container_type,
            exit_code,
            reason: "Error",
        });
        assert_eq!(found, expected);
        assert_eq!(new_terminations(&after, &after), []);
        assert_eq!(new_terminations(&after, &before), [], "a container that runs again has not ended");
    }
}
