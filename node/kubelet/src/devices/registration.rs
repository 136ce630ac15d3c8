//! Registration of device plugins: they register at the kubelet's socket, then stream their devices as long as they
//! run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corten_plugins::device_plugin as plugin;
use corten_plugins::device_plugin::device_plugin_client::DevicePluginClient;
use corten_plugins::device_plugin::registration_server::{Registration, RegistrationServer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use super::{Device, Devices, Endpoint, Resource, shown, timed};
use crate::error::{Error, Result};
use crate::plugin_api::serve;

pub const VERSION: &str = "v1beta1";
/// The time after which a resource without its plugin is removed.
const FORGET_AFTER: Duration = Duration::from_secs(300);

/// Accepts registrations until shutdown.
pub async fn run(devices: Arc<Devices>, stop: CancellationToken) {
    remove_stale_sockets(&devices.directory);
    let socket = devices.directory.join("kubelet.sock");
    let listener = match serve::listen(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            warn!(%error, "device plugins cannot register");
            return;
        }
    };
    let tasks = TaskTracker::new();
    let registrar = Registrar { devices, tasks: tasks.clone(), stop: stop.clone() };
    serve::serve(listener, RegistrationServer::new(registrar), stop).await;
    // Plugins watch the socket: they register again with the kubelet that creates it.
    let _ = std::fs::remove_file(&socket);
    tasks.close();
    tasks.wait().await;
}

/// Removes the sockets of earlier plugins; plugins watch for the kubelet's socket and register again.
fn remove_stale_sockets(directory: &Path) {
    use std::os::unix::fs::FileTypeExt;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

struct Registrar {
    devices: Arc<Devices>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(
        &self,
        request: Request<plugin::RegisterRequest>,
    ) -> std::result::Result<Response<plugin::Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
                request.version
            )));
        }
        if !is_extended(&request.resource_name) {
            return Err(Status::unknown(format!("the ResourceName {:?} is invalid", request.resource_name)));
        }
        // The endpoint is a name in the plugins' directory, never a path out of it.
        let Some(name) = Path::new(&request.endpoint).file_name() else {
            return Err(Status::unknown(format!("the endpoint {:?} is invalid", request.endpoint)));
        };
        let socket = self.devices.directory.join(name);
        let followed = follow(self.devices.clone(), request.resource_name, socket, self.stop.clone());
        self.tasks.spawn(followed);
        Ok(Response::new(plugin::Empty {}))
    }
}

/// Reports whether a resource has a domain, as those of plugins must.
fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, rest)| (domain, !rest.is_empty()));
    domain.is_some_and(|(domain, named)| named && !domain.ends_with("kubernetes.io") && !domain.is_empty())
        && !name.starts_with("requests.")
}

/// Follows one plugin from its registration to its end.
pub async fn follow(devices: Arc<Devices>, resource: String, socket: PathBuf, stop: CancellationToken) {
    let registration = devices.begin(&resource);
    devices.metrics.count(&crate::metrics::DEVICE_REGISTRATIONS, &[&resource]);
    let ended = tokio::select! {
        () = stop.cancelled() => return,
        ended = listen(&devices, &resource, registration, &socket) => ended,
    };
    match ended {
        Ok(()) => info!(resource, "device plugin ended"),
        Err(error) => warn!(%error, resource, "device plugin failed"),
    }
    devices.end(&resource, registration);
    tokio::select! {
        () = stop.cancelled() => {}
        () = tokio::time::sleep(FORGET_AFTER) => devices.forget(&resource, registration),
    }
}

async fn listen(devices: &Devices, resource: &str, registration: u64, socket: &Path) -> Result<()> {
    let channel = corten_plugins::connect_lazy(socket).map_err(|error| Error::pod(error.to_string()))?;
    let mut client = DevicePluginClient::new(channel);
    let options = client.get_device_plugin_options(timed(plugin::Empty {})).await?.into_inner();
    let endpoint = Endpoint { client: client.clone(), options };
    let mut stream = client.list_and_watch(plugin::Empty {}).await?.into_inner();
    info!(resource, "device plugin registered");
    while let Some(news) = stream.message().await? {
        devices.update(resource, registration, &endpoint, news.devices);
    }
    Ok(())
}

impl Devices {
    /// Begins a registration; its number distinguishes the plugin from later ones.
    fn begin(&self, resource: &str) -> u64 {
        let mut state = self.lock();
        let known = state.resources.entry(resource.to_owned()).or_default();
        known.registration += 1;
        known.registration
    }

    fn change(&self, resource: &str, registration: u64, change: impl FnOnce(&mut Resource)) {
        let mut state = self.lock();
        if let Some(known) = state.resources.get_mut(resource).filter(|known| known.registration == registration) {
            let before = known.devices.clone();
            change(known);
            let is_other = |id: &&String| shown::is_healthy(&known.devices, id) != shown::is_healthy(&before, id);
            let changed = before.keys().chain(known.devices.keys()).filter(is_other).cloned().collect();
            self.wakers.wake(&state.allocations.users(resource, &changed));
            self.publish(&state);
        }
    }

    fn update(&self, resource: &str, registration: u64, endpoint: &Endpoint, devices: Vec<plugin::Device>) {
        self.change(resource, registration, |known| {
            known.endpoint = Some(endpoint.clone());
            known.devices = devices
                .into_iter()
                .map(|device| {
                    let nodes = device.topology.into_iter().flat_map(|topology| topology.nodes);
                    let numa_nodes = nodes.map(|node| node.id).collect();
                    (device.id, Device { healthy: device.health == "Healthy", numa_nodes })
                })
                .collect();
        });
        if let Err(error) = self.save() {
            warn!(%error, resource, "devices are not recorded");
        }
    }

    /// Ends a registration: the plugin's devices are not allocated any more; containers that have some keep them.
    fn end(&self, resource: &str, registration: u64) {
        self.change(resource, registration, |known| {
            known.endpoint = None;
            known.devices.values_mut().for_each(|device| device.healthy = false);
        });
    }

    /// Removes the resource of a plugin that did not register again.
    fn forget(&self, resource: &str, registration: u64) {
        self.change(resource, registration, |known| known.devices.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_domain_are_registered() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("cpu", false),
            ("kubernetes.io/gpu", false),
            ("x.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_extended(name), expected, "{name}");
        }
    }
}
