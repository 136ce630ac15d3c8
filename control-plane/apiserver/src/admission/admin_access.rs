//! Admin access to devices: a claim may ask for it only in a namespace whose label allows it, because who has it sees
//! what others do with their devices. It stands among the plugins because it looks at another object.

use corten_meta::{FieldError, Path, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

/// The label of a namespace that allows it.
const LABEL: &str = "resource.kubernetes.io/admin-access";

pub struct AdminAccess;

impl Plugin for AdminAccess {
    fn name(&self) -> &'static str {
        "AdminAccess"
    }

    fn resources(&self) -> &'static [(&'static str, &'static str)] {
        &[("resource.k8s.io", "resourceclaims"), ("resource.k8s.io", "resourceclaimtemplates")]
    }

    /// The label may have been set a moment ago.
    fn allocate<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async {
            if asked(a).is_some() {
                a.target.core.registry.caches.fresh().await?;
            }
            Ok(())
        })
    }

    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        let Some(path) = asked(a) else { return Vec::new() };
        let namespace = a.target.core.registry.cached("", "v1", "namespaces", "", a.target.namespace);
        let is_allowed = namespace.is_some_and(|namespace| namespace.value()["metadata"]["labels"][LABEL] == "true");
        if is_allowed {
            return Vec::new();
        }
        let detail = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
        vec![FieldError::forbidden(&path, detail)]
    }
}

/// Where a write first asks for it.
fn asked(a: &Attributes<'_>) -> Option<Path> {
    match a.operation {
        Operation::Create if a.is("resource.k8s.io", "resourceclaims", "") => requested(&a.object["spec"]),
        Operation::Create if a.is("resource.k8s.io", "resourceclaimtemplates", "") => {
            requested(&a.object["spec"]["spec"])
        }
        // Neither changes once it is there.
        Operation::Update if a.is("resource.k8s.io", "resourceclaims", "status") => {
            granted(&a.object).filter(|_| a.old.as_deref().is_none_or(|old| granted(old).is_none()))
        }
        _ => None,
    }
}

/// Where the spec of a claim first asks for it.
fn requested(spec: &Value) -> Option<Path> {
    let requests = spec["devices"]["requests"].as_array()?;
    let at = requests.iter().position(|request| request["exactly"]["adminAccess"] == true)?;
    Some(Path::root("spec").child("devices").child("requests").index(at).child("adminAccess"))
}

/// Where the status of a claim first grants it.
fn granted(claim: &Value) -> Option<Path> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array()?;
    let at = results.iter().position(|result| result["adminAccess"] == true)?;
    let devices = Path::root("status").child("allocation").child("devices");
    Some(devices.child("results").index(at).child("adminAccess"))
}
