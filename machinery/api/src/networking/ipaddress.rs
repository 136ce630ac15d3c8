//! IPAddress: one address of a Service CIDR, named by the address itself.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::check::{At, Errors};
use crate::kind::{Behaviour, Kind, NameRule};

struct IpAddress;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses")
        .cluster()
        .short(&["ip"])
        .name_rule(NameRule::Ip)
        .table("Name, ParentRef")
        .behaviour(IpAddress)
}

impl Behaviour for IpAddress {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let parent = At::object(object).get("spec").get("parentRef");
        let mut errors = Errors::new();
        if !parent.is_object() {
            errors.push(parent.required(""));
            return errors;
        }
        parent.get("group").follows(&mut errors, names::dns1123_subdomain);
        parent.get("resource").must_follow(&mut errors, names::path_segment_name);
        parent.get("name").must_follow(&mut errors, names::path_segment_name);
        parent.get("namespace").follows(&mut errors, names::path_segment_name);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["spec"]["parentRef"] == old["spec"]["parentRef"] {
            return Vec::new();
        }
        let path = Path::root("spec").child("parentRef");
        vec![FieldError::invalid(&path, new["spec"]["parentRef"].clone(), "field is immutable")]
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
