//! The files of a `projected` volume: tokens, ConfigMaps, Secrets and fields of the pod in one tree.

use corten_api::k8s_openapi::api::core::v1::ProjectedVolumeSource;
use jiff::Timestamp;

use super::{Context, File, Payload, config_map, downward_api, mode, ownership, secret};
use crate::error::{Error, Result};

pub async fn payload(
    context: &Context<'_>,
    source: &ProjectedVolumeSource,
    refresh_at: &mut Option<Timestamp>,
) -> Result<Payload> {
    let default_mode = mode(source.default_mode, 0o644);
    let mut payload = Payload::new();
    for source in source.sources.iter().flatten() {
        if let Some(source) = &source.config_map {
            let optional = source.optional == Some(true);
            payload.extend(
                config_map::project(context, &source.name, source.items.as_deref(), default_mode, optional).await?,
            );
        } else if let Some(source) = &source.secret {
            let optional = source.optional == Some(true);
            payload
                .extend(secret::project(context, &source.name, source.items.as_deref(), default_mode, optional).await?);
        } else if let Some(source) = &source.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            payload.extend(downward_api::payload(context, items, default_mode)?);
        } else if let Some(source) = &source.service_account_token {
            let token = context.tokens.get(context, source).await?;
            *refresh_at = Some(refresh_at.map_or(token.refresh_at, |at| at.min(token.refresh_at)));
            payload.insert(source.path.clone(), token_file(context, token.text, default_mode));
        } else {
            return Err(Error::pod("this type of projection is not supported by this node"));
        }
    }
    Ok(payload)
}

/// A token is for the pod's user alone, if all its containers run as one; else it is the group's.
fn token_file(context: &Context<'_>, token: String, default_mode: u32) -> File {
    let content = token.into_bytes();
    if ownership::fs_group(context.pod).is_some() {
        return File { content, mode: 0o600, owner: None };
    }
    match ownership::common_user(context.pod) {
        Some(user) => File { content, mode: 0o600, owner: Some(user) },
        None => File { content, mode: default_mode, owner: None },
    }
}
