//! The health of the devices of drivers. A driver streams all its devices whenever one changes; a report holds until its
//! timeout, and after that, as without its driver, the health of a device is unknown.
//!
//! [`Health`] is pure: the time comes in. [`follow`] reads one driver's stream, and wakes the pods whose devices
//! changed, so that their statuses show it.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use corten_plugins::dynamic_resources_health as api;
use corten_plugins::dynamic_resources_health::dra_resource_health_client::DraResourceHealthClient;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tracing::{debug, info};

use super::{Claims, lock, resolve};
use crate::pod::spec;

/// The time for which a report holds that names no timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The wait before a stream that broke is opened again.
const RETRY: Duration = Duration::from_secs(5);
/// The most bytes of a message, as the API server has it.
const MAX_MESSAGE: usize = 1024;
/// The most devices of a driver whose reports are kept; reports about further ones are ignored.
const MAX_DEVICES: usize = 16_384;
/// The most bytes of the names of a pool and of a device in a ResourceSlice.
const MAX_NAMES: usize = 253 + 63;
/// The health without a report.
const UNKNOWN: &str = "Unknown";

/// A device of one driver: its pool and its name.
type DeviceKey = (String, String);

/// The last report about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    health: &'static str,
    message: String,
    timeout: Duration,
    at: Instant,
}

impl Report {
    fn new(device: &api::DeviceHealth, at: Instant) -> Report {
        let health = match device.health() {
            api::HealthStatus::Healthy => "Healthy",
            api::HealthStatus::Unhealthy => "Unhealthy",
            api::HealthStatus::Unknown => UNKNOWN,
        };
        let timeout = match u64::try_from(device.health_check_timeout_seconds) {
            Ok(0) | Err(_) => DEFAULT_TIMEOUT,
            // Decades are as good as for ever, and can be added to any time.
            Ok(seconds) => Duration::from_secs(seconds.min(u32::MAX.into())),
        };
        Report { health, message: shortened(&device.message), timeout, at }
    }

    fn until(&self) -> Instant {
        self.at + self.timeout
    }

    fn differs(&self, other: &Report) -> bool {
        (self.health, &self.message, self.timeout) != (other.health, &other.message, other.timeout)
    }
}

/// Returns the message as far as the API server accepts it.
fn shortened(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    format!("{}...", &message[..message.floor_char_boundary(MAX_MESSAGE - 3)])
}

/// The devices of a driver, from the socket that reported last: one that is being updated has two.
#[derive(Default)]
struct Reported {
    endpoint: PathBuf,
    devices: HashMap<DeviceKey, Report>,
}

/// The reports of all drivers, by name.
#[derive(Default)]
pub struct Health(HashMap<String, Reported>);

impl Health {
    /// Takes a driver's report of all its devices; returns those that changed. A device that is not in it keeps its last
    /// report until the timeout.
    fn update(
        &mut self,
        driver: &str,
        endpoint: &Path,
        devices: &[api::DeviceHealth],
        now: Instant,
    ) -> BTreeSet<DeviceKey> {
        let known = self.0.entry(driver.to_owned()).or_default();
        known.endpoint = endpoint.to_owned();
        let mut changed = BTreeSet::new();
        for device in devices {
            let id = device.device.clone().unwrap_or_default();
            let key = (id.pool_name, id.device_name);
            let has_room = known.devices.len() < MAX_DEVICES || known.devices.contains_key(&key);
            if !has_room || key.0.len() + key.1.len() > MAX_NAMES {
                continue;
            }
            let report = Report::new(device, now);
            let is_new = known.devices.get(&key).is_none_or(|before| before.differs(&report));
            known.devices.insert(key.clone(), report);
            if is_new {
                changed.insert(key);
            }
        }
        changed
    }

    /// Removes the reports whose time is over; returns their devices.
    fn expire(&mut self, driver: &str, now: Instant) -> BTreeSet<DeviceKey> {
        let Some(known) = self.0.get_mut(driver) else { return BTreeSet::new() };
        known.devices.extract_if(|_, report| report.until() <= now).map(|(key, _)| key).collect()
    }

    fn next_expiry(&self, driver: &str) -> Option<Instant> {
        self.0.get(driver)?.devices.values().map(Report::until).min()
    }

    /// Removes the reports of a driver whose stream ended; returns their devices. Another socket's stay.
    fn end(&mut self, driver: &str, endpoint: &Path) -> BTreeSet<DeviceKey> {
        if self.0.get(driver).is_none_or(|known| known.endpoint != endpoint) {
            return BTreeSet::new();
        }
        self.0.remove(driver).into_iter().flat_map(|known| known.devices.into_keys()).collect()
    }

    /// Returns the health of a device, and the driver's message about it.
    fn of(&self, driver: &str, pool: &str, device: &str) -> (&'static str, Option<String>) {
        let known = self.0.get(driver).and_then(|known| known.devices.get(&(pool.to_owned(), device.to_owned())));
        match known {
            Some(report) => (report.health, Some(report.message.clone()).filter(|message| !message.is_empty())),
            None => (UNKNOWN, None),
        }
    }
}

/// Follows the health of a driver's devices until its socket is deregistered.
pub async fn follow(claims: Arc<Claims>, driver: String, endpoint: PathBuf, stop: CancellationToken) {
    let Ok(channel) = corten_plugins::connect_lazy(&endpoint) else { return };
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = watch(&claims, &driver, &endpoint, channel.clone()) => ended,
        };
        let lost = lock(&claims.health).end(&driver, &endpoint);
        claims.wake_users(&driver, &lost);
        match ended {
            // Most drivers have no such service.
            Err(status) if status.code() == Code::Unimplemented => return,
            ended => debug!(driver, error = ended.err().map(|status| status.to_string()), "health stream ended"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn watch(claims: &Claims, driver: &str, endpoint: &Path, channel: Channel) -> Result<(), Status> {
    let mut client = DraResourceHealthClient::new(channel);
    let mut stream = client.node_watch_resources(api::NodeWatchResourcesRequest {}).await?.into_inner();
    info!(driver, "DRA driver reports the health of its devices");
    while let Some(changed) = next_change(claims, driver, endpoint, &mut stream).await? {
        claims.wake_users(driver, &changed);
    }
    Ok(())
}

/// Waits for a report or for the end of one; returns the devices whose health changed by it, `None` at the stream's end.
async fn next_change(
    claims: &Claims,
    driver: &str,
    endpoint: &Path,
    stream: &mut Streaming<api::NodeWatchResourcesResponse>,
) -> Result<Option<BTreeSet<DeviceKey>>, Status> {
    let expiry = lock(&claims.health).next_expiry(driver);
    let expired = async {
        match expiry {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        news = stream.message() => Ok(news?.map(|news| {
            lock(&claims.health).update(driver, endpoint, &news.devices, Instant::now())
        })),
        () = expired => Ok(Some(lock(&claims.health).expire(driver, Instant::now()))),
    }
}

impl Claims {
    /// Wakes the pods that use one of the driver's devices.
    fn wake_users(&self, driver: &str, devices: &BTreeSet<DeviceKey>) {
        if devices.is_empty() {
            return;
        }
        let users = self
            .lock()
            .users(|name, device| name == driver && devices.contains(&(device.pool.clone(), device.name.clone())));
        self.wakers.wake(&users);
    }

    /// Returns the health of the devices that a container requests by its claims, as its status shows it: for each
    /// `claim:NAME`, or `claim:NAME/REQUEST`, the prepared devices.
    pub fn device_health(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let requested = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        let mut requested = requested.peekable();
        if requested.peek().is_none() {
            return Vec::new();
        }
        let Ok(claims) = resolve::claims(pod) else { return Vec::new() };
        let state = self.lock();
        let health = lock(&self.health);
        let mut statuses = Vec::new();
        for used in requested {
            let request = used.request.as_deref().filter(|request| !request.is_empty());
            let claim = claims.get(&used.name).and_then(|(name, _)| state.get(spec::namespace(pod), name));
            let mut shown: Vec<ResourceHealth> = Vec::new();
            for (driver, device) in claim.into_iter().flat_map(|claim| claim.devices_of(request)) {
                let id = device.cdi.first().cloned();
                let resource_id = id.unwrap_or_else(|| format!("{driver}/{}/{}", device.pool, device.name));
                // Devices may share a CDI device.
                if shown.iter().all(|known| known.resource_id != resource_id) {
                    let (health, message) = health.of(driver, &device.pool, &device.name);
                    shown.push(ResourceHealth { resource_id, health: Some(health.to_owned()), message });
                }
            }
            let name = match request {
                Some(request) => format!("claim:{}/{request}", used.name),
                None => format!("claim:{}", used.name),
            };
            if !shown.is_empty() {
                statuses.push(ResourceStatus { name, resources: Some(shown) });
            }
        }
        statuses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(device: &str, health: api::HealthStatus, message: &str, timeout: i64) -> api::DeviceHealth {
        api::DeviceHealth {
            device: Some(api::DeviceIdentifier { pool_name: "n1".into(), device_name: device.into() }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: timeout,
            message: message.into(),
        }
    }

    fn names(devices: &BTreeSet<DeviceKey>) -> Vec<&str> {
        devices.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn a_report_holds_until_its_timeout() {
        let (mut health, begun, socket) = (Health::default(), Instant::now(), Path::new("/d"));
        let at = |seconds| begun + Duration::from_secs(seconds);
        let unhealthy = report("a", api::HealthStatus::Unhealthy, "hot", 0);
        let healthy = report("b", api::HealthStatus::Healthy, "", 100);
        assert_eq!(health.of("d", "n1", "a"), ("Unknown", None));
        let changed = health.update("d", socket, &[unhealthy.clone(), healthy.clone()], at(0));
        assert_eq!(names(&changed), ["a", "b"]);
        assert_eq!(health.of("d", "n1", "a"), ("Unhealthy", Some("hot".to_owned())));
        assert_eq!(health.of("d", "n1", "b"), ("Healthy", None));
        assert_eq!(health.next_expiry("d"), Some(at(30)));

        assert_eq!(names(&health.update("d", socket, &[unhealthy], at(20))), [""; 0], "it is as before");
        assert_eq!(names(&health.expire("d", at(49))), [""; 0]);
        assert_eq!(names(&health.expire("d", at(50))), ["a"]);
        assert_eq!(health.of("d", "n1", "a"), ("Unknown", None));
        assert_eq!(health.next_expiry("d"), Some(at(100)));
        let forever = report("b", api::HealthStatus::Healthy, "", i64::MAX);
        assert_eq!(names(&health.update("d", socket, &[forever], at(60))), ["b"], "it holds longer");
    }

    #[test]
    fn the_end_of_an_updated_drivers_old_socket_changes_nothing() {
        let (mut health, now) = (Health::default(), Instant::now());
        let healthy = report("a", api::HealthStatus::Healthy, "", -1);
        health.update("d", Path::new("/old"), std::slice::from_ref(&healthy), now);
        health.update("d", Path::new("/new"), &[healthy], now);
        assert_eq!(names(&health.end("d", Path::new("/old"))), [""; 0]);
        assert_eq!(health.of("d", "n1", "a").0, "Healthy");
        assert_eq!(names(&health.end("d", Path::new("/new"))), ["a"]);
        assert_eq!(health.of("d", "n1", "a").0, "Unknown");
    }

    #[test]
    fn a_driver_fills_no_memory_with_devices() {
        let (mut health, now) = (Health::default(), Instant::now());
        let many = |first: usize| -> Vec<api::DeviceHealth> {
            let numbers = first..first + MAX_DEVICES;
            numbers.map(|number| report(&number.to_string(), api::HealthStatus::Unhealthy, "hot", i64::MAX)).collect()
        };
        assert_eq!(health.update("d", Path::new("/d"), &many(0), now).len(), MAX_DEVICES);
        assert_eq!(names(&health.update("d", Path::new("/d"), &many(1), now)), [""; 0]);
        assert_eq!(health.of("d", "n1", "0").0, "Unhealthy");
        assert_eq!(health.of("d", "n1", &MAX_DEVICES.to_string()).0, "Unknown");
        let long = report(&"x".repeat(MAX_NAMES), api::HealthStatus::Healthy, "", 0);
        assert_eq!(names(&health.update("other", Path::new("/d"), &[long], now)), [""; 0]);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(shortened(&"x".repeat(1024)), "x".repeat(1024));
        assert_eq!(shortened(&"x".repeat(1025)), "x".repeat(1021) + "...");
        assert_eq!(shortened(&"é".repeat(600)), "é".repeat(510) + "...");
    }
}
