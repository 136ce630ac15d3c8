//! DefaultTolerationSeconds: pods stay five minutes on a node that is not ready or not reachable.

use corten_meta::Status;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

const KEYS: &[&str] = &["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const SECONDS: i64 = 300;

pub struct DefaultTolerationSeconds;

impl Plugin for DefaultTolerationSeconds {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            // An update may replace the list of tolerations, but not remove these.
            if a.operation != Operation::Delete && a.is("", "pods", "") {
                let tolerations =
                    a.object.pointer("/spec/tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
                corten_meta::set(&mut a.object, "/spec/tolerations", json!(with_defaults(tolerations)));
            }
            Ok(())
        })
    }
}

fn with_defaults(mut tolerations: Vec<Value>) -> Vec<Value> {
    for key in KEYS {
        let tolerated = tolerations.iter().any(|t| {
            let effect = t["effect"].as_str().unwrap_or_default();
            let any_key = t["key"].as_str().unwrap_or_default().is_empty();
            (t["key"] == *key || any_key) && matches!(effect, "" | "NoExecute")
        });
        if !tolerated {
            tolerations
                .push(json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS }));
        }
    }
    tolerations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_tolerations_win() {
        assert_eq!(with_defaults(Vec::new()).len(), 2);
        assert_eq!(with_defaults(vec![json!({ "operator": "Exists" })]).len(), 1);
        let own = json!({ "key": KEYS[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1 });
        let all = with_defaults(vec![own.clone()]);
        assert_eq!((all.len(), &all[0]), (2, &own));
        assert_eq!(with_defaults(vec![json!({ "key": KEYS[0], "effect": "NoSchedule" })]).len(), 3);
    }
}
