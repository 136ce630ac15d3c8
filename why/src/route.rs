//! Gateways and routes of the Gateway API: the conditions of each parent and listener.

use corten_meta::Value;

use crate::Finding;
use crate::generic::is_wrong;
use crate::objects::{items, text};

pub fn explain(object: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let has_parents = items(object, "/spec/parentRefs").next().is_some();
    if has_parents && items(object, "/status/parents").next().is_none() {
        findings.push(
            Finding::new(
                "No controller has looked at its parents: there is no such Gateway, or nothing implements its class.",
            )
            .help("kubectl get gateways,gatewayclasses -A"),
        );
    }
    for parent in items(object, "/status/parents") {
        let gateway = text(parent, "/parentRef/name");
        findings.extend(wrong(parent, "/conditions", &format!("Gateway {gateway}")));
    }
    for listener in items(object, "/status/listeners") {
        findings.extend(wrong(listener, "/conditions", &format!("listener {}", text(listener, "/name"))));
    }
    findings
}

fn wrong(of: &Value, pointer: &str, at: &str) -> Vec<Finding> {
    let conditions = items(of, pointer).filter(|one| is_wrong(one));
    conditions
        .map(|one| {
            let cause = format!("At {at} it is not {}: {}.", text(one, "/type"), text(one, "/reason"));
            Finding::new(cause).because(text(one, "/message"))
        })
        .collect()
}
