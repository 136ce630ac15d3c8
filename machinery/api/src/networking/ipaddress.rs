//! IPAddress: one address of a Service CIDR, named by the address itself.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::kind::{Behaviour, Kind, NameRule};

struct IpAddress;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses")
        .cluster()
        .short(&["ip"])
        .name_rule(NameRule::Ip)
        .table("Name, ParentRef")
        .behaviour(IpAddress)
}

impl Behaviour for IpAddress {
    fn rules(&self) -> &'static str {
        ".networking.v1.IPAddress"
    }

    /// Returns the row; upstream has no column for the age either.
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let parent = match object.pointer("/spec/parentRef").filter(|p| p.is_object()) {
            Some(p) => {
                let group = text(p, "/group");
                let dot = if group.is_empty() { "" } else { "." };
                let resource = format!("{}{dot}{group}", text(p, "/resource")).to_lowercase();
                let namespace = text(p, "/namespace");
                let slash = if namespace.is_empty() { "" } else { "/" };
                format!("{resource}{slash}{namespace}/{}", text(p, "/name"))
            }
            None => "<none>".to_string(),
        };
        vec![name(object), parent.into(), age(object, now)]
    }
}
