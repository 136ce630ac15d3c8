//! ComponentStatus: an old view of the health of the control plane. The store's condition is the result of its last
//! write; the other components run in this process, so they are healthy.

use std::sync::Arc;

use corten_access::Verb;
use corten_meta::{GroupResource, Object, Status, Value};
use corten_store::Health;
use http::StatusCode;
use serde_json::json;

use crate::body::Reply;
use crate::cache::Item;
use crate::response::{self, ListMeta};
use crate::verbs::list::ListOptions;
use crate::write::Scope;

const STORE: &str = "etcd-0";
const COMPONENTS: &[&str] = &["controller-manager", STORE, "scheduler"];

pub fn read(target: &Scope<'_>) -> Result<Reply, Status> {
    let context = target.context;
    let kind = &target.resource.kind;
    let component = |name: &&str| {
        let object = json!({ "apiVersion": "v1", "kind": kind.kind, "metadata": { "name": name },
                             "conditions": [condition(name, &target.core.registry.store.health())] });
        Object::from_value(&object, 0).map(Arc::new).map_err(|e| Status::internal(e.to_string()))
    };
    if context.info.verb == Verb::List {
        let filter = ListOptions::read(target, false)?.filter;
        let mut objects: Vec<Arc<Object>> = COMPONENTS.iter().map(component).collect::<Result<_, _>>()?;
        objects.retain(|object| filter.matches(kind, &Item::of(Arc::clone(object))));
        return Ok(response::list(context.accept, context.include_object(), kind, objects, &ListMeta::default()));
    }
    let name = COMPONENTS.iter().find(|name| **name == target.name).ok_or_else(|| {
        // Upstream has the singular here.
        let resource = GroupResource { group: String::new(), resource: "componentstatus".to_owned() };
        Status::not_found(&resource, target.name)
    })?;
    Ok(response::object(context.accept, context.include_object(), StatusCode::OK, kind, &component(name)?))
}

fn condition(name: &str, store: &Health) -> Value {
    match store {
        Health::Failing { reason } | Health::Broken { reason } if name == STORE => {
            json!({ "type": "Healthy", "status": "False", "message": &**reason, "error": &**reason })
        }
        _ => json!({ "type": "Healthy", "status": "True", "message": "ok" }),
    }
}
