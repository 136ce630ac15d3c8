//! PriorityLevelConfiguration.

use corten_meta::Value;

use crate::defaulting::{default_at, default_nonzero};
use crate::kind::{Behaviour, Kind};

struct PriorityLevelConfiguration;

pub fn kind() -> Kind {
    Kind::new("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations")
        .cluster()
        .status()
        .status_keeps_metadata()
        .generation()
        .table(
            "Name, Type=/spec/type, NominalConcurrencyShares=value(/spec/limited/nominalConcurrencyShares), \
             Queues=value(/spec/limited/limitResponse/queuing/queues), \
             HandSize=value(/spec/limited/limitResponse/queuing/handSize), \
             QueueLengthLimit=value(/spec/limited/limitResponse/queuing/queueLengthLimit), Age",
        )
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
}
