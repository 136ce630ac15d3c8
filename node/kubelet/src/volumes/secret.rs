//! The files of a `secret` volume or projection. They are in memory only.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{KeyToPath, Secret, SecretVolumeSource};

use super::{Context, Payload, mode, project_keys, read};
use crate::error::Result;

pub async fn payload(context: &Context<'_>, source: &SecretVolumeSource) -> Result<Payload> {
    let name = source.secret_name.as_deref().unwrap_or_default();
    let default_mode = mode(source.default_mode, 0o644);
    project(context, name, source.items.as_deref(), default_mode, source.optional == Some(true)).await
}

pub async fn project(
    context: &Context<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    default_mode: u32,
    optional: bool,
) -> Result<Payload> {
    let Some(object) = read::<Secret>(context, name, optional).await? else { return Ok(Payload::new()) };
    let data: BTreeMap<String, Vec<u8>> =
        object.data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect();
    project_keys(&data, items, default_mode, optional)
}
