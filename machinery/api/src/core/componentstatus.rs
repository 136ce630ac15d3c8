//! ComponentStatus: an old view of the control plane's health, computed on every read.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{list, name, text};
use crate::kind::{Behaviour, Kind, Storage};

struct ComponentStatus;

pub fn kind() -> Kind {
    let mut kind = Kind::new("", "v1", "ComponentStatus", "componentstatuses")
        .cluster()
        .short(&["cs"])
        .verbs(&["get", "list"])
        .table("Name, Status, Message, Error")
        .deprecated("v1 ComponentStatus is deprecated in v1.19+")
        .behaviour(ComponentStatus);
    kind.storage = Storage::Virtual;
    kind
}

impl Behaviour for ComponentStatus {
    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let healthy = list(object, "/conditions").iter().find(|c| text(c, "/type") == "Healthy");
        let (status, message, error) = match healthy {
            Some(c) if text(c, "/status") == "True" => ("Healthy", text(c, "/message"), text(c, "/error")),
            Some(c) => ("Unhealthy", text(c, "/message"), text(c, "/error")),
            None => ("Unknown", "", ""),
        };
        vec![name(object), status.into(), message.into(), error.into()]
    }
}
