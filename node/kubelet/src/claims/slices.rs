//! ResourceSlices of drivers that are gone: the scheduler must not choose devices that no driver can prepare.

use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::resource::v1::ResourceSlice;
use corten_client::{DeleteOptions, ListOptions};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Claims;
use crate::error::Result;

/// The time within which an updated driver registers again.
const GRACE: Duration = Duration::from_secs(30);

/// Deletes the driver's slices of this node, unless it registers again after its socket was removed.
pub async fn delete_after_grace(claims: Arc<Claims>, driver: String, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = tokio::time::sleep(GRACE) => {}
    }
    if let Err(error) = claims.delete_slices(|name| name == driver).await {
        warn!(%error, driver, "ResourceSlices of a driver that is gone were not deleted");
    }
}

/// Deletes at start the slices of drivers that do not register again.
pub async fn delete_unregistered(claims: Arc<Claims>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = tokio::time::sleep(GRACE) => {}
    }
    if let Err(error) = claims.delete_slices(|_| true).await {
        warn!(%error, "ResourceSlices of drivers that are gone were not deleted");
    }
}

impl Claims {
    /// Deletes the slices of this node whose driver matches and is not registered.
    async fn delete_slices(&self, fits: impl Fn(&str) -> bool) -> Result<()> {
        let own = ListOptions::fields(format!("spec.nodeName={}", self.node_name));
        for slice in self.client.list::<ResourceSlice>("", &own).await?.items {
            if !fits(&slice.spec.driver) || self.is_registered(&slice.spec.driver) {
                continue;
            }
            let name = slice.metadata.name.unwrap_or_default();
            match self.client.delete::<ResourceSlice>("", &name, &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}
