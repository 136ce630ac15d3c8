//! PodTopologyLabels: a pod gets the zone and the region of its node as labels when it is bound. Workloads read them
//! through the downward API.

use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

const COPIED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub struct PodTopologyLabels;

impl Plugin for PodTopologyLabels {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation != Operation::Create {
                return Ok(());
            }
            let node = match () {
                () if a.is("", "pods", "") => a.object.pointer("/spec/nodeName"),
                () if a.is("", "pods", "binding") && a.object["target"]["kind"] == "Node" => {
                    a.object.pointer("/target/name")
                }
                () => None,
            };
            let Some(node) = node.and_then(Value::as_str).filter(|node| !node.is_empty()) else { return Ok(()) };
            // An unknown node has no topology labels.
            let Some(node) = a.target.core.objects.cached("", "nodes", "", node) else { return Ok(()) };
            for label in COPIED {
                if let Some(value) = node.header.labels.get(label) {
                    let pointer = format!("/metadata/labels/{}", label.replace('/', "~1"));
                    corten_meta::set(&mut a.object, &pointer, value.as_str().into());
                }
            }
            Ok(())
        })
    }
}
