//! Carries out actions in order: the only place that calls the cloud for changes and writes to the API.

use corten_api::Typed;
use corten_client::{Client, DeleteOptions, EventRecorder, EventType, ObjectRef, Patch};
use corten_meta::{Key, Value};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Service};
use serde_json::json;

use crate::controllers::{Action, Event, Kind, NewRoute, route, service};
use crate::objects::key;
use crate::provider::{Balancer, Balancers, Error, Provider, Routes};

/// The reason why a list of actions ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Cloud(#[from] Error),
    #[error("{0}")]
    Api(String),
}

/// The number of lists that are carried out at once. Providers ask about the objects of several in one call.
const AT_ONCE: usize = 16;

/// The writes to the API that actions need.
pub trait Api: Send + Sync {
    fn patch<'a>(&'a self, kind: Kind, key: &'a Key, patch: &'a Value, is_status: bool) -> Written<'a>;
    fn delete_node<'a>(&'a self, name: &'a str, uid: &'a str) -> Written<'a>;
    /// Sets one condition of a Service, and no other.
    fn set_condition<'a>(&'a self, service: &'a Value, condition: Value) -> Written<'a>;
    fn event(&self, event: &Event);
}

/// The outcome of a write; an object that is gone is no failure.
pub type Written<'a> = BoxFuture<'a, Result<(), String>>;

/// Carries out actions in order; the first failure ends the list.
pub async fn execute(provider: &dyn Provider, api: &dyn Api, actions: &[Action]) -> Result<(), Failure> {
    for action in actions {
        match action {
            Action::Patch { kind, key, patch, is_status } => {
                api.patch(*kind, key, patch, *is_status).await.map_err(Failure::Api)?;
            }
            Action::DeleteNode { name, uid } => api.delete_node(name, uid).await.map_err(Failure::Api)?,
            Action::Event(event) => api.event(event),
            Action::EnsureBalancer { wanted, service } => {
                ensure(balancers(provider)?, api, wanted.as_deref(), service).await?;
            }
            Action::DeleteBalancer { name } => balancers(provider)?.delete_balancer(name).await?,
            Action::CreateRoute(new) => create_route(routes(provider)?, api, new).await?,
            Action::DeleteRoute(route) => routes(provider)?.delete_route(route).await?,
        }
    }
    Ok(())
}

/// Carries out lists that do not depend on each other, and returns the first failure after all of them. A cloud that asks
/// for fewer requests gets no further list.
pub async fn execute_each(provider: &dyn Provider, api: &dyn Api, lists: &[Vec<Action>]) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for actions in lists {
        outcomes.push(execute(provider, api, actions));
    }
    let mut outcomes = futures::stream::iter(outcomes).buffer_unordered(AT_ONCE);
    let mut result = Ok(());
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Err(throttled @ Failure::Cloud(Error::Throttled { .. })) => return Err(throttled),
            outcome => result = result.and(outcome),
        }
    }
    result
}

/// Makes a route, or reports at the node why there is none. An answer that asks to wait is no reason.
async fn create_route(routes: &dyn Routes, api: &dyn Api, new: &NewRoute) -> Result<(), Failure> {
    let error = match routes.create_route(&new.route).await {
        Ok(()) => return Ok(()),
        Err(throttled @ Error::Throttled { .. }) => return Err(throttled.into()),
        Err(error) => error,
    };
    for action in route::failed(new, &error.to_string()) {
        match action {
            Action::Event(event) => api.event(&event),
            Action::Patch { kind, key, patch, is_status } => {
                api.patch(kind, &key, &patch, is_status).await.map_err(Failure::Api)?;
            }
            _ => {}
        }
    }
    Err(error.into())
}

/// Makes a load balancer, and writes its addresses or the reason why there is none.
async fn ensure(
    balancers: &dyn Balancers,
    api: &dyn Api,
    wanted: Result<&Balancer, &Error>,
    service: &Value,
) -> Result<(), Failure> {
    let event = |is_warning, reason, message: String| {
        api.event(&Event::about(Kind::Service, service, is_warning, reason, message));
    };
    let ensured = match wanted {
        Ok(wanted) => balancers.ensure_balancer(wanted).await,
        Err(error) => Err(error.clone()),
    };
    let status = match ensured {
        Ok(status) => status,
        Err(error) => {
            if let Some(condition) = service::condition(service, Err(&error), &now()) {
                api.set_condition(service, condition).await.map_err(Failure::Api)?;
            }
            let message = format!("Error syncing load balancer: {error}");
            event(true, "SyncLoadBalancerFailed", message);
            return Err(error.into());
        }
    };
    for warning in &status.warnings {
        event(true, "LoadBalancerAnnotation", warning.clone());
    }
    if let Some(Action::Patch { kind, key, patch, is_status }) = service::status_patch(service, &status) {
        api.patch(kind, &key, &patch, is_status).await.map_err(Failure::Api)?;
        event(false, "EnsuredLoadBalancer", "Ensured load balancer".to_owned());
    }
    if let Some(condition) = service::condition(service, Ok(&status.warnings), &now()) {
        api.set_condition(service, condition).await.map_err(Failure::Api)?;
    }
    Ok(())
}

fn now() -> String {
    corten_meta::time::rfc3339(corten_meta::time::now())
}

fn balancers(provider: &dyn Provider) -> Result<&dyn Balancers, Error> {
    let missing = || Error::Invalid(format!("{} has no load balancers", provider.name()));
    provider.balancers().ok_or_else(missing)
}

fn routes(provider: &dyn Provider) -> Result<&dyn Routes, Error> {
    let missing = || Error::Invalid(format!("{} has no routes", provider.name()));
    provider.routes().ok_or_else(missing)
}

/// The API over a client.
pub struct ClientApi {
    pub client: Client,
    pub recorder: EventRecorder,
}

impl ClientApi {
    async fn patched<K: Typed>(&self, key: &Key, patch: &Patch, subresource: Option<&str>) -> Result<(), String> {
        match self.client.patch::<K>(&key.namespace, &key.name, patch, subresource).await {
            Err(error) if !error.is_not_found() => Err(error.to_string()),
            _ => Ok(()),
        }
    }
}

impl Api for ClientApi {
    fn patch<'a>(&'a self, kind: Kind, key: &'a Key, patch: &'a Value, is_status: bool) -> Written<'a> {
        let subresource = is_status.then_some("status");
        let patch = Patch::Merge(patch.clone());
        Box::pin(async move {
            match kind {
                Kind::Node => self.patched::<Node>(key, &patch, subresource).await,
                Kind::Service => self.patched::<Service>(key, &patch, subresource).await,
            }
        })
    }

    fn delete_node<'a>(&'a self, name: &'a str, uid: &'a str) -> Written<'a> {
        Box::pin(async move {
            match self.client.delete::<Node>("", name, &DeleteOptions::uid(uid)).await {
                Err(error) if !error.is_not_found() => Err(error.to_string()),
                _ => Ok(()),
            }
        })
    }

    fn set_condition<'a>(&'a self, service: &'a Value, condition: Value) -> Written<'a> {
        let uid = &service["metadata"]["uid"];
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}}));
        Box::pin(async move { self.patched::<Service>(&key(service), &patch, Some("status")).await })
    }

    fn event(&self, event: &Event) {
        let kind = match event.kind {
            Kind::Node => "Node",
            Kind::Service => "Service",
        };
        let about = ObjectRef {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: event.key.namespace.clone(),
            name: event.key.name.clone(),
            uid: event.uid.clone(),
            ..ObjectRef::default()
        };
        let severity = if event.is_warning { EventType::Warning } else { EventType::Normal };
        self.recorder.event(&about, severity, event.reason, event.message.clone());
    }
}
