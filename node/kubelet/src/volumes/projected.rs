//! The files of a `projected` volume: tokens, ConfigMaps, Secrets and fields of the pod in one tree.

use corten_api::k8s_openapi::api::core::v1::{Pod, ProjectedVolumeSource};
use jiff::Timestamp;

use super::{Context, File, Payload, config_map, downward_api, fs_group, mode, secret};
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
            payload.insert(source.path.clone(), token_file(context.pod, token.text, default_mode));
        } else {
            return Err(Error::pod("this type of projection is not supported by this node"));
        }
    }
    Ok(payload)
}

/// Returns the file of a token. It belongs to the user that all containers run as, if there is one, and only that user
/// and the pod's group can read it. Without either, it has the mode of the volume.
fn token_file(pod: &Pod, token: String, default_mode: u32) -> File {
    let owner = fs_group::common_user(pod);
    let is_restricted = owner.is_some() || fs_group::fs_group(pod).is_some();
    let mode = if is_restricted { 0o600 } else { default_mode };
    File { content: token.into_bytes(), mode, owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_token_belongs_to_the_user_of_all_containers() {
        let two = r#""initContainers":[{"name":"i"}],"containers":[{"name":"a"},{"name":"b"}]"#;
        for (spec, owner, mode) in [
            (format!("{{{two}}}"), None, 0o644),
            (format!(r#"{{"securityContext":{{"runAsUser":1000}},{two}}}"#), Some(1000), 0o600),
            (format!(r#"{{"securityContext":{{"fsGroup":10000}},{two}}}"#), None, 0o600),
            (format!(r#"{{"securityContext":{{"runAsUser":1000,"fsGroup":10000}},{two}}}"#), Some(1000), 0o600),
            (
                r#"{"securityContext":{"runAsUser":1000},"containers":[{"name":"a","securityContext":{"runAsUser":1}},{"name":"b"}]}"#.to_owned(),
                None,
                0o644,
            ),
            (
                r#"{"securityContext":{"runAsUser":7},"containers":[{"name":"a"}],"ephemeralContainers":[{"name":"e","securityContext":{"runAsUser":8}}]}"#.to_owned(),
                Some(7),
                0o600,
            ),
        ] {
            let file = token_file(&fixtures::pod(&spec), "token".to_owned(), 0o644);
            assert_eq!((file.owner, file.mode), (owner, mode), "{spec}");
        }
    }
}
