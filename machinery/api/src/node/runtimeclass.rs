//! RuntimeClass.

use corten_meta::Value;

use crate::check::{At, Errors};
use crate::kind::{Behaviour, Kind};

struct RuntimeClass;

pub fn kind() -> Kind {
    Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
        .cluster()
        .create_on_update()
        .conditional_update()
        .table("Name, Handler=/handler, Age")
        .behaviour(RuntimeClass)
}

impl Behaviour for RuntimeClass {
    fn rules(&self) -> &'static str {
        ".node.v1.RuntimeClass"
    }

    fn warnings(&self, class: &Value, _old: Option<&Value>) -> Vec<String> {
        let selector = At::object(class).get("scheduling").get("nodeSelector");
        let old = selector.entries().filter_map(|(key, _)| crate::core::pod_warnings::old_label(key));
        old.map(|why| format!("{}: {why}", selector.path)).collect()
    }
}

pub(crate) fn distinct_tolerations(tolerations: &At<'_>, errors: &mut Errors) {
    let mut seen = Vec::new();
    for toleration in tolerations.items() {
        let key = ["key", "effect", "operator", "value"].map(|field| toleration.get(field).text());
        if seen.contains(&key) {
            errors.push(toleration.duplicate());
        }
        seen.push(key);
    }
}
