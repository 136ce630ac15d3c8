//! The API server as a value: its parts, how it is built, and calls from inside the process.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use corten_meta::Object;
use corten_store::Store;
use tokio_util::sync::CancellationToken;

use crate::admission::{Chain, follow_policies};
use crate::aggregation::{self, Aggregation};
use crate::audit::Audit;
use crate::authentication::front_proxy::ClientCertificates;
use crate::authentication::oidc::Issuers;
use crate::authentication::token::Tokens;
use crate::authentication::webhook::TokenWebhook;
use crate::authentication::{Identity, Peer, User};
use crate::authorization::rbac::Rbac;
use crate::body::{Body, Reply, RequestBody};
use crate::bootstrap;
use crate::config::Config;
use crate::custom_resources;
use crate::discovery::Discovery;
use crate::encryption::Transformer;
use crate::error::Error;
use crate::flow_control::{self, FlowControl};
use crate::health::Health;
use crate::metrics::Metrics;
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
    pub(crate) issuers: Issuers,
    pub(crate) token_webhook: Option<TokenWebhook>,
    pub(crate) client_certificates: ClientCertificates,
    pub(crate) kubelets: Kubelets,
    pub(crate) gatherer: Gatherer,
    pub(crate) shutdown: CancellationToken,
}

impl Server {
    /// Fills the caches and writes what every cluster must hold. When this returns, the server is ready.
    pub async fn new(config: Config, store: Arc<dyn Store>) -> Result<Arc<Server>, Error> {
        let shutdown = CancellationToken::new();
        let transformer = Arc::new(Transformer::new(config.encryption_key.as_ref())?);
        let kinds = corten_api::kinds();
        let registry = Registry::start(store, kinds, transformer, &config, shutdown.clone()).await?;
        let server = Arc::new(Server {
            tokens: Tokens::new(&config)?,
            rbac: Rbac::new(rbac_caches(&registry)?),
            admission: Chain::new(),
            custom_kinds: custom_resources::Kinds::default(),
            discovery: ArcSwap::from_pointee(Discovery::new(&registry.resources().ordered, &[])),
            openapi: Arc::new(OpenApi::new(&registry.resources().ordered)),
            health: Health::default(),
            metrics: Metrics::default(),
            limits: Limits::new(&config),
            flow_control: FlowControl::new(config.max_requests_inflight + config.max_mutating_requests_inflight),
            aggregation: Aggregation::default(),
            issuers: Issuers::new(&config)?,
            token_webhook: config.token_webhook.as_ref().map(TokenWebhook::new).transpose()?,
            audit: Audit::start(config.audit.as_ref(), shutdown.clone())?,
            client_certificates: ClientCertificates::new(&config)?,
            kubelets: Kubelets::new(config.kubelet.as_ref())?,
            gatherer: Gatherer::default(),
            registry,
            config,
            shutdown,
        });
        bootstrap::run(&server).await?;
        custom_resources::reconcile(&server).await.map_err(|status| Error::Bootstrap(status.message))?;
        flow_control::reconcile(&server).await;
        let task = || (Arc::downgrade(&server), server.shutdown.clone());
        let (weak, shutdown) = task();
        tokio::spawn(custom_resources::run(weak, shutdown));
        let (weak, shutdown) = task();
        tokio::spawn(flow_control::run(weak, shutdown));
        let (weak, shutdown) = task();
        tokio::spawn(aggregation::run(weak, shutdown));
        let (weak, shutdown) = task();
        tokio::spawn(follow_policies(weak, shutdown));
        server.health.mark_ready();
        Ok(server)
    }

    /// Ends every watch and the feed of the caches. Requests after this are answered, but see no news.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// A way to call this server as `user`, without a socket and through the same pipeline.
    pub fn in_process(self: &Arc<Self>, user: User) -> InProcess {
        InProcess { server: Arc::clone(self), user: user.authenticated() }
    }

    /// Makes the discovery documents anew, of what is served here and elsewhere.
    pub(crate) fn publish_discovery(&self) {
        let discovery = Discovery::new(&self.registry.resources().ordered, &self.aggregation.known());
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
    pub(crate) fn resource(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Result<Arc<Resource>, corten_meta::Status> {
        self.registry
            .resource(group, version, plural)
            .ok_or_else(|| corten_meta::Status::internal(format!("{plural}.{version}.{group} is not served")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
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
    user: User,
}

impl InProcess {
    /// Sends one request through the pipeline.
    pub async fn call(&self, request: http::Request<Bytes>) -> Reply {
        let peer = Peer { identity: Identity::InProcess(self.user.clone()), address: None };
        self.server.handle(request.map(RequestBody::Full), peer).await.map(Body::joined)
    }
}
