//! ServiceAccount.

use corten_meta::Value;

use crate::defaulting::items;
use crate::kind::{Behaviour, Kind, Role};

struct ServiceAccount;

pub fn kind() -> Kind {
    Kind::new("", "v1", "ServiceAccount", "serviceaccounts")
        .short(&["sa"])
        .returns_deleted()
        .sub("token", Role::Token, &["create"], ("authentication.k8s.io", "v1", "TokenRequest"))
        .behaviour(ServiceAccount)
}

impl Behaviour for ServiceAccount {
    fn prepare_create(&self, account: &mut Value) {
        keep_names(account);
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value) {
        keep_names(new);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";
        let has = |account: &Value| account["metadata"]["annotations"].get(MOUNTABLE).is_some();
        if !has(new) || old.is_some_and(has) {
            return Vec::new();
        }
        let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        vec![format!("metadata.annotations[{MOUNTABLE}]: {why}")]
    }
}

/// Keeps only the names of secrets, which are in the account's namespace.
fn keep_names(account: &mut Value) {
    for secret in items(account, "/secrets").filter_map(Value::as_object_mut) {
        secret.retain(|field, _| field == "name");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_names_of_secrets_are_kept() {
        let mut account = json!({"secrets": [{"name": "s", "namespace": "other", "kind": "Secret"}, {"uid": "u"}]});
        ServiceAccount.prepare_create(&mut account);
        assert_eq!(account, json!({"secrets": [{"name": "s"}, {}]}));
    }
}
