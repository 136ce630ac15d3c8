//! Token Secrets of ServiceAccounts: fills in those that a user creates, and deletes them with their account.
//!
//! The API server issues the token, bound to its Secret; no signing key is needed here. A Secret whose account is not
//! found is deleted only after the API server, not a cache, has confirmed it.

use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::ByteString;
use corten_api::k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use corten_client::{Cache, Caches, Change, Client, DeleteOptions, Error, WorkQueue};
use corten_meta::Key;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::runtime::workqueue::{enqueue_changes, run_workers};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
const WORKERS: usize = 4;
/// The longest lifetime that can be requested: such a token is valid until its Secret is deleted.
const LIFETIME_SECONDS: i64 = 1 << 32;

pub struct ServiceAccountTokenController {
    secrets: Arc<Cache>,
    accounts: Arc<Cache>,
    client: Client,
    root_ca: String,
}

impl ServiceAccountTokenController {
    pub fn new(caches: &Caches, client: Client, root_ca: String) -> Self {
        let (secrets, accounts) = (caches.of::<Secret>(), caches.of::<ServiceAccount>());
        ServiceAccountTokenController { secrets, accounts, client, root_ca }
    }

    pub async fn run(self, queue: WorkQueue<Key>, shutdown: CancellationToken) {
        let this = Arc::new(self);
        let (secrets, accounts) = (this.secrets.clone(), this.accounts.clone());
        let of_account = {
            let secrets = secrets.clone();
            move |change: &Change| if change.new.is_none() { secrets_of(&secrets, &change.key) } else { Vec::new() }
        };
        let handle = move |key: Key| {
            let this = this.clone();
            async move { this.handle(&key).await }
        };
        tokio::join!(
            enqueue_changes(secrets, queue.clone(), shutdown.clone(), |change| vec![change.key.clone()]),
            enqueue_changes(accounts, queue.clone(), shutdown.clone(), of_account),
            run_workers("tokens-controller", queue, WORKERS, shutdown, handle),
        );
    }

    async fn handle(&self, key: &Key) -> Result<Option<Duration>, Error> {
        let Some(secret) = self.secrets.typed::<Secret>(key) else { return Ok(None) };
        let Some(name) = account_of(&secret).filter(|_| secret.metadata.deletion_timestamp.is_none()) else {
            return Ok(None);
        };
        let account = self.client.find::<ServiceAccount>(&key.namespace, &name).await?;
        match account.filter(|account| is_of(&secret, account)) {
            None => self.delete(&secret).await?,
            Some(account) => self.fill(secret, &account).await?,
        }
        Ok(None)
    }

    async fn delete(&self, secret: &Secret) -> Result<(), Error> {
        let options = DeleteOptions {
            precondition_uid: secret.metadata.uid.clone(),
            precondition_resource_version: secret.metadata.resource_version.clone(),
            ..DeleteOptions::default()
        };
        match self.client.delete::<Secret>(secret.namespace(), secret.name(), &options).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn fill(&self, secret: Secret, account: &ServiceAccount) -> Result<(), Error> {
        let mut filled = secret.clone();
        complete(&mut filled, account, &self.root_ca);
        if filled.data.as_ref().is_none_or(|data| data.get("token").is_none_or(|token| token.0.is_empty())) {
            let token = self.token(&secret, account).await?;
            filled.data.get_or_insert_default().insert("token".to_owned(), ByteString(token.into_bytes()));
        }
        if filled != secret {
            self.client.update(&filled).await?;
        }
        Ok(())
    }

    async fn token(&self, secret: &Secret, account: &ServiceAccount) -> Result<String, Error> {
        let bound = json!({"apiVersion": "v1", "kind": "Secret", "name": secret.name(), "uid": secret.metadata.uid});
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFETIME_SECONDS, "boundObjectRef": bound},
        });
        let answer = self
            .client
            .of::<ServiceAccount>()
            .create_subresource(account.namespace(), account.name(), "token", &request)
            .await?;
        let token = answer.pointer("/status/token").and_then(|token| token.as_str());
        token.map(str::to_owned).ok_or_else(|| Error::Decode("a TokenRequest was answered without a token".to_owned()))
    }
}

/// Returns the account that a token Secret names.
fn account_of(secret: &Secret) -> Option<String> {
    let annotations = secret.metadata.annotations.as_ref().filter(|_| secret.type_.as_deref() == Some(TYPE))?;
    annotations.get(NAME).filter(|name| !name.is_empty()).cloned()
}

/// Reports whether the Secret's uid annotation, if it has one, names this account.
fn is_of(secret: &Secret, account: &ServiceAccount) -> bool {
    let uid = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(UID));
    uid.is_none_or(|uid| uid.is_empty() || Some(uid) == account.metadata.uid.as_ref())
}

/// Fills in everything but the token.
fn complete(secret: &mut Secret, account: &ServiceAccount, root_ca: &str) {
    let uid = account.metadata.uid.clone().unwrap_or_default();
    secret.metadata.annotations.get_or_insert_default().insert(UID.to_owned(), uid);
    let namespace = account.namespace().as_bytes().to_vec();
    let data = secret.data.get_or_insert_default();
    if !root_ca.is_empty() {
        data.insert("ca.crt".to_owned(), ByteString(root_ca.as_bytes().to_vec()));
    }
    data.insert("namespace".to_owned(), ByteString(namespace));
}

fn secrets_of(secrets: &Cache, account: &Key) -> Vec<Key> {
    let all = secrets.list(&account.namespace);
    let named = all.iter().filter_map(|object| corten_api::decode_object::<Secret>(object).ok());
    let of = |secret: &Secret| account_of(secret).is_some_and(|name| name == account.name);
    named.filter(of).map(|secret| crate::runtime::key_of(&secret)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_meta::Value;

    fn secret(kind: &str, annotations: Value) -> Secret {
        let metadata = json!({"namespace": "default", "name": "s", "annotations": annotations});
        Secret::from_value(json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata})).unwrap()
    }

    #[test]
    fn a_secret_belongs_to_the_account_it_names_and_no_later_one() {
        let metadata = json!({"namespace": "default", "name": "robot", "uid": "u"});
        let account =
            ServiceAccount::from_value(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}))
                .unwrap();
        for (kind, annotations, named, same) in [
            (TYPE, json!({NAME: "robot"}), Some("robot"), true),
            (TYPE, json!({NAME: "robot", UID: "u"}), Some("robot"), true),
            (TYPE, json!({NAME: "robot", UID: "earlier"}), Some("robot"), false),
            (TYPE, json!({}), None, true),
            ("Opaque", json!({NAME: "robot"}), None, true),
        ] {
            let secret = secret(kind, annotations.clone());
            assert_eq!(account_of(&secret).as_deref(), named, "{kind} {annotations}");
            assert_eq!(is_of(&secret, &account), same, "{kind} {annotations}");
        }
        let mut filled = secret(TYPE, json!({NAME: "robot"}));
        complete(&mut filled, &account, "PEM");
        assert_eq!(filled.metadata.annotations.as_ref().unwrap()[UID], "u");
        assert_eq!(filled.data.as_ref().unwrap()["namespace"].0, b"default");
        assert_eq!(filled.data.as_ref().unwrap()["ca.crt"].0, b"PEM");
    }

    proptest::proptest! {
        /// Filling in twice changes nothing more, and no existing data is lost.
        #[test]
        fn filling_in_settles(extra in "[a-z]{1,5}", value in "[a-z]{0,5}", uid in "[a-z0-9]{1,5}", root in "[A-Z]{0,3}") {
            let metadata = json!({"namespace": "default", "name": "robot", "uid": uid});
            let account =
                ServiceAccount::from_value(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}))
                    .unwrap();
            let mut once = secret(TYPE, json!({NAME: "robot"}));
            let kept = ByteString(value.into_bytes());
            once.data.get_or_insert_default().insert(format!("x-{extra}"), kept.clone());
            complete(&mut once, &account, &root);
            let mut twice = once.clone();
            complete(&mut twice, &account, &root);
            proptest::prop_assert_eq!(&once, &twice);
            proptest::prop_assert_eq!(&once.data.as_ref().unwrap()[&format!("x-{extra}")], &kept);
            proptest::prop_assert!(is_of(&once, &account));
        }
    }
}
