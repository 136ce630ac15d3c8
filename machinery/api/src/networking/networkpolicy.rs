//! NetworkPolicy.

use corten_meta::Value;
use serde_json::json;

use crate::address_warnings::cidr;
use crate::cells::list;
use crate::check::At;
use crate::defaulting::{default_at, items, put};
use crate::kind::{Behaviour, Kind};

struct NetworkPolicy;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
        .short(&["netpol"])
        .generation()
        .counts_empty()
        .table("Name, Pod-Selector=selector(/spec/podSelector), Age")
        .behaviour(NetworkPolicy)
}

impl Behaviour for NetworkPolicy {
    fn rules(&self) -> &'static str {
        ".networking.v1.NetworkPolicy"
    }

    fn default(&self, object: &mut Value) {
        for direction in ["/spec/ingress", "/spec/egress"] {
            for rule in items(object, direction) {
                items(rule, "/ports").for_each(|port| default_at(port, "/protocol", "TCP"));
            }
        }
        if list(object, "/spec/policyTypes").is_empty() {
            let egress = !list(object, "/spec/egress").is_empty();
            put(object, "/spec/policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
        }
    }

    fn warnings(&self, policy: &Value, _old: Option<&Value>) -> Vec<String> {
        let spec = At::object(policy).get("spec");
        let mut out = Vec::new();
        for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
            for block in
                spec.get(rules).items().flat_map(|rule| rule.get(peers).items()).map(|peer| peer.get("ipBlock"))
            {
                cidr(&block.get("cidr"), &mut out);
                block.get("except").items().for_each(|except| cidr(&except, &mut out));
            }
        }
        out
    }
}
