//! Carries out actions in order: the only place that calls the cloud for changes and writes to the API.

use corten_api::Typed;
use corten_client::{Client, DeleteOptions, EventRecorder, EventType, ObjectRef, Patch};
use corten_meta::{Key, Value};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Service};

use crate::controllers::{Action, Event, Kind, service};
use crate::provider::{Balancer, Balancers, Error, Provider, Routes};

/// The reason why a list of actions ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Cloud(#[from] Error),
    #[error("{0}")]
    Api(String),
}

/// The writes to the API that actions need.
pub trait Api: Send + Sync {
    fn patch<'a>(&'a self, kind: Kind, key: &'a Key, patch: &'a Value, is_status: bool) -> Written<'a>;
    fn delete_node<'a>(&'a self, name: &'a str, uid: &'a str) -> Written<'a>;
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
            Action::EnsureBalancer { wanted, service } => ensure(balancers(provider)?, api, wanted, service).await?,
            Action::UpdateBalancer(wanted) => balancers(provider)?.update_balancer(wanted).await?,
            Action::DeleteBalancer { name } => balancers(provider)?.delete_balancer(name).await?,
            Action::CreateRoute(route) => routes(provider)?.create_route(route).await?,
            Action::DeleteRoute(route) => routes(provider)?.delete_route(route).await?,
        }
    }
    Ok(())
}

/// Makes a load balancer, and writes its addresses or the reason why there is none.
async fn ensure(balancers: &dyn Balancers, api: &dyn Api, wanted: &Balancer, service: &Value) -> Result<(), Failure> {
    let event = |is_warning, reason, message: String| {
        api.event(&Event::about(Kind::Service, service, is_warning, reason, message));
    };
    let status = match balancers.ensure_balancer(wanted).await {
        Ok(status) => status,
        Err(error) => {
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
    Ok(())
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
    async fn patched<K: Typed>(&self, key: &Key, patch: &Value, subresource: Option<&str>) -> Result<(), String> {
        let patch = Patch::Merge(patch.clone());
        match self.client.patch::<K>(&key.namespace, &key.name, &patch, subresource).await {
            Err(error) if !error.is_not_found() => Err(error.to_string()),
            _ => Ok(()),
        }
    }
}

impl Api for ClientApi {
    fn patch<'a>(&'a self, kind: Kind, key: &'a Key, patch: &'a Value, is_status: bool) -> Written<'a> {
        let subresource = is_status.then_some("status");
        Box::pin(async move {
            match kind {
                Kind::Node => self.patched::<Node>(key, patch, subresource).await,
                Kind::Service => self.patched::<Service>(key, patch, subresource).await,
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
