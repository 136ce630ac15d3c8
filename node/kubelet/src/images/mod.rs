//! Provides the image of a container: by its pull policy, with the pod's pull secrets, and with back-off after a
//! failure. A pull runs beside the worker and wakes it at the end; nothing here blocks a worker.

pub mod collect;
pub(crate) mod credentials;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod, Secret, Volume};
use corten_client::Client;
use corten_cri::v1 as cri;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::{Backoffs, go_millis};
use crate::container::security::ImageUser;
use crate::cri::Runtime;
use crate::error::{Error, Result};
use crate::events::{EventType, Events, NORMAL, WARNING};
use crate::pod::spec;
use crate::pod::waiting::Waiting;
use crate::pod::waker::Waker;

/// The state of a container's image.
#[derive(Debug)]
pub enum Progress {
    Ready(ReadyImage),
    /// A pull is running; it wakes the worker at its end.
    Pulling,
    /// The pull failed: the reason, and the time of the next attempt.
    Failed {
        waiting: Waiting,
        retry_at: Option<Timestamp>,
    },
}

#[derive(Clone, Debug)]
pub struct ReadyImage {
    /// The image reference for the creation of the container.
    pub reference: String,
    pub user: ImageUser,
}

/// An image that a container needs: its own, or that of an image volume.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The key of the image in its pod: the container, and the volume of an image volume.
    key: String,
    /// The container that the events are about.
    container: String,
    image: String,
    policy: String,
}

impl Wanted {
    pub fn of_container(container: &Container) -> Wanted {
        Wanted {
            key: container.name.clone(),
            container: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            policy: container.image_pull_policy.clone().unwrap_or_else(|| "IfNotPresent".into()),
        }
    }

    /// Returns the image of an image volume; none of other volumes.
    pub fn of_volume(container: &Container, volume: &Volume) -> Option<Wanted> {
        let source = volume.image.as_ref()?;
        Some(Wanted {
            key: format!("{}/{}", container.name, volume.name),
            container: container.name.clone(),
            image: source.reference.clone().unwrap_or_default(),
            policy: source.pull_policy.clone().unwrap_or_else(|| "IfNotPresent".into()),
        })
    }
}

/// The pulls of one pod, by key.
#[derive(Default)]
pub struct Pulls {
    going: HashMap<String, AbortOnDropHandle<Result<Pulled>>>,
    /// Images that are present for a container that waits for others.
    done: HashMap<String, ReadyImage>,
    failures: HashMap<String, Failure>,
    backoffs: Backoffs,
}

impl Drop for Pulls {
    fn drop(&mut self) {
        self.abort();
    }
}

struct Pulled {
    image: ReadyImage,
}

struct Failure {
    at: Timestamp,
    /// The error in the waiting message during the back-off.
    error: String,
    recorded: bool,
}

/// The parts that a pull uses.
pub struct Request<'a> {
    pub runtime: &'a Runtime,
    pub client: &'a Client,
    pub events: &'a Events,
    pub waker: &'a Waker,
    pub slots: &'a Arc<Semaphore>,
    pub pod: &'a Arc<Pod>,
    pub wanted: &'a Wanted,
    pub sandbox_config: &'a cri::PodSandboxConfig,
    pub now: Timestamp,
}

impl Request<'_> {
    fn record_event(&self, type_: EventType, reason: &str, message: &str) {
        self.events.container(self.pod, &self.wanted.container, type_, reason, message);
    }
}

impl Pulls {
    /// Returns the image if it is present; otherwise starts a pull.
    pub async fn ensure(&mut self, request: &Request<'_>) -> Progress {
        let Wanted { key, image, policy, .. } = request.wanted;
        if let Some(image) = self.done.get(key) {
            return Progress::Ready(image.clone());
        }
        if let Some(pull) = self.going.remove(key) {
            if !pull.is_finished() {
                self.going.insert(key.clone(), pull);
                return Progress::Pulling;
            }
            let result = pull.await.unwrap_or_else(|error| Err(Error::pod(format!("pull ended: {error}"))));
            return self.conclude(request, result);
        }
        if policy != "Always" {
            match find(request.runtime, image).await {
                Ok(Some(ready)) => return self.already_present(request, ready),
                Ok(None) if policy == "Never" => return never_pulled(request),
                Ok(None) => {}
                Err(error) => return inspect_failed(request, &error),
            }
        }
        if let Some(backing_off) = self.backing_off(request) {
            return backing_off;
        }
        self.start(request);
        Progress::Pulling
    }

    /// Forgets the images of a created container: its next start requests them again.
    pub fn used(&mut self, container: &str) {
        let volumes = format!("{container}/");
        self.done.retain(|key, _| key != container && !key.starts_with(&volumes));
    }

    /// Stops all pulls of the pod.
    pub fn abort(&mut self) {
        self.going.clear();
    }

    fn already_present(&mut self, request: &Request<'_>, ready: ReadyImage) -> Progress {
        let image = &request.wanted.image;
        let message = format!("Container image {image:?} already present on machine and can be accessed by the pod");
        request.record_event(NORMAL, "Pulled", &message);
        self.failures.remove(&request.wanted.key);
        self.done.insert(request.wanted.key.clone(), ready.clone());
        Progress::Ready(ready)
    }

    fn backing_off(&mut self, request: &Request<'_>) -> Option<Progress> {
        let Wanted { key, image, .. } = request.wanted;
        let failure = self.failures.get_mut(key)?;
        let until = self.backoffs.until(key, failure.at, request.now)?;
        let message = format!("Back-off pulling image {image:?}");
        if !failure.recorded {
            failure.recorded = true;
            request.record_event(NORMAL, "BackOff", &message);
            request.record_event(WARNING, "Failed", "Error: ImagePullBackOff");
        }
        let waiting = Waiting { reason: "ImagePullBackOff".into(), message: format!("{message}: {}", failure.error) };
        Some(Progress::Failed { waiting, retry_at: Some(until) })
    }

    fn start(&mut self, request: &Request<'_>) {
        request.record_event(NORMAL, "Pulling", &format!("Pulling image {:?}", request.wanted.image));
        let pull = Pull {
            runtime: request.runtime.clone(),
            client: request.client.clone(),
            events: request.events.clone(),
            slots: request.slots.clone(),
            pod: request.pod.clone(),
            wanted: request.wanted.clone(),
            sandbox_config: request.sandbox_config.clone(),
        };
        let waker = request.waker.clone();
        let task = tokio::spawn(async move {
            let result = pull.run().await;
            waker.wake();
            result
        });
        self.going.insert(request.wanted.key.clone(), AbortOnDropHandle::new(task));
    }

    fn conclude(&mut self, request: &Request<'_>, result: Result<Pulled>) -> Progress {
        let Wanted { key, image, .. } = request.wanted;
        match result {
            Ok(pulled) => {
                self.failures.remove(key);
                self.backoffs.forget(key);
                self.done.insert(key.clone(), pulled.image.clone());
                Progress::Ready(pulled.image)
            }
            Err(error) => {
                let message = error.to_string();
                let event = format!("Failed to pull image {image:?}: {message}");
                request.record_event(WARNING, "Failed", &event);
                request.record_event(WARNING, "Failed", "Error: ErrImagePull");
                self.backoffs.next(key, request.now);
                let error = format!("ErrImagePull: {message}");
                self.failures.insert(key.clone(), Failure { at: request.now, error, recorded: false });
                let waiting = Waiting { reason: "ErrImagePull".into(), message };
                Progress::Failed { waiting, retry_at: self.backoffs.until(key, request.now, request.now) }
            }
        }
    }
}

fn never_pulled(request: &Request<'_>) -> Progress {
    let message = format!("Container image {:?} is not present with pull policy of Never", request.wanted.image);
    request.record_event(WARNING, "ErrImageNeverPull", &message);
    request.record_event(WARNING, "Failed", "Error: ErrImageNeverPull");
    Progress::Failed { waiting: Waiting { reason: "ErrImageNeverPull".into(), message }, retry_at: None }
}

fn inspect_failed(request: &Request<'_>, error: &Error) -> Progress {
    let message = format!("Failed to inspect image {:?}: {error}", request.wanted.image);
    request.record_event(WARNING, "InspectFailed", &message);
    Progress::Failed { waiting: Waiting { reason: "ImageInspectError".into(), message }, retry_at: None }
}

fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: with_default_tag(image), user_specified_image: image.to_owned(), ..Default::default() }
}

async fn find(runtime: &Runtime, image: &str) -> Result<Option<ReadyImage>> {
    Ok(runtime.image(image_spec(image)).await?.map(ready))
}

fn ready(image: cri::Image) -> ReadyImage {
    ReadyImage { user: ImageUser::of(&image), reference: image.id }
}

/// Returns the size class of an image in upstream's pull metrics.
fn size_class(bytes: u64) -> &'static str {
    const MB: u64 = 1 << 20;
    match bytes {
        0 => "N/A",
        _ if bytes <= 10 * MB => "0-10MB",
        _ if bytes <= 100 * MB => "10MB-100MB",
        _ if bytes <= 500 * MB => "100MB-500MB",
        _ if bytes <= 1024 * MB => "500MB-1GB",
        _ if bytes <= 5 * 1024 * MB => "1GB-5GB",
        _ if bytes <= 10 * 1024 * MB => "5GB-10GB",
        _ if bytes <= 20 * 1024 * MB => "10GB-20GB",
        _ if bytes <= 30 * 1024 * MB => "20GB-30GB",
        _ if bytes <= 40 * 1024 * MB => "30GB-40GB",
        _ if bytes <= 60 * 1024 * MB => "40GB-60GB",
        _ if bytes <= 100 * 1024 * MB => "60GB-100GB",
        _ => "GT100GB",
    }
}

/// One pull, with all that it owns.
struct Pull {
    runtime: Runtime,
    client: Client,
    events: Events,
    slots: Arc<Semaphore>,
    pod: Arc<Pod>,
    wanted: Wanted,
    sandbox_config: cri::PodSandboxConfig,
}

impl Pull {
    async fn run(&self) -> Result<Pulled> {
        let queued = Instant::now();
        // The semaphore is never closed; an error would only allow one more pull at a time.
        let _slot = self.slots.acquire().await;
        let begun = Instant::now();
        let candidates = credentials::lookup(&self.secrets().await, &self.wanted.image);
        let reference = self.try_each(candidates).await?;
        let image = self.runtime.image(image_spec(&self.wanted.image)).await?;
        let took = go_millis(begun.elapsed());
        let waited = go_millis(queued.elapsed());
        let size = image.as_ref().map_or(0, |image| image.size);
        let message = format!(
            "Successfully pulled image {:?} in {took} ({waited} including waiting). Image size: {size} bytes.",
            self.wanted.image
        );
        self.runtime.metrics().observe(&crate::metrics::IMAGE_PULL_SECONDS, &[size_class(size)], begun.elapsed());
        self.events.container(&self.pod, &self.wanted.container, NORMAL, "Pulled", &message);
        let image = image.map(ready).unwrap_or(ReadyImage { reference, user: ImageUser::ROOT });
        Ok(Pulled { image })
    }

    /// Tries the matching credentials one after the other, or none.
    async fn try_each(&self, candidates: Vec<cri::AuthConfig>) -> Result<String> {
        let mut attempts: Vec<Option<cri::AuthConfig>> = candidates.into_iter().map(Some).collect();
        if attempts.is_empty() {
            attempts.push(None);
        }
        let mut last = Err(Error::pod("no attempt was made"));
        for auth in attempts {
            last = self.runtime.pull_image(image_spec(&self.wanted.image), auth, self.sandbox_config.clone()).await;
            if last.is_ok() {
                break;
            }
        }
        last
    }

    async fn secrets(&self) -> Vec<Secret> {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for reference in spec::spec(&self.pod).image_pull_secrets.iter().flatten() {
            match self.client.get::<Secret>(spec::namespace(&self.pod), &reference.name).await {
                Ok(secret) => found.push(secret),
                Err(_) => missing.push(reference.name.clone()),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.events.pod(&self.pod, WARNING, "FailedToRetrieveImagePullSecret", &message);
        }
        found
    }
}

/// Adds `latest` to an image without tag and digest.
pub fn with_default_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if image.contains('@') || last.contains(':') { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_tag_is_latest() {
        for (image, full) in [
            ("busybox", "busybox:latest"),
            ("busybox:1.36", "busybox:1.36"),
            ("reg:5000/busybox", "reg:5000/busybox:latest"),
            ("a@sha256:00", "a@sha256:00"),
        ] {
            assert_eq!(with_default_tag(image), full);
        }
    }
}
