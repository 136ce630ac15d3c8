//! Bootstrap tokens, with which nodes join: expired tokens are deleted, and `cluster-info` is signed with the valid
//! ones.
//!
//! A client that knows a token verifies by the signature that the published cluster-info is this cluster's. The token
//! itself never appears in it.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;
use ring::hmac;

use crate::runtime::{Action, Controller, Plan, View, Watch};

const TYPE: &str = "bootstrap.kubernetes.io/token";
const NAME_PREFIX: &str = "bootstrap-token-";
const TOKENS: &str = "kube-system";
const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

pub struct TokenCleaner;

pub struct BootstrapSigner;

impl Controller for TokenCleaner {
    type Observed = Secret;

    const NAME: &'static str = "token-cleaner";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<Secret>(|_, change| if is_token(change) { vec![change.key.clone()] } else { Vec::new() })]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Secret> {
        view.typed(key).filter(|secret: &Secret| secret.type_.as_deref() == Some(TYPE))
    }

    fn reconcile(&self, secret: &Secret, now: Timestamp) -> Plan {
        match expires_in(secret, now) {
            None => Plan::nothing(),
            Some(Duration::ZERO) => Plan::from(Action::delete(secret)),
            left => Plan { requeue_after: left, ..Plan::default() },
        }
    }
}

/// Returns the time until the token expires: zero if it has expired, none if it never does. A date that does not parse
/// counts as past, so that no token is valid forever by mistake.
fn expires_in(secret: &Secret, now: Timestamp) -> Option<Duration> {
    let expiration = field(secret, "expiration").filter(|text| !text.is_empty())?;
    let left = expiration.parse::<Timestamp>().ok().map(|at| at.duration_since(now));
    Some(left.and_then(|left| left.try_into().ok()).unwrap_or(Duration::ZERO))
}

fn is_token(change: &Change) -> bool {
    change.key.namespace == TOKENS && change.key.name.starts_with(NAME_PREFIX)
}

fn field(secret: &Secret, name: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(name)?.0.clone()).ok()
}

fn cluster_info() -> Key {
    Key::new("kube-public", "cluster-info")
}

pub struct Observed {
    info: ConfigMap,
    tokens: Vec<Secret>,
}

impl Controller for BootstrapSigner {
    type Observed = Observed;

    const NAME: &'static str = "bootstrap-signer";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::mapped::<ConfigMap>(
                |_, change| {
                    if change.key == cluster_info() { vec![cluster_info()] } else { Vec::new() }
                },
            ),
            Watch::mapped::<Secret>(|_, change| if is_token(change) { vec![cluster_info()] } else { Vec::new() }),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let info: ConfigMap = view.typed(key)?;
        let mut tokens: Vec<Secret> = view.all(TOKENS);
        tokens.retain(|secret| secret.type_.as_deref() == Some(TYPE));
        Some(Observed { info, tokens })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::nothing();
        let data = observed.info.data.clone().unwrap_or_default();
        let Some(content) = data.get("kubeconfig").cloned() else { return plan };
        let mut signed: BTreeMap<String, String> = data
            .iter()
            .filter(|(key, _)| !key.starts_with(SIGNATURE_PREFIX))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        for token in &observed.tokens {
            let Some((id, secret)) = signing_token(token, now) else { continue };
            signed.insert(format!("{SIGNATURE_PREFIX}{id}"), detached_signature(&content, &id, &secret));
            if let Some(left) = expires_in(token, now) {
                plan.requeue(left);
            }
        }
        if signed != data {
            let mut updated = observed.info.clone();
            updated.data = Some(signed);
            plan.push(Action::update(&updated));
        }
        plan
    }
}

/// Returns the id and secret of a token that may sign.
fn signing_token(token: &Secret, now: Timestamp) -> Option<(String, String)> {
    let (id, secret) = (field(token, "token-id")?, field(token, "token-secret")?);
    let named = token.name() == format!("{NAME_PREFIX}{id}");
    let signs = field(token, "usage-bootstrap-signing").as_deref() == Some("true");
    let good = named && signs && !secret.is_empty() && expires_in(token, now) != Some(Duration::ZERO);
    good.then_some((id, secret))
}

/// Returns a JSON Web Signature without its content: the client has the content already.
fn detached_signature(content: &str, id: &str, secret: &str) -> String {
    let header = BASE64URL.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = hmac::sign(&key, format!("{header}.{}", BASE64URL.encode(content)).as_bytes());
    format!("{header}..{}", BASE64URL.encode(signature))
}
