//! Admin access to devices: a claim may request it only in a namespace whose label allows it, because a pod with admin
//! access sees how other pods use their devices. This is an admission plugin because it reads another object.

use corten_meta::{FieldError, Path, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

/// The namespace's label that allows admin access.
const LABEL: &str = "resource.kubernetes.io/admin-access";

pub struct AdminAccess;

impl Plugin for AdminAccess {
    /// Waits until the caches are fresh: the label may have been set a moment ago.
    fn allocate<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async {
            if admin_access_path(a).is_some() {
                a.target.core.objects.fresh().await?;
            }
            Ok(())
        })
    }

    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        let Some(path) = admin_access_path(a) else { return Vec::new() };
        let namespace = a.target.core.objects.cached("", "namespaces", "", a.target.namespace);
        let is_allowed = namespace.is_some_and(|namespace| namespace.value()["metadata"]["labels"][LABEL] == "true");
        if is_allowed {
            return Vec::new();
        }
        let detail = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
        vec![FieldError::forbidden(&path, detail)]
    }
}

/// Returns the path at which a write first requests or grants admin access.
fn admin_access_path(a: &Attributes<'_>) -> Option<Path> {
    match a.operation {
        Operation::Create if a.is("resource.k8s.io", "resourceclaims", "") => requested(&a.object["spec"]),
        Operation::Create if a.is("resource.k8s.io", "resourceclaimtemplates", "") => {
            requested(&a.object["spec"]["spec"])
        }
        // Neither field changes once it is set.
        Operation::Update if a.is("resource.k8s.io", "resourceclaims", "status") => {
            granted(&a.object).filter(|_| a.old.as_deref().is_none_or(|old| granted(old).is_none()))
        }
        _ => None,
    }
}

/// Returns the path at which the spec of a claim first requests admin access.
fn requested(spec: &Value) -> Option<Path> {
    let requests = spec["devices"]["requests"].as_array()?;
    let at = requests.iter().position(|request| request["exactly"]["adminAccess"] == true)?;
    Some(Path::root("spec").child("devices").child("requests").index(at).child("adminAccess"))
}

/// Returns the path at which the status of a claim first grants admin access.
fn granted(claim: &Value) -> Option<Path> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array()?;
    let at = results.iter().position(|result| result["adminAccess"] == true)?;
    let devices = Path::root("status").child("allocation").child("devices");
    Some(devices.child("results").index(at).child("adminAccess"))
}
