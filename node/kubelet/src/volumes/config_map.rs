//! The files of a `configMap` volume or projection.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{ConfigMap, ConfigMapVolumeSource, KeyToPath};

use super::{Context, Payload, mode, project_keys, read};
use crate::error::Result;

pub async fn payload(context: &Context<'_>, source: &ConfigMapVolumeSource) -> Result<Payload> {
    let default_mode = mode(source.default_mode, 0o644);
    project(context, &source.name, source.items.as_deref(), default_mode, source.optional == Some(true)).await
}

pub async fn project(
    context: &Context<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    default_mode: u32,
    optional: bool,
) -> Result<Payload> {
    let Some(object) = read::<ConfigMap>(context, name, optional).await? else { return Ok(Payload::new()) };
    let mut data: BTreeMap<String, Vec<u8>> =
        object.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes())).collect();
    data.extend(object.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)));
    project_keys(&data, items, default_mode, optional)
}
