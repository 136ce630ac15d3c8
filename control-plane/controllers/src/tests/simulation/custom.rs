//! A custom resource that is created and deleted with its CustomResourceDefinition, in the API in memory.
//!
//! As at the real server, the deletion of the CustomResourceDefinition first deletes all its objects and then the
//! resource itself: it is not found, its watches end, and discovery no longer lists it.

use std::sync::{Arc, LazyLock};

use corten_api::Kind;
use corten_meta::{Status, Value};
use http::Method;
use serde_json::json;

use super::all;
use super::api::Api;
use super::cluster::path_of;
use super::server::Server;

pub const KIND: &str = "Widget";
pub const API_VERSION: &str = "example.com/v1";
const DEFINITION: &str = "CustomResourceDefinition";
const NAME: &str = "widgets.example.com";

static WIDGETS: LazyLock<Arc<Kind>> = LazyLock::new(|| {
    let mut kind = Kind::new("example.com", "v1", KIND, "widgets");
    // The table of schemas does not contain it.
    kind.schema = String::new();
    Arc::new(kind)
});

/// Returns the CustomResourceDefinition, as a user writes it.
pub fn definition() -> Value {
    let names = json!({"plural": "widgets", "singular": "widget", "kind": KIND, "listKind": "WidgetList"});
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": DEFINITION, "metadata": {"name": NAME},
        "spec": {"group": "example.com", "names": names, "scope": "Namespaced", "versions": [version]}})
}

/// Returns all kinds, the custom one included.
fn kinds() -> impl Iterator<Item = &'static Arc<Kind>> {
    corten_api::kinds().iter().chain(std::iter::once(&*WIDGETS))
}

pub fn lookup(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    let mut found = kinds().filter(|kind| kind.group == group && kind.version == version && kind.plural == plural);
    found.next().map(|kind| &**kind)
}

pub fn by_gvk(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    let mut found = kinds().filter(|one| one.group == group && one.version == version && one.kind == kind);
    found.next().map(|kind| &**kind)
}

impl Api {
    /// Returns the kinds that are served now.
    pub fn served(&self) -> Vec<&'static Kind> {
        kinds().map(|kind| &**kind).filter(|kind| self.serves(kind)).collect()
    }

    pub fn serves(&self, kind: &Kind) -> bool {
        !kind.is_custom() || self.model.find(DEFINITION, "", NAME).is_some()
    }

    /// Fails if a kind is not served; a terminating one rejects creations.
    pub fn answers(&self, kind: &Kind, creates: bool) -> Result<(), Status> {
        if !kind.is_custom() {
            return Ok(());
        }
        let definition = self.model.find(DEFINITION, "", NAME).ok_or_else(Status::path_not_found)?;
        match creates && !definition["metadata"]["deletionTimestamp"].is_null() {
            true => Err(Status::method_not_allowed()),
            false => Ok(()),
        }
    }
}

/// Deletes a terminating CustomResourceDefinition after all its objects, as the server does.
pub fn reconcile_crds(server: &Server) {
    for definition in all(server, DEFINITION) {
        if definition["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let widgets = all(server, KIND);
        if widgets.is_empty() {
            let free = json!({"metadata": {"finalizers": null}});
            let _ = server.ask("apiserver", Method::PATCH, &path_of(&definition), &free);
        }
        for widget in widgets.iter().filter(|widget| widget["metadata"]["deletionTimestamp"].is_null()) {
            let _ = server.ask("apiserver", Method::DELETE, &path_of(widget), &json!({}));
        }
    }
}

/// Creates or deletes the CustomResourceDefinition, as a user.
pub fn toggle_definition(server: &Server) {
    let definition = definition();
    let collection = super::cluster::collection(&definition);
    if server.ask("user", Method::POST, &collection, &definition).is_err() {
        let _ = server.ask("user", Method::DELETE, &path_of(&definition), &json!({}));
    }
}

#[test]
fn a_custom_resource_comes_and_goes_with_its_definition() {
    let server = Server::new(1, super::server::Faults::NONE, Box::new(|_| Ok(())));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    super::cluster::put(&server, &namespace);
    let widget = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"namespace": "default", "name": "w"}});
    let collection = super::cluster::collection(&widget);
    let create = || server.ask("user", Method::POST, &collection, &widget);
    let found = || server.ask("user", Method::GET, "/apis/example.com/v1", &Value::Null).is_ok();
    assert!(create().is_err() && !found(), "nothing defines it");
    toggle_definition(&server);
    create().unwrap();
    assert!(found());
    toggle_definition(&server);
    reconcile_crds(&server);
    assert!(create().is_err() && found(), "its definition is on its way out, and it is gone");
    assert!(all(&server, KIND).is_empty());
    reconcile_crds(&server);
    assert!(!found());
    toggle_definition(&server);
    create().unwrap();
}
