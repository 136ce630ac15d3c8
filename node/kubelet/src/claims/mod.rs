//! ResourceClaims on this node: their drivers prepare them before the pod's containers start, and unprepare them when
//! no pod of the node uses them any more. CDI devices name the parts that a container sees.
//!
//! `state` holds the claims and writes the checkpoint. Invariant: a claim is in the checkpoint before its driver is
//! called, and removed only after the driver has unprepared it.

mod drivers;
mod health;
mod resolve;
mod slices;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, Pod};
use corten_api::k8s_openapi::api::resource::v1::ResourceClaim;
use corten_client::Client;
use corten_plugins::dynamic_resources as api;
use corten_plugins::pod_resources;
use tokio_util::sync::CancellationToken;

use drivers::{Driver, Drivers};
use health::Health;
pub use health::follow;
pub use slices::{delete_after_grace, delete_unregistered};
use state::{Claim, Device, State};

use crate::error::{Error, Result};
use crate::pod::spec;
use crate::pod::waker::Waker;
use crate::pod::wakers::Wakers;

/// Upstream's time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

pub struct Claims {
    client: Client,
    node_name: String,
    file: PathBuf,
    drivers: Mutex<Drivers>,
    state: Mutex<State>,
    health: Mutex<Health>,
    wakers: Wakers,
    /// Pods that wait for a driver.
    waiting: Mutex<HashMap<String, Waker>>,
    /// Drivers are called for one pod at a time, so that no claim is prepared and unprepared at once.
    asking: tokio::sync::Mutex<()>,
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

impl Claims {
    pub fn new(root_dir: &Path, node_name: &str, client: Client, wakers: Wakers) -> Claims {
        let file = root_dir.join("resource_claims.json");
        Claims {
            client,
            node_name: node_name.to_owned(),
            drivers: Mutex::default(),
            health: Mutex::default(),
            wakers,
            state: Mutex::new(State::read(&file)),
            file,
            waiting: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Registers a driver; returns the token that is cancelled when the socket is deregistered.
    pub fn register(&self, name: &str, endpoint: &Path, services: &[String]) -> Result<CancellationToken> {
        let gone = lock(&self.drivers).register(name, endpoint, services)?;
        tracing::info!(driver = name, "DRA driver registered");
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.values().for_each(Waker::refresh);
        Ok(gone)
    }

    /// Removes a driver's socket; returns whether it was the driver's last.
    pub fn deregister(&self, name: &str, endpoint: &Path) -> bool {
        let is_gone = lock(&self.drivers).deregister(name, endpoint);
        if is_gone {
            tracing::info!(driver = name, "DRA driver gone");
        }
        is_gone
    }

    fn is_registered(&self, name: &str) -> bool {
        lock(&self.drivers).get(name).is_some()
    }

    fn driver(&self, name: &str) -> Result<Driver> {
        let known = lock(&self.drivers).get(name);
        known.ok_or_else(|| Error::pod(format!("DRA driver {name} is not registered")))
    }

    /// Prepares all claims of the pod. A second call makes no call to a driver.
    pub async fn prepare(&self, pod: &Pod, waker: &Waker) -> Result<()> {
        let wanted = resolve::claims(pod)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let _alone = self.asking.lock().await;
        for (name, owned) in wanted.values() {
            if self.is_prepared(pod, name) {
                continue;
            }
            let claim = self.client.get::<ResourceClaim>(spec::namespace(pod), name).await;
            let claim = claim.map_err(|error| Error::pod(format!("fetch ResourceClaim {name}: {error}")))?;
            resolve::check(pod, &claim, *owned)?;
            let prepared = self.prepare_claim(pod, name, &claim).await;
            prepared.inspect_err(|_| drop(lock(&self.waiting).insert(spec::uid(pod).to_owned(), waker.clone())))?;
        }
        Ok(())
    }

    fn is_prepared(&self, pod: &Pod, name: &str) -> bool {
        let state = self.lock();
        let known = state.get(spec::namespace(pod), name);
        known.is_some_and(|claim| claim.prepared && claim.pods.contains(spec::uid(pod)))
    }

    async fn prepare_claim(&self, pod: &Pod, name: &str, claim: &ResourceClaim) -> Result<()> {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let namespace = spec::namespace(pod);
        let drivers = resolve::drivers(claim)?;
        let clients = drivers.iter().map(|driver| Ok((driver, self.driver(driver)?))).collect::<Result<Vec<_>>>()?;
        {
            let mut state = self.lock();
            let known = state.entry(namespace, name);
            if !known.uid.is_empty() && known.uid != uid {
                return Err(Error::pod(format!(
                    "old ResourceClaim with same name {name} and different UID {} still exists (previous pod force-deleted?!)",
                    known.uid
                )));
            }
            known.uid.clone_from(&uid);
            known.pods.insert(spec::uid(pod).to_owned());
            for driver in &drivers {
                known.drivers.entry(driver.clone()).or_default();
            }
            let prepared = known.prepared;
            state.write(&self.file)?;
            if prepared {
                return Ok(());
            }
        }
        let message = api::Claim { namespace: namespace.to_owned(), uid, name: name.to_owned() };
        let mut prepared = BTreeMap::new();
        for (driver, mut client) in clients {
            prepared.insert(driver.clone(), prepare_by(&mut client, &message).await?);
        }
        let mut state = self.lock();
        let known = state.entry(namespace, name);
        known.drivers = prepared;
        known.prepared = true;
        state.write(&self.file)
    }

    /// Unprepares the claims that only this terminated pod used.
    pub async fn unprepare(&self, pod_uid: &str) -> Result<()> {
        lock(&self.waiting).remove(pod_uid);
        if !self.lock().uses(pod_uid) {
            return Ok(());
        }
        let _alone = self.asking.lock().await;
        let used = self.lock().of_pod(pod_uid);
        for (namespace, name, claim) in used {
            if claim.pods.len() == 1 {
                self.unprepare_claim(&namespace, &name, &claim).await?;
            }
            let mut state = self.lock();
            state.release(&namespace, &name, pod_uid);
            state.write(&self.file)?;
        }
        Ok(())
    }

    async fn unprepare_claim(&self, namespace: &str, name: &str, claim: &Claim) -> Result<()> {
        let message = api::Claim { namespace: namespace.to_owned(), uid: claim.uid.clone(), name: name.to_owned() };
        for driver in claim.drivers.keys() {
            let request = api::NodeUnprepareResourcesRequest { claims: vec![message.clone()] };
            let answer = self.driver(driver)?.unprepare(timed(request)).await;
            let answer =
                answer.map_err(|status| Error::pod(format!("NodeUnprepareResources: {}", status.message())))?;
            let result = answer.into_inner().claims.remove(&message.uid);
            let Some(result) = result else {
                return Err(Error::pod("NodeUnprepareResources skipped 1 ResourceClaims"));
            };
            if !result.error.is_empty() {
                let error = result.error;
                return Err(Error::pod(format!("NodeUnprepareResources failed for ResourceClaim {name}: {error}")));
            }
        }
        Ok(())
    }

    /// Returns the pods that have claims here.
    pub fn pods(&self) -> Vec<String> {
        self.lock().pods()
    }

    /// Returns the CDI devices of a container: those of the requests that it names.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Vec<String> {
        let devices = self.of_container(pod, container);
        devices.into_iter().flat_map(|(_, _, device)| device.cdi).collect()
    }

    /// Returns the container's devices, with the claim's name and the driver.
    fn of_container(&self, pod: &Pod, container: &Container) -> Vec<(String, String, Device)> {
        let Ok(claims) = resolve::claims(pod) else { return Vec::new() };
        let state = self.lock();
        let mut found = Vec::new();
        for used in container.resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
            let Some((name, _)) = claims.get(&used.name) else { continue };
            let Some(claim) = state.get(spec::namespace(pod), name) else { continue };
            let fits = claim.devices_of(used.request.as_deref());
            found.extend(fits.map(|(driver, device)| (name.clone(), driver.clone(), device.clone())));
        }
        found.extend(extended(pod, container, &state));
        found
    }

    /// Returns the container's devices for the pod resources API.
    pub fn shown(&self, pod: &Pod, container: &Container) -> Vec<pod_resources::DynamicResource> {
        let mut by_claim: BTreeMap<String, Vec<pod_resources::ClaimResource>> = BTreeMap::new();
        for (claim, driver_name, device) in self.of_container(pod, container) {
            let names = device.cdi.into_iter().map(|name| pod_resources::CdiDevice { name });
            by_claim.entry(claim).or_default().push(pod_resources::ClaimResource {
                cdi_devices: names.collect(),
                driver_name,
                pool_name: device.pool,
                device_name: device.name,
                share_id: None,
            });
        }
        let claim_namespace = spec::namespace(pod).to_owned();
        by_claim
            .into_iter()
            .map(|(claim_name, claim_resources)| pod_resources::DynamicResource {
                claim_name,
                claim_namespace: claim_namespace.clone(),
                claim_resources,
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Unprepares the claims of a pod that was deleted from the API. Its drivers may register later, so this is retried
/// until it succeeds or the kubelet stops.
pub async fn clean_up(claims: Arc<Claims>, pod_uid: String, stop: CancellationToken) {
    let mut wait = FIRST_RETRY;
    while let Err(error) = claims.unprepare(&pod_uid).await {
        tracing::warn!(%error, pod_uid, "orphan's dynamic resources not unprepared");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(LAST_RETRY),
        }
    }
}

/// Returns the devices that a container requests as extended resources.
fn extended(pod: &Pod, container: &Container, state: &State) -> Vec<(String, String, Device)> {
    let Some(status) = &spec::status(pod).extended_resource_claim_status else { return Vec::new() };
    let name = &status.resource_claim_name;
    let Some(claim) = state.get(spec::namespace(pod), name) else { return Vec::new() };
    let of_container = |mapping: &&ContainerExtendedResourceRequest| mapping.container_name == container.name;
    let mut found = Vec::new();
    for mapping in status.request_mappings.iter().filter(of_container) {
        let fits = claim.devices_of(Some(&mapping.request_name));
        found.extend(fits.map(|(driver, device)| (name.clone(), driver.clone(), device.clone())));
    }
    found
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn prepare_by(driver: &mut Driver, claim: &api::Claim) -> Result<Vec<Device>> {
    let request = api::NodePrepareResourcesRequest { claims: vec![claim.clone()] };
    let answer = driver.prepare(timed(request)).await;
    let answer = answer.map_err(|status| Error::pod(format!("NodePrepareResources: {}", status.message())))?;
    let Some(result) = answer.into_inner().claims.remove(&claim.uid) else {
        return Err(Error::pod("NodePrepareResources skipped 1 ResourceClaims"));
    };
    if !result.error.is_empty() {
        let name = &claim.name;
        let error = result.error;
        return Err(Error::pod(format!("NodePrepareResources failed for ResourceClaim {name}: {error}")));
    }
    let devices = result.devices.into_iter();
    Ok(devices
        .map(|device| Device {
            requests: device.request_names,
            pool: device.pool_name,
            name: device.device_name,
            cdi: device.cdi_device_ids,
        })
        .collect())
}
