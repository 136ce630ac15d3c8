//! PriorityLevelConfiguration.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::defaulting::{default_at, default_nonzero};
use crate::kind::{Behaviour, Kind};

struct PriorityLevelConfiguration;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations")
        .cluster()
        .status()
        .status_keeps_metadata()
        .generation()
        .table("Name, Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age")
        .behaviour(PriorityLevelConfiguration)
}

impl Behaviour for PriorityLevelConfiguration {
    fn rules(&self) -> &'static str {
        ".flowcontrol.v1.PriorityLevelConfiguration"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/exempt/nominalConcurrencyShares", 0);
        default_at(object, "/spec/exempt/lendablePercent", 0);
        default_at(object, "/spec/limited/nominalConcurrencyShares", 30);
        default_at(object, "/spec/limited/lendablePercent", 0);
        default_nonzero(object, "/spec/limited/limitResponse/queuing/handSize", 8);
        default_nonzero(object, "/spec/limited/limitResponse/queuing/queues", 64);
        default_nonzero(object, "/spec/limited/limitResponse/queuing/queueLengthLimit", 50);
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let cell = |pointer: &str| object.pointer(pointer).cloned().unwrap_or_else(|| "<none>".into());
        vec![
            name(object),
            text(object, "/spec/type").into(),
            cell("/spec/limited/nominalConcurrencyShares"),
            cell("/spec/limited/limitResponse/queuing/queues"),
            cell("/spec/limited/limitResponse/queuing/handSize"),
            cell("/spec/limited/limitResponse/queuing/queueLengthLimit"),
            age(object, now),
        ]
    }
}
