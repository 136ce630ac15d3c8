//! The objects of a server token in the cluster: the bootstrap token, the sealed keys, and the right to read them.
//!
//! All are owned by the bootstrap token's Secret, so that they are deleted with it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use corten_api::k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use corten_client::Client;
use corten_members::State;
use corten_meta::Value;
use serde_json::json;

use super::bundle::Bundle;
use super::token::ServerToken;
use crate::directories::Directories;
use crate::settings;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "corten.dev/server-keys";
const KEY: &str = "sealed";
/// The longest time that the signer of cluster-info may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// The group of machines that join as servers; it has no right of an agent.
const GROUP: &str = "system:bootstrappers:corten:servers";

fn name(token: &ServerToken) -> String {
    format!("corten-server-keys-{}", token.id())
}

/// A server token to make.
pub struct NewToken<'a> {
    pub directories: &'a Directories,
    /// The EncryptionConfiguration that the server was started with.
    pub encryption: Option<&'a Path>,
    /// The time at which the token expires; none for never.
    pub expiration: Option<String>,
    pub description: Option<String>,
}

/// Makes a server token, with the keys of this server sealed for it.
pub async fn create(client: &Client, new: &NewToken<'_>) -> Result<ServerToken> {
    let state = State::read(&super::directory(new.directories))?;
    let state = state.context("this server is alone: servers join one that was started with --cluster-init")?;
    let settings = client.get::<ConfigMap>(settings::NAMESPACE, settings::NAME).await;
    let settings = settings.context("the cluster's settings cannot be read")?;
    let settings = settings.data.and_then(|mut data| data.remove(settings::KEY)).context("the settings are empty")?;
    let bundle = Bundle {
        files: Bundle::read_files(&new.directories.pki())?,
        settings: settings::parse(&settings)?,
        encryption_configuration: super::encryption_configuration(new.directories, new.encryption)?,
        endpoints: state.endpoints,
    };
    let token = ServerToken::generate()?;
    let owner = client.create(&Secret::from_value(bootstrap_token(&token, new))?).await;
    let owner = owner.context("the token cannot be kept")?;
    store(client, &token, &owner, &bundle).await?;
    let signed = tokio::time::timeout(PATIENCE, signed(client, &token)).await;
    signed.context("the controllers have not signed cluster-info for the token yet")?;
    Ok(token)
}

/// Waits until machines can find the cluster by the token.
async fn signed(client: &Client, token: &ServerToken) {
    let key = format!("jws-kubeconfig-{}", token.id());
    loop {
        let info = client.get::<ConfigMap>("kube-public", "cluster-info").await;
        if info.is_ok_and(|info| info.data.is_some_and(|data| data.contains_key(&key))) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the Secret of the token's first two parts.
fn bootstrap_token(token: &ServerToken, new: &NewToken<'_>) -> Value {
    let bootstrap = token.bootstrap();
    let secret = bootstrap.split_once('.').map(|(_, secret)| secret).unwrap_or_default();
    let mut data = json!({
        "token-id": token.id(), "token-secret": secret, "auth-extra-groups": GROUP,
        "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
    });
    if let Some(expiration) = &new.expiration {
        data["expiration"] = json!(expiration);
    }
    if let Some(description) = &new.description {
        data["description"] = json!(description);
    }
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"namespace": NAMESPACE, "name": format!("bootstrap-token-{}", token.id())},
        "stringData": data,
    })
}

/// Stores the sealed keys beside the bootstrap token, for its user alone.
async fn store(client: &Client, token: &ServerToken, owner: &Secret, bundle: &Bundle) -> Result<()> {
    let name = name(token);
    let metadata = json!({
        "namespace": NAMESPACE, "name": name,
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "Secret",
            "name": owner.metadata.name, "uid": owner.metadata.uid,
        }],
    });
    let sealed = STANDARD.encode(bundle.seal(token)?);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": TYPE, "data": {KEY: sealed},
    });
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}],
    });
    let user = format!("system:bootstrap:{}", token.id());
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    });
    put::<Role>(client, role).await?;
    put::<RoleBinding>(client, binding).await?;
    put::<Secret>(client, secret).await
}

async fn put<K: Typed>(client: &Client, object: Value) -> Result<()> {
    client.create(&K::from_value(object)?).await.map(drop).context("the server token cannot be kept")
}

/// Gets the sealed keys as the user of the token, and opens them.
pub async fn fetch(client: &Client, token: &ServerToken) -> Result<Bundle> {
    let secret = client.find::<Secret>(NAMESPACE, &name(token)).await.with_context(|| {
        format!("the cluster gives the token {} no keys: it has expired, or is not a server's", token.id())
    })?;
    let secret = secret.with_context(|| format!("the cluster has no keys for the token {}", token.id()))?;
    ensure!(secret.type_.as_deref() == Some(TYPE), "the keys for the token {} are not sealed", token.id());
    let sealed = secret.data.and_then(|mut data| data.remove(KEY)).context("the sealed keys are empty")?;
    Bundle::open(&String::from_utf8(sealed.0).context("the sealed keys are damaged")?, token)
}
