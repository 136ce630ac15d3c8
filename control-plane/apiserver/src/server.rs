//! The API server as a value: its parts, how it is built, and calls from inside the process.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use corten_api::Kind;
use corten_meta::{Object, Status, Value};
use corten_store::Store;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::admission::{Chain, follow_policies};
use crate::aggregation::{self, Aggregation};
use crate::audit::Audit;
use crate::authentication::front_proxy::ClientCertificates;
use crate::authentication::oidc::{self, Issuers};
use crate::authentication::token::Tokens;
use crate::authentication::webhook::TokenWebhook;
use crate::authentication::{Identity, Peer, User};
use crate::authorization::rbac::Rbac;
use crate::authorization::{self, Authorizers};
use crate::body::{Body, Reply, RequestBody};
use crate::bootstrap;
use crate::config::{Config, KubeletClient, ProxyClient};
use crate::custom_resources;
use crate::discovery::Discovery;
use crate::encryption::{self, Transformer};
use crate::error::Error;
use crate::flow_control::{self, FlowControl};
use crate::health::Health;
use crate::metrics::{AUTHENTICATION_CONFIGURATION, AUTHORIZATION_CONFIGURATION, ENCRYPTION_CONFIGURATION, Metrics};
use crate::openapi::OpenApi;
use crate::pipeline::Limits;
use crate::proxy::Kubelets;
use crate::registry::{Registry, Resource};
use crate::resource_metrics::Gatherer;

/// The API server. All its state is in the store and in caches of the store.
pub struct Server {
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) tokens: Tokens,
    pub(crate) authorizers: ArcSwap<Authorizers>,
    pub(crate) rbac: Rbac,
    pub(crate) admission: Chain,
    pub(crate) custom_kinds: custom_resources::Kinds,
    pub(crate) discovery: ArcSwap<Discovery>,
    pub(crate) openapi: Arc<OpenApi>,
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) limits: Limits,
    pub(crate) flow_control: FlowControl,
    pub(crate) aggregation: Aggregation,
    pub(crate) audit: Audit,
    pub(crate) issuers: ArcSwap<Issuers>,
    pub(crate) token_webhook: Option<TokenWebhook>,
    pub(crate) client_certificates: ClientCertificates,
    pub(crate) kubelets: Kubelets,
    /// Who this server is towards aggregated ones.
    pub(crate) proxy_client: ArcSwapOption<ProxyClient>,
    pub(crate) gatherer: Gatherer,
    pub(crate) started: jiff::Timestamp,
    pub(crate) shutdown: CancellationToken,
}

impl Server {
    /// Fills the caches and writes what every cluster must hold. When this returns, the server is ready.
    pub async fn new(config: Config, store: Arc<dyn Store>) -> Result<Arc<Server>, Error> {
        let shutdown = CancellationToken::new();
        let transformer = Arc::new(Transformer::new(&config)?);
        transformer.reach_plugins().await;
        let kinds = kinds(&config);
        let registry = Registry::start(store, &kinds, transformer, &config, shutdown.clone()).await?;
        let server = Arc::new(Server {
            tokens: Tokens::new(&config)?,
            authorizers: ArcSwap::from_pointee(Authorizers::new(&config)?),
            rbac: Rbac::new(rbac_caches(&registry)?),
            admission: Chain::new(&config.disabled_admission_plugins)?,
            custom_kinds: custom_resources::Kinds::default(),
            discovery: ArcSwap::from_pointee(Discovery::new(
                &config.host_port(),
                &registry.resources().ordered,
                &[],
                &HashSet::new(),
                &BTreeSet::new(),
            )),
            openapi: Arc::new(OpenApi::new(&registry.resources().ordered)),
            health: Health::default(),
            metrics: Metrics::default(),
            limits: Limits::new(&config),
            flow_control: FlowControl::new(config.max_requests_inflight + config.max_mutating_requests_inflight),
            aggregation: Aggregation::default(),
            issuers: ArcSwap::from_pointee(Issuers::new(&config)?),
            token_webhook: config.token_webhook.as_ref().map(TokenWebhook::new).transpose()?,
            audit: Audit::start(config.audit.as_ref(), shutdown.clone())?,
            client_certificates: ClientCertificates::new(&config)?,
            kubelets: Kubelets::new(&config)?,
            proxy_client: ArcSwapOption::from(config.proxy_client.clone().map(Arc::new)),
            gatherer: Gatherer::default(),
            started: jiff::Timestamp::now(),
            registry,
            config,
            shutdown,
        });
        bootstrap::run(&server).await?;
        custom_resources::reconcile(&server).await.map_err(|status| Error::Bootstrap(status.message))?;
        flow_control::reconcile(&server).await;
        server.start_tasks();
        server.note_configurations();
        server.health.mark_ready();
        Ok(server)
    }

    /// What runs beside the requests until shutdown. Boxed: one task's code serves all.
    fn start_tasks(self: &Arc<Self>) {
        let (server, shutdown) = (|| Arc::downgrade(self), || self.shutdown.clone());
        let (transformer, configuration) =
            (Arc::clone(&self.registry.transformer), self.config.encryption_configuration.clone());
        let tasks: [BoxFuture<'static, ()>; 9] = [
            Box::pin(encryption::run(server(), transformer, configuration, shutdown())),
            Box::pin(custom_resources::run(server(), shutdown())),
            Box::pin(flow_control::run(server(), shutdown())),
            Box::pin(authorization::run(server(), shutdown())),
            Box::pin(oidc::run(server(), shutdown())),
            Box::pin(aggregation::run(server(), shutdown())),
            Box::pin(follow_policies(server(), shutdown())),
            Box::pin(bootstrap::kubernetes_service::keep(server(), shutdown())),
            Box::pin(bootstrap::identity::keep(server(), shutdown())),
        ];
        for task in tasks {
            tokio::spawn(task);
        }
    }

    /// Ends every watch and the feed of the caches. Requests after this are answered, but see no news.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Is this client towards kubelets and aggregated API servers from now on: certificates are renewed.
    pub fn renew_clients(&self, kubelet: &KubeletClient, proxy: ProxyClient) -> Result<(), Error> {
        self.kubelets.renew(kubelet)?;
        self.proxy_client.store(Some(Arc::new(proxy)));
        self.aggregation.registrations.notify_one();
        Ok(())
    }

    /// A way to call this server as `user`, without a socket and through the same pipeline.
    pub fn in_process(self: &Arc<Self>, user: User) -> InProcess {
        let identity = Identity::InProcess(user.authenticated());
        InProcess { server: Arc::clone(self), peer: Arc::new(Peer { identity, ..Peer::default() }) }
    }

    /// The hash of the name that this server has in the API; who has none has no hash.
    pub(crate) fn id_hash(&self) -> String {
        let name = self.config.hostname.as_deref().map(bootstrap::identity::name);
        crate::metrics::hash(&name.unwrap_or_default())
    }

    /// Notes the configurations that the server was started with.
    fn note_configurations(&self) {
        let config = &self.config;
        let authorization = config.authorization.as_ref().map(|authorization| &authorization.configuration);
        for (of, text) in [
            (&AUTHENTICATION_CONFIGURATION, config.authentication_configuration.as_ref()),
            (&AUTHORIZATION_CONFIGURATION, authorization),
            (&ENCRYPTION_CONFIGURATION, config.encryption_configuration.as_ref()),
        ] {
            if let Some(text) = text {
                self.metrics.configured(of, self, &text.borrow());
            }
        }
    }

    /// Makes the discovery documents anew, of what is served here and elsewhere.
    pub(crate) fn publish_discovery(&self) {
        let address = self.config.host_port();
        let (resources, terminating) = (self.registry.resources(), self.custom_kinds.terminating());
        let announced = self.custom_kinds.announced();
        let remote = self.aggregation.known();
        let discovery = Discovery::new(&address, &resources.ordered, &remote, &terminating, &announced);
        self.discovery.store(Arc::new(discovery));
    }

    /// An object of the cache, in its stored version.
    pub(crate) fn cached(
        &self,
        group: &str,
        version: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Object>> {
        self.registry.resource(group, version, plural)?.stored.as_ref()?.cache.get(namespace, name)
    }

    /// The objects of a namespace (or of all) in the cache, in their stored version.
    pub(crate) fn cached_list(&self, group: &str, version: &str, plural: &str, namespace: &str) -> Vec<Arc<Object>> {
        let resource = self.registry.resource(group, version, plural);
        resource.as_ref().and_then(|r| r.stored.as_ref()).map(|s| s.cache.list(namespace)).unwrap_or_default()
    }

    /// A resource that the API always has.
    pub(crate) fn resource(&self, group: &str, version: &str, plural: &str) -> Result<Arc<Resource>, Status> {
        self.registry
            .resource(group, version, plural)
            .ok_or_else(|| Status::internal(format!("{plural}.{version}.{group} is not served")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The kinds of the API itself. Those of the network are served where there are nodes.
fn kinds(config: &Config) -> Vec<Arc<Kind>> {
    let network = config.kubelet.iter().flat_map(|_| corten_api::network_kinds()).map(Arc::new);
    corten_api::kinds().iter().cloned().chain(network).collect()
}

fn rbac_caches(registry: &Registry) -> Result<[Arc<crate::cache::ResourceCache>; 4], Error> {
    let cache = |plural: &str| {
        let resource = registry.resource("rbac.authorization.k8s.io", "v1", plural);
        resource
            .and_then(|r| r.stored.as_ref().map(|s| Arc::clone(&s.cache)))
            .ok_or_else(|| Error::Config(format!("the kind table has no {plural}")))
    };
    Ok([cache("clusterroles")?, cache("roles")?, cache("clusterrolebindings")?, cache("rolebindings")?])
}

/// Calls from inside the process, under one identity.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<Server>,
    peer: Arc<Peer>,
}

impl InProcess {
    /// Sends one request through the pipeline.
    pub async fn call(&self, request: http::Request<Bytes>) -> Reply {
        self.server.handle(request.map(RequestBody::Full), &self.peer).await.map(Body::joined)
    }

    /// Lets admission judge new objects for a path, and stores none of them: for measuring what it costs.
    pub async fn admit(&self, path: &str, objects: Vec<Value>) -> Result<(), Status> {
        let request = http::Request::post(path).body(()).map_err(|e| Status::bad_request(e.to_string()))?;
        self.server.admit(request, &self.peer, objects).await
    }
}
