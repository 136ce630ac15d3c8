//! TaintNodesByCondition: a new node has the not-ready taint until its conditions report that it is ready.

use corten_meta::Status;
use futures::future::BoxFuture;
use serde_json::json;

use super::attributes::Attributes;
use super::plugin::Plugin;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.creates("", "nodes") {
                let mut taints =
                    a.object.pointer("/spec/taints").and_then(|t| t.as_array().cloned()).unwrap_or_default();
                if !taints.iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule") {
                    taints.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
                    corten_meta::set(&mut a.object, "/spec/taints", json!(taints));
                }
            }
            Ok(())
        })
    }
}
