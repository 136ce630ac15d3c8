//! FlowSchema.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, list, name, number, or, text};
use crate::defaulting::default_nonzero;
use crate::kind::{Behaviour, Kind};

struct FlowSchema;

pub fn kind() -> Kind {
    Kind::new("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas")
        .cluster()
        .status()
        .status_keeps_metadata()
        .generation()
        .table("Name, PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL")
        .rows_by(2)
        .behaviour(FlowSchema)
}

impl Behaviour for FlowSchema {
    fn rules(&self) -> &'static str {
        ".flowcontrol.v1.FlowSchema"
    }

    fn default(&self, object: &mut Value) {
        default_nonzero(object, "/spec/matchingPrecedence", 1000);
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let dangling = list(object, "/status/conditions").iter().find(|c| text(c, "/type") == "Dangling");
        vec![
            name(object),
            text(object, "/spec/priorityLevelConfiguration/name").into(),
            number(object, "/spec/matchingPrecedence").into(),
            or(text(object, "/spec/distinguisherMethod/type"), "<none>").into(),
            age(object, now),
            dangling.map_or("?", |c| text(c, "/status")).into(),
        ]
    }
}
