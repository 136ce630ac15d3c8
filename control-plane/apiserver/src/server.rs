//! The API server as a value: its parts, and their assembly.

use std::sync::Arc;
use std::time::Duration;

use corten_admission::Chain;
use corten_api::Kind;
use corten_store::Store;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::admission::follow_policies;
use crate::aggregation::Aggregation;
use crate::audit::Audit;
use crate::authentication::Authentication;
use crate::authentication::front_proxy::ClientCertificates;
use crate::authentication::revocation::Revocations;
use crate::authorization::Authorization;
use crate::bootstrap;
use crate::config::{Config, KubeletClient, ProxyClient, Trust};
use crate::core::Core;
use crate::custom_resources;
use crate::discovery::Published;
use crate::drain::{Drain, REQUESTS_TIMEOUT};
use crate::encryption::{self, Transformer};
use crate::error::Error;
use crate::flow_control::FlowControl;
use crate::follow::follow;
use crate::health::Health;
use crate::limits::Limits;
use crate::metrics::{AUTHENTICATION_CONFIGURATION, AUTHORIZATION_CONFIGURATION, ENCRYPTION_CONFIGURATION, Metrics};
use crate::proxy::Kubelets;
use crate::registry::{Registry, Stores};
use crate::repair;
use crate::resource_metrics::Gatherer;
use crate::tasks::Tasks;

/// The time that a server has to leave the endpoints of the `kubernetes` Service.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that connections, and then tasks, have to end after the drain.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The API server. All its state is in the store and in caches of the store.
pub struct Server {
    pub(crate) core: Arc<Core>,
    pub(crate) authentication: Arc<Authentication>,
    pub(crate) client_certificates: Arc<ClientCertificates>,
    pub(crate) admission: Chain,
    pub(crate) flow_control: Arc<FlowControl>,
    pub(crate) limits: Limits,
    pub(crate) audit: Audit,
    pub(crate) published: Arc<Published>,
    pub(crate) custom_resources: Arc<custom_resources::Controller>,
    pub(crate) aggregation: Arc<Aggregation>,
    pub(crate) kubelets: Arc<Kubelets>,
    pub(crate) gatherer: Gatherer,
    pub(crate) health: Health,
    pub(crate) drain: Drain,
}

impl Server {
    /// Fills the caches and writes the objects that every cluster must hold. When this returns, the server is ready.
    pub async fn new(config: Config, store: Arc<dyn Store>) -> Result<Arc<Server>, Error> {
        Server::with_stores(config, Stores { main: store, overrides: Vec::new() }).await
    }

    /// Does the same, with stores of their own for some resources.
    pub async fn with_stores(config: Config, stores: Stores) -> Result<Arc<Server>, Error> {
        let tasks = Tasks::default();
        let transformer = Arc::new(Transformer::new(&config)?);
        transformer.reach_plugins().await;
        let registry = Registry::start(stores, &kinds(&config), transformer, &config, &tasks).await?;
        let server = Arc::new(Server::assemble(config, Arc::new(registry), tasks)?);
        bootstrap::run(&server.core).await?;
        server.custom_resources.reconcile().await.map_err(|status| Error::Bootstrap(status.message))?;
        server.flow_control.reconcile(&server.core).await;
        server.client_certificates.revoke(Revocations::cached(&server.core.registry));
        server.start_tasks();
        server.note_configurations();
        server.health.mark_ready();
        Ok(server)
    }

    /// Puts the parts together, the lower ones first.
    fn assemble(config: Config, registry: Arc<Registry>, tasks: Tasks) -> Result<Server, Error> {
        let name = config.hostname.as_deref().map(bootstrap::identity::name);
        let metrics = Arc::new(Metrics::new(name.as_deref()));
        let authorization = Authorization::new(&config, Arc::clone(&registry), Arc::clone(&metrics))?;
        let authentication = Authentication::new(&config, Arc::clone(&registry), Arc::clone(&metrics))?;
        let published = Arc::new(Published::new(config.host_port(), Arc::clone(&registry)));
        let kubelets = Arc::new(Kubelets::new(&config)?);
        let changed = Arc::new(Notify::new());
        Ok(Server {
            authentication: Arc::new(authentication),
            client_certificates: Arc::new(ClientCertificates::new(&config)?),
            admission: Chain::new(
                custom_resources::CustomResourceRules,
                &config.disabled_admission_plugins,
                config.adviser.clone(),
            )
            .map_err(Error::Config)?,
            flow_control: Arc::new(FlowControl::new(
                config.max_requests_inflight + config.max_mutating_requests_inflight,
            )),
            limits: Limits::new(&config),
            audit: Audit::start(config.audit.as_ref(), &tasks)?,
            custom_resources: Arc::new(custom_resources::Controller::new(
                Arc::clone(&registry),
                Arc::clone(&published),
                measured_kinds(&config),
                Arc::clone(&changed),
            )),
            aggregation: Arc::new(Aggregation::new(&config, Arc::clone(&registry), Arc::clone(&published), changed)),
            published,
            gatherer: Gatherer::new(Arc::clone(&kubelets)),
            kubelets,
            health: Health::default(),
            drain: Drain::new(config.shutdown_watch_termination_grace_period),
            core: Arc::new(Core {
                config,
                registry,
                authorization,
                metrics,
                started: jiff::Timestamp::now(),
                stopping: tasks.shutdown.child_token(),
                left: CancellationToken::new(),
                tasks,
            }),
        })
    }

    /// Starts the tasks that run beside the requests until shutdown. They are boxed: one task's code serves all.
    fn start_tasks(&self) {
        let core = || Arc::clone(&self.core);
        let authentication = Arc::clone(&self.authentication);
        let custom_resources = Arc::clone(&self.custom_resources);
        let flow_control = Arc::clone(&self.flow_control);
        let aggregation = Arc::clone(&self.aggregation);
        self.spawn(core(), |core, shutdown| {
            Box::pin(async move {
                let configuration = core.config.encryption_configuration.clone();
                encryption::run(&core.registry.transformer, &core.metrics, configuration, &shutdown).await;
            })
        });
        self.spawn(core(), |core, shutdown| Box::pin(async move { core.authorization.run(&shutdown).await }));
        self.spawn(authentication, |part, shutdown| Box::pin(async move { part.run(&shutdown).await }));
        self.spawn(custom_resources, |part, shutdown| Box::pin(async move { part.run(&shutdown).await }));
        self.spawn((flow_control, core()), |(part, core), shutdown| {
            Box::pin(async move { part.run(&core, &shutdown).await })
        });
        self.spawn((Arc::clone(&self.client_certificates), core()), |(part, core), shutdown| {
            Box::pin(async move { follow_revocations(&part, &core.registry, &shutdown).await })
        });
        self.spawn(aggregation, |part, shutdown| Box::pin(async move { part.run(&shutdown).await }));
        self.spawn(core(), |core, shutdown| Box::pin(async move { follow_policies(&core.registry, &shutdown).await }));
        self.spawn(core(), |core, shutdown| {
            Box::pin(async move { bootstrap::kubernetes_service::keep(&core, &shutdown).await })
        });
        self.spawn(core(), |core, shutdown| Box::pin(async move { bootstrap::identity::keep(&core, &shutdown).await }));
        self.spawn(core(), |core, shutdown| Box::pin(async move { repair::run(&core, &shutdown).await }));
    }

    fn spawn<T>(&self, part: T, run: fn(T, CancellationToken) -> BoxFuture<'static, ()>) {
        self.core.tasks.spawn(run(part, self.core.tasks.shutdown.clone()));
    }

    /// Announces the shutdown: readiness fails, and the endpoints of the `kubernetes` Service lose this server. Returns
    /// after the configured delay, in which clients and load balancers notice.
    pub async fn announce_shutdown(&self) {
        self.core.stopping.cancel();
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, self.core.left.cancelled()).await;
        tokio::time::sleep(self.core.config.shutdown_delay).await;
    }

    /// Returns the longest time from the beginning of a shutdown until `serve` has returned.
    pub fn longest_shutdown(&self) -> Duration {
        let config = &self.core.config;
        let drain = config.shutdown_watch_termination_grace_period.max(REQUESTS_TIMEOUT);
        // Connections and tasks have a time of their own after the drain.
        LEAVE_TIMEOUT + config.shutdown_delay + drain + CLOSE_TIMEOUT * 2
    }

    /// Ends every watch and the feed of the caches. Later requests are answered, but from caches that no longer change.
    pub fn shut_down(&self) {
        self.core.tasks.shutdown.cancel();
    }

    /// Waits until the tasks beside the requests have ended, after `shut_down`.
    pub async fn ended(&self) {
        self.core.tasks.ended().await;
    }

    /// Replaces the client identities towards kubelets and aggregated API servers, after their certificates were
    /// renewed.
    pub fn renew_clients(&self, kubelet: &KubeletClient, proxy: ProxyClient) -> Result<(), Error> {
        self.kubelets.renew(kubelet)?;
        self.aggregation.renew(proxy);
        Ok(())
    }

    /// Replaces the authorities and keys after a rotation. Connections whose certificates are no longer trusted are
    /// closed.
    pub async fn trust(&self, trust: &Trust) -> Result<(), Error> {
        self.core.registry.transformer.replace_keys(&trust.encryption_keys).await?;
        self.authentication.tokens.replace_keys(&trust.service_account_keys)?;
        self.client_certificates.replace(&trust.client_ca, trust.requestheader_ca.as_deref())?;
        bootstrap::publish_authorities(&self.core, trust).await
    }

    /// Records the metrics of the configurations that the server was started with.
    fn note_configurations(&self) {
        let config = &self.core.config;
        let authorization = config.authorization.as_ref().map(|authorization| &authorization.configuration);
        for (of, text) in [
            (&AUTHENTICATION_CONFIGURATION, config.authentication_configuration.as_ref()),
            (&AUTHORIZATION_CONFIGURATION, authorization),
            (&ENCRYPTION_CONFIGURATION, config.encryption_configuration.as_ref()),
        ] {
            if let Some(text) = text {
                self.core.metrics.configured(of, &text.borrow());
            }
        }
    }
}

/// Follows the ConfigMap of revoked nodes until shutdown.
async fn follow_revocations(certificates: &ClientCertificates, registry: &Registry, shutdown: &CancellationToken) {
    let reconcile = || {
        certificates.revoke(Revocations::cached(registry));
        Box::pin(async { Ok(Vec::new()) }) as BoxFuture<'_, _>
    };
    follow(registry, "", "configmaps", &reconcile, shutdown).await;
}

impl Drop for Server {
    fn drop(&mut self) {
        self.core.tasks.abort();
    }
}

/// Returns the built-in kinds. The kinds of the network are served only where there are nodes.
fn kinds(config: &Config) -> Vec<Arc<Kind>> {
    let network = config.kubelet.iter().flat_map(|_| corten_api::network_kinds()).map(Arc::new);
    corten_api::kinds_at(config.emulated_version).into_iter().chain(network).collect()
}

/// Returns the kinds of `metrics.k8s.io`, which a server with access to kubelets serves.
fn measured_kinds(config: &Config) -> Vec<Arc<Kind>> {
    config.kubelet.iter().flat_map(|_| corten_api::metrics_kinds()).map(Arc::new).collect()
}
