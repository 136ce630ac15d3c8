//! Reads the settings of the cluster that a node joins.

use std::path::PathBuf;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_client::Client;

use crate::directories::Directories;
use crate::pki::write_private;
use crate::settings::{KEY, NAME, NAMESPACE, Settings, parse};

/// Returns the cluster's settings, or the last known ones while the API server cannot be reached.
pub async fn learn(client: &Client, directories: &Directories) -> Result<Settings> {
    let remembered = file(directories);
    match client.get::<ConfigMap>(NAMESPACE, NAME).await {
        Ok(config) => {
            let text = config.data.and_then(|mut data| data.remove(KEY)).context("the cluster's settings are empty")?;
            let settings = parse(&text).context("the cluster's settings cannot be read")?;
            write_private(&remembered, text.as_bytes())?;
            Ok(settings)
        }
        Err(error) => {
            let text = std::fs::read(&remembered).map_err(|_| error).context("the cluster's settings are not known")?;
            tracing::warn!("the API server does not answer; going on with the settings of the last start");
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", remembered.display()))
        }
    }
}

/// Returns the settings of the last start, or the defaults.
pub fn remembered(directories: &Directories) -> Settings {
    let text = std::fs::read(file(directories)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn file(directories: &Directories) -> PathBuf {
    directories.data.join("cluster.json")
}
