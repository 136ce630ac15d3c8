//! Getting the image of a container: by its pull policy, with the pod's pull secrets, and with back-off
//! after a failure. A pull runs beside the worker, which is woken when it ends; nothing here blocks one.

mod credentials;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod, Secret};
use corten_client::Client;
use corten_cri::v1 as cri;
use jiff::Timestamp;
use tokio::task::JoinHandle;

use crate::backoff::{Backoffs, go_millis};
use crate::container::security::ImageUser;
use crate::cri::Runtime;
use crate::error::{Error, Result};
use crate::events::{Events, NORMAL, WARNING};
use crate::pods::spec;
use crate::pods::status::Waiting;
use crate::pods::waker::Waker;

/// How far the image of a container is.
#[derive(Debug)]
pub enum Progress {
    Ready(ReadyImage),
    /// A pull is on its way; the worker is woken at its end.
    Pulling,
    /// Not now: the reason, and when to try again.
    Failed {
        waiting: Waiting,
        retry_at: Option<Timestamp>,
    },
}

#[derive(Clone, Debug)]
pub struct ReadyImage {
    /// What the container is created from.
    pub reference: String,
    pub user: ImageUser,
}

/// The pulls of one pod, by container.
#[derive(Default)]
pub struct Pulls {
    going: HashMap<String, JoinHandle<Result<Pulled>>>,
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
    /// As the waiting message shows it during the back-off.
    error: String,
    told: bool,
}

/// What a pull needs from its surroundings.
pub struct Request<'a> {
    pub runtime: &'a Runtime,
    pub client: &'a Client,
    pub events: &'a Events,
    pub waker: &'a Waker,
    pub pod: &'a Arc<Pod>,
    pub container: &'a Container,
    pub sandbox_config: &'a cri::PodSandboxConfig,
    pub now: Timestamp,
}

impl Pulls {
    /// The image if it is there; otherwise sees to it that it is on its way.
    pub async fn ensure(&mut self, request: &Request<'_>) -> Progress {
        let name = &request.container.name;
        if let Some(pull) = self.going.remove(name) {
            if !pull.is_finished() {
                self.going.insert(name.clone(), pull);
                return Progress::Pulling;
            }
            let result = pull.await.unwrap_or_else(|error| Err(Error::pod(format!("pull ended: {error}"))));
            return self.conclude(request, result);
        }
        let image = request.container.image.clone().unwrap_or_default();
        let policy = request.container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        if policy != "Always" {
            match find(request.runtime, &image).await {
                Ok(Some(ready)) => return self.already_present(request, &image, ready),
                Ok(None) if policy == "Never" => return never_pulled(request, &image),
                Ok(None) => {}
                Err(error) => return inspect_failed(request, &image, &error),
            }
        }
        if let Some(backing_off) = self.backing_off(request, &image) {
            return backing_off;
        }
        self.start(request, image);
        Progress::Pulling
    }

    /// Stops every pull of the pod.
    pub fn abort(&mut self) {
        for (_, pull) in self.going.drain() {
            pull.abort();
        }
    }

    fn already_present(&mut self, request: &Request<'_>, image: &str, ready: ReadyImage) -> Progress {
        let message = format!("Container image {image:?} already present on machine and can be accessed by the pod");
        request.events.container(request.pod, &request.container.name, NORMAL, "Pulled", &message);
        self.failures.remove(&request.container.name);
        Progress::Ready(ready)
    }

    fn backing_off(&mut self, request: &Request<'_>, image: &str) -> Option<Progress> {
        let name = &request.container.name;
        let failure = self.failures.get_mut(name)?;
        let until = self.backoffs.until(name, failure.at, request.now)?;
        let message = format!("Back-off pulling image {image:?}");
        if !failure.told {
            failure.told = true;
            request.events.container(request.pod, name, NORMAL, "BackOff", &message);
            request.events.container(request.pod, name, WARNING, "Failed", "Error: ImagePullBackOff");
        }
        let waiting = Waiting { reason: "ImagePullBackOff".into(), message: format!("{message}: {}", failure.error) };
        Some(Progress::Failed { waiting, retry_at: Some(until) })
    }

    fn start(&mut self, request: &Request<'_>, image: String) {
        let name = request.container.name.clone();
        request.events.container(request.pod, &name, NORMAL, "Pulling", &format!("Pulling image {image:?}"));
        let pull = Pull {
            runtime: request.runtime.clone(),
            client: request.client.clone(),
            events: request.events.clone(),
            pod: request.pod.clone(),
            container: name.clone(),
            image,
            sandbox_config: request.sandbox_config.clone(),
        };
        let waker = request.waker.clone();
        let task = tokio::spawn(async move {
            let result = pull.run().await;
            waker.wake();
            result
        });
        self.going.insert(name, task);
    }

    fn conclude(&mut self, request: &Request<'_>, result: Result<Pulled>) -> Progress {
        let name = &request.container.name;
        match result {
            Ok(pulled) => {
                self.failures.remove(name);
                self.backoffs.forget(name);
                Progress::Ready(pulled.image)
            }
            Err(error) => {
                let image = request.container.image.clone().unwrap_or_default();
                let message = error.to_string();
                let told = format!("Failed to pull image {image:?}: {message}");
                request.events.container(request.pod, name, WARNING, "Failed", &told);
                request.events.container(request.pod, name, WARNING, "Failed", "Error: ErrImagePull");
                self.backoffs.next(name, request.now);
                let error = format!("ErrImagePull: {message}");
                self.failures.insert(name.clone(), Failure { at: request.now, error, told: false });
                let waiting = Waiting { reason: "ErrImagePull".into(), message };
                Progress::Failed { waiting, retry_at: self.backoffs.until(name, request.now, request.now) }
            }
        }
    }
}

fn never_pulled(request: &Request<'_>, image: &str) -> Progress {
    let message = format!("Container image {image:?} is not present with pull policy of Never");
    let name = &request.container.name;
    request.events.container(request.pod, name, WARNING, "ErrImageNeverPull", &message);
    request.events.container(request.pod, name, WARNING, "Failed", "Error: ErrImageNeverPull");
    Progress::Failed { waiting: Waiting { reason: "ErrImageNeverPull".into(), message }, retry_at: None }
}

fn inspect_failed(request: &Request<'_>, image: &str, error: &Error) -> Progress {
    let message = format!("Failed to inspect image {image:?}: {error}");
    request.events.container(request.pod, &request.container.name, WARNING, "InspectFailed", &message);
    Progress::Failed { waiting: Waiting { reason: "ImageInspectError".into(), message }, retry_at: None }
}

fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: with_default_tag(image), user_specified_image: image.to_owned(), ..Default::default() }
}

async fn find(runtime: &Runtime, image: &str) -> Result<Option<ReadyImage>> {
    Ok(runtime.image(image_spec(image)).await?.map(ready))
}

fn ready(image: cri::Image) -> ReadyImage {
    ReadyImage {
        user: ImageUser { uid: image.uid.map(|uid| uid.value), username: image.username },
        reference: image.id,
    }
}

/// One pull, with all it needs of its own.
struct Pull {
    runtime: Runtime,
    client: Client,
    events: Events,
    pod: Arc<Pod>,
    container: String,
    image: String,
    sandbox_config: cri::PodSandboxConfig,
}

impl Pull {
    async fn run(&self) -> Result<Pulled> {
        let begun = Instant::now();
        let candidates = credentials::lookup(&self.secrets().await, &self.image);
        let reference = self.try_each(candidates).await?;
        let image = self.runtime.image(image_spec(&self.image)).await?;
        let took = go_millis(begun.elapsed());
        let size = image.as_ref().map_or(0, |image| image.size);
        let message = format!(
            "Successfully pulled image {:?} in {took} ({took} including waiting). Image size: {size} bytes.",
            self.image
        );
        self.events.container(&self.pod, &self.container, NORMAL, "Pulled", &message);
        let image = image.map(ready).unwrap_or(ReadyImage { reference, user: ImageUser::default() });
        Ok(Pulled { image })
    }

    /// Tries the credentials that fit the registry one after the other, or none at all.
    async fn try_each(&self, candidates: Vec<cri::AuthConfig>) -> Result<String> {
        let mut attempts: Vec<Option<cri::AuthConfig>> = candidates.into_iter().map(Some).collect();
        if attempts.is_empty() {
            attempts.push(None);
        }
        let mut last = Err(Error::pod("no attempt was made"));
        for auth in attempts {
            last = self.runtime.pull_image(image_spec(&self.image), auth, self.sandbox_config.clone()).await;
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

/// An image without tag and digest means its `latest`.
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
