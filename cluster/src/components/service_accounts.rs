//! Clients that act as the controllers' ServiceAccounts, for a controller manager that runs alone.
//!
//! The manager itself may do little more than watch and request tokens; each controller acts under the account with its
//! name in kube-system, as upstream's does with `--use-service-account-credentials`. A missing account is created, a
//! token is requested with the first request, and again long before it expires.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::ServiceAccount;
use corten_client::https::Https;
use corten_client::{Body, Client, Error, HttpsConfig, Kubeconfig, Metrics, Transport};
use corten_controllers::{Clients, MANAGER};
use corten_meta::Value;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

const NAMESPACE: &str = "kube-system";
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
/// The time for which a token is used, so that none expires during a request.
const TOKEN_USE: Duration = Duration::from_secs(2400);

/// Returns the clients of all controllers, made from the manager's kubeconfig; their requests are counted.
pub fn clients(kubeconfig: &Path, metrics: &Metrics) -> Result<Clients> {
    let unusable = || format!("{} cannot be used", kubeconfig.display());
    let config = Kubeconfig::load(kubeconfig).and_then(|file| file.https_config(None)).with_context(unusable)?;
    // One connection serves all accounts; the token of each request names the user.
    let anonymous =
        HttpsConfig { client_certificate: None, client_key: None, token: None, token_file: None, ..config.clone() };
    let https = Arc::new(Https::new(anonymous).with_context(unusable)?);
    let host = config.server.split("://").last().unwrap_or_default().trim_end_matches('/').to_owned();
    let manager = Client::https(config).with_context(unusable)?.with_metrics(metrics, &host);
    let metrics = metrics.clone();
    Ok(Arc::new(move |name: &str| match name {
        MANAGER => manager.clone(),
        name => Client::new(Arc::new(Account(Arc::new(Credentials {
            manager: manager.clone(),
            https: https.clone(),
            name: name.to_owned(),
            token: Mutex::default(),
        }))))
        .with_metrics(&metrics, &host),
    }))
}

/// The transport to the API server as one ServiceAccount.
struct Account(Arc<Credentials>);

struct Credentials {
    manager: Client,
    https: Arc<Https>,
    name: String,
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

impl Transport for Account {
    fn send(&self, mut request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let credentials = self.0.clone();
        async move {
            request.headers_mut().insert(AUTHORIZATION, credentials.authorization().await?);
            let response = credentials.https.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                // The account was created again: the caller retries, with a new token.
                *credentials.token.lock().await = None;
            }
            Ok(response)
        }
        .boxed()
    }
}

impl Credentials {
    async fn authorization(&self) -> Result<HeaderValue, Error> {
        let mut token = self.token.lock().await;
        if let Some((header, since)) = token.as_ref()
            && since.elapsed() < TOKEN_USE
        {
            return Ok(header.clone());
        }
        let answer = match self.request_token().await {
            Err(error) if error.is_not_found() => {
                self.make_account().await?;
                self.request_token().await?
            }
            answer => answer?,
        };
        let text = answer.pointer("/status/token").and_then(Value::as_str).unwrap_or_default();
        let header = HeaderValue::from_str(&format!("Bearer {text}"))
            .map_err(|_| Error::Config(format!("the token of {} is no text", self.name)))?;
        *token = Some((header.clone(), Instant::now()));
        Ok(header)
    }

    async fn request_token(&self) -> Result<Value, Error> {
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_LIFETIME.as_secs()},
        });
        self.manager.of::<ServiceAccount>().create_subresource(NAMESPACE, &self.name, "token", &body).await
    }

    async fn make_account(&self) -> Result<(), Error> {
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
        });
        match self.manager.create(&ServiceAccount::from_value(account)?).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }
}
