//! The users of a simulated cluster: they create its workloads, and load it while it is measured.

use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::apps::v1::Deployment as DeploymentKind;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Pod as PodKind, Service};
use corten_client::{Client, DeleteOptions, ListOptions, Patch};
use corten_meta::{Key, Value};
use futures::StreamExt as _;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::startup::StartupTimes;
use crate::workload::{self, Deployment};
use crate::{Config, Error, Load};

/// The requests of users that are under way at once.
const AT_ONCE: usize = 32;
/// The creations and deletions of the churn that are under way at once. A server that is slower gets less churn.
const CHURN_AT_ONCE: usize = 512;
/// The interval of rollouts, and of lists.
const INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which a deletion is observed.
const POLL: Duration = Duration::from_secs(1);

/// The users of the cluster.
pub struct Users {
    pub config: Arc<Config>,
    pub client: Client,
    pub startup: Arc<StartupTimes>,
}

impl Users {
    /// Creates the namespaces, Services and Deployments.
    pub async fn create(&self) -> Result<(), Error> {
        let config = &self.config;
        let namespaces = workload::namespaces(config);
        let objects = namespaces.iter().map(|name| workload::namespace(config, name)).collect();
        self.each(objects, Kind::Namespace).await?;
        if workload::has(config, Load::Services) {
            let of_workloads = namespaces.iter().filter(|name| **name != workload::churn_namespace(config));
            self.each(of_workloads.map(|name| workload::service(name)).collect(), Kind::Service).await?;
        }
        let deployments = workload::deployments(config);
        let objects = deployments.iter().map(|one| workload::deployment(config, one)).collect();
        self.each(objects, Kind::Deployment).await
    }

    /// Creates objects, of which some may be there from an earlier run.
    async fn each(&self, objects: Vec<Value>, kind: Kind) -> Result<(), Error> {
        let create = |object: Value| {
            let client = self.client.dynamic(&kind.resource());
            async move {
                let namespace = corten_meta::namespace(&object).to_owned();
                match client.post(&namespace, &object).await {
                    Err(error) if !error.is_already_exists() => {
                        let name = corten_meta::name(&object);
                        Err(Error::api(format!("{kind:?} {name} cannot be created"))(error))
                    }
                    _ => Ok(()),
                }
            }
        };
        let requests: Vec<_> = objects.into_iter().map(create).collect();
        let mut requests = futures::stream::iter(requests).buffer_unordered(AT_ONCE);
        while let Some(created) = requests.next().await {
            created?;
        }
        Ok(())
    }

    /// Loads the cluster until the shutdown.
    pub async fn load(&self, shutdown: &CancellationToken) {
        let wanted = |load| workload::has(&self.config, load);
        let loads = async {
            tokio::join!(
                self.churn(),
                async {
                    if wanted(Load::Rollouts) {
                        self.rollouts().await;
                    }
                },
                async {
                    if wanted(Load::Lists) {
                        self.lists().await;
                    }
                }
            )
        };
        let _ = shutdown.run_until_cancelled(loads).await;
    }

    /// Creates pods at the rate of the churn, and deletes each after its lifetime.
    async fn churn(&self) {
        if self.config.churn <= 0.0 {
            return;
        }
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / self.config.churn));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut requests = JoinSet::new();
        let first = first_number();
        for number in first.. {
            ticks.tick().await;
            while requests.try_join_next().is_some() {}
            if requests.len() >= CHURN_AT_ONCE {
                requests.join_next().await;
            }
            let created = self.create_churn_pod(number);
            let old = number.checked_sub((self.config.churn_lifetime.as_secs_f64() * self.config.churn) as u64);
            let deleted = old.filter(|old| *old >= first).map(|old| self.delete_churn_pod(old));
            requests.spawn(async move {
                created.await;
                if let Some(deleted) = deleted {
                    deleted.await;
                }
            });
        }
    }

    fn create_churn_pod(&self, number: u64) -> impl Future<Output = ()> + Send + 'static {
        let pod = workload::churn_pod(&self.config, number);
        let key = Key::new(corten_meta::namespace(&pod), corten_meta::name(&pod));
        let startup = self.startup.clone();
        let pods = self.client.of::<PodKind>();
        async move {
            startup.creating(key.clone());
            if let Err(error) = pods.post(&key.namespace, &pod).await {
                tracing::debug!(%key, %error, "pod not created");
                startup.forget(&key);
            }
        }
    }

    fn delete_churn_pod(&self, number: u64) -> impl Future<Output = ()> + Send + 'static {
        let namespace = workload::churn_namespace(&self.config);
        let pods = self.client.of::<PodKind>();
        async move {
            let name = workload::churn_name(number);
            if let Err(error) = pods.delete(&namespace, &name, &DeleteOptions::default()).await {
                tracing::debug!(name, %error, "pod not deleted");
            }
        }
    }

    /// Restarts one Deployment after the other.
    async fn rollouts(&self) {
        let deployments = workload::deployments(&self.config);
        for (number, Deployment { namespace, name, .. }) in deployments.iter().cycle().enumerate() {
            tokio::time::sleep(INTERVAL).await;
            let restart = json!({"corten.dev/restarted": number.to_string()});
            let patch = Patch::Strategic(json!({"spec": {"template": {"metadata": {"annotations": restart}}}}));
            if let Err(error) = self.client.send_patch::<DeploymentKind>(namespace, name, &patch, None).await {
                tracing::debug!(name, %error, "deployment not restarted");
            }
        }
    }

    /// Lists all pods at once, as clients do that have no cache, and does not read the answer.
    async fn lists(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Err(error) = self.client.get_raw("/api/v1/pods").await {
                tracing::debug!(%error, "pods not listed");
            }
        }
    }

    /// Deletes all namespaces, and waits until they are gone.
    pub async fn remove(&self, progress: &(dyn Fn(String) + Sync)) -> Result<(), Error> {
        let names = workload::namespaces(&self.config);
        for name in &names {
            match self.client.delete::<Namespace>("", name, &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    return Err(Error::api(format!("namespace {name} cannot be deleted"))(error));
                }
                _ => {}
            }
        }
        let selector = format!("{}={}", crate::node::SIMULATION, self.config.prefix);
        let end = Instant::now() + self.config.patience;
        let mut last = names.len();
        while last > 0 {
            let left = self.client.of::<Namespace>().list_objects("", &ListOptions::labels(&selector)).await;
            let left = left.map_err(Error::api("namespaces cannot be listed"))?.items.len();
            if left == 0 {
                break;
            }
            if left != last {
                progress(format!("{left} namespaces are being deleted"));
            }
            last = left;
            if Instant::now() > end {
                return Err(Error::Late(format!("{left} namespaces are still there: kubectl get ns -l {selector}")));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

/// Returns the number of the first pod of a churn: later than those of earlier runs, which may still be there.
fn first_number() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// The kinds that users create.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Namespace,
    Service,
    Deployment,
}

impl Kind {
    fn resource(self) -> corten_client::Resource {
        match self {
            Kind::Namespace => corten_client::Resource::of::<Namespace>(),
            Kind::Service => corten_client::Resource::of::<Service>(),
            Kind::Deployment => corten_client::Resource::of::<DeploymentKind>(),
        }
    }
}
