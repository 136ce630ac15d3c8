//! `corten console`: shows the console of a cluster in the browser, signed in.
//!
//! The link holds a one-time code. The page exchanges it for a token that expires: the user's own if the kubeconfig has
//! one, else one of a ServiceAccount, because a browser cannot use the certificate of a kubeconfig.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::ServiceAccount;
use corten_api::k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use corten_client::{Client, HttpsConfig, Kubeconfig};
use corten_console::{Explainer, Gateway, Question};
use corten_meta::Value;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::user_cli::Console;
use crate::{answers, kubeconfig};

const NAMESPACE: &str = "kube-system";
const ACCOUNT: &str = "corten-console";

/// The lifetime of a token; the page renews it while it is open.
const TOKEN_SECONDS: u64 = 3600;

pub async fn run(flags: &Console) -> Result<()> {
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    let config = Kubeconfig::load(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let config = config.https_config(flags.context.as_deref()).with_context(|| path.display().to_string())?;
    let token = token(&config, flags.service_account.as_deref()).await?;
    let shutdown = CancellationToken::new();
    let explainer = Arc::new(Answers { config: config.clone() });
    let gateway = Arc::new(Gateway::new(&config, explainer, shutdown.clone()).await?);
    let listener = listen(flags.port).await?;
    let address = listener.local_addr()?;
    let code = gateway.code(token).context("the system has no randomness")?;
    let link = format!("http://{address}/console/#code={code}");
    println!("{link}");
    println!("The link is good once, for two minutes. Ctrl-C ends the console.");
    if !flags.no_browser {
        open(&link);
    }
    tokio::select! {
        () = Arc::clone(&gateway).serve(listener) => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    shutdown.cancel();
    Ok(())
}

/// Answers questions with the token of the page's user.
struct Answers {
    config: HttpsConfig,
}

impl Explainer for Answers {
    fn answer(&self, token: String, question: Question) -> BoxFuture<'static, Result<Value, String>> {
        let config = HttpsConfig {
            client_certificate: None,
            client_key: None,
            token: Some(token),
            token_file: None,
            ..self.config.clone()
        };
        Box::pin(async move {
            let client = Client::https(config).map_err(|error| error.to_string())?;
            answers::answer(client, question).await.map_err(|error| format!("{error:#}"))
        })
    }
}

/// Returns the token to sign in with.
async fn token(config: &HttpsConfig, account: Option<&str>) -> Result<String> {
    if account.is_none()
        && let Some(own) = own_token(config)?
    {
        return Ok(own);
    }
    let client = Client::https(config.clone())?;
    let (namespace, name) = match account {
        Some(account) => account.split_once('/').context("--service-account takes NAMESPACE/NAME")?,
        None => {
            prepare(&client).await?;
            (NAMESPACE, ACCOUNT)
        }
    };
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    });
    let answer: Value = client
        .of::<ServiceAccount>()
        .create_subresource(namespace, name, "token", &request)
        .await
        .with_context(|| format!("no token for the ServiceAccount {namespace}/{name}"))?;
    match answer.pointer("/status/token").and_then(Value::as_str) {
        Some(token) => Ok(token.to_owned()),
        None => bail!("the server answered without a token"),
    }
}

/// Returns the token of the kubeconfig's user, if it has one.
fn own_token(config: &HttpsConfig) -> Result<Option<String>> {
    if let Some(token) = &config.token {
        return Ok(Some(token.clone()));
    }
    let Some(path) = &config.token_file else { return Ok(None) };
    let token = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(Some(token.trim().to_owned()))
}

/// Makes the ServiceAccount of the console and gives it an administrator's rights, if they are missing. RBAC lets only
/// an administrator do so.
async fn prepare(client: &Client) -> Result<()> {
    let account = json!({"metadata": {"namespace": NAMESPACE, "name": ACCOUNT}});
    let binding = json!({
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": ACCOUNT}],
    });
    ensure(client, &ServiceAccount::from_value(account)?).await?;
    ensure(client, &ClusterRoleBinding::from_value(binding)?).await
}

async fn ensure<K: Typed>(client: &Client, object: &K) -> Result<()> {
    match client.create(object).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Ok(()),
        Err(error) => Err(error).context(
            "this user may not sign the console in as an administrator; name a ServiceAccount by --service-account",
        ),
    }
}

/// Listens on the wanted port, or else on a free one.
async fn listen(port: Option<u16>) -> Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0)));
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Opens the link in the user's browser, if there is one; the link is printed in any case.
fn open(link: &str) {
    let mut command = Command::new("xdg-open");
    command.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        std::thread::spawn(move || child.wait());
    }
}
