//! The state of one pod in the runtime, as plain data: the input of `plan` and of the status. CRI messages are
//! converted here; nothing here decides.

use corten_cri::v1 as cri;

use super::labels;

/// The sandboxes and container instances of one pod, the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    pub sandboxes: Vec<Sandbox>,
    pub instances: Vec<Instance>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    /// The time of creation, in nanoseconds since the epoch.
    pub created_at: i64,
    pub ips: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InstanceState {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

/// One container of the runtime: one instance of a container of the spec.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instance {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    pub restart_count: u32,
    pub state: InstanceState,
    /// The time of creation, in nanoseconds since the epoch, as all three times.
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub image_id: String,
    pub log_path: String,
    /// The hash of the spec that it was created from.
    pub hash: String,
    pub user: Option<cri::LinuxContainerUser>,
}

impl Observed {
    /// Sorts the newest first, which every reader relies on.
    pub fn sorted(mut self) -> Observed {
        self.sandboxes.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_at, sandbox.attempt)));
        self.instances.sort_by_key(|instance| std::cmp::Reverse((instance.created_at, instance.restart_count)));
        self
    }

    /// Returns the newest sandbox, ready or not.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first()
    }

    /// Returns the newest instance of the container, in any sandbox.
    pub fn newest(&self, name: &str) -> Option<&Instance> {
        self.instances.iter().find(|instance| instance.name == name)
    }

    /// Returns every instance of the container, the newest first.
    pub fn attempts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Instance> {
        self.instances.iter().filter(move |instance| instance.name == name)
    }

    pub fn running(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|instance| instance.state == InstanceState::Running)
    }
}

impl Sandbox {
    pub fn from_status(status: cri::PodSandboxStatus) -> Sandbox {
        let network = status.network.unwrap_or_default();
        let first = (!network.ip.is_empty()).then_some(network.ip);
        Sandbox {
            id: status.id,
            attempt: status.metadata.map(|metadata| metadata.attempt).unwrap_or_default(),
            ready: status.state == cri::PodSandboxState::SandboxReady as i32,
            created_at: status.created_at,
            ips: first.into_iter().chain(network.additional_ips.into_iter().map(|ip| ip.ip)).collect(),
        }
    }
}

impl Instance {
    pub fn from_status(sandbox_id: String, status: cri::ContainerStatus) -> Instance {
        let metadata = status.metadata.unwrap_or_default();
        let annotation = |key: &str| status.annotations.get(key).cloned().unwrap_or_default();
        let user_image = status.image.as_ref().map(|image| {
            if image.user_specified_image.is_empty() { image.image.clone() } else { image.user_specified_image.clone() }
        });
        Instance {
            hash: annotation(labels::CONTAINER_HASH),
            restart_count: annotation(labels::CONTAINER_RESTART_COUNT).parse().unwrap_or(metadata.attempt),
            id: status.id,
            sandbox_id,
            name: metadata.name,
            state: state(status.state),
            created_at: status.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            exit_code: status.exit_code,
            reason: status.reason,
            message: status.message,
            image: user_image.unwrap_or_default(),
            image_id: if status.image_ref.is_empty() { status.image_id } else { status.image_ref },
            log_path: status.log_path,
            user: status.user.and_then(|user| user.linux),
        }
    }
}

fn state(value: i32) -> InstanceState {
    match cri::ContainerState::try_from(value) {
        Ok(cri::ContainerState::ContainerCreated) => InstanceState::Created,
        Ok(cri::ContainerState::ContainerRunning) => InstanceState::Running,
        Ok(cri::ContainerState::ContainerExited) => InstanceState::Exited,
        _ => InstanceState::Unknown,
    }
}
