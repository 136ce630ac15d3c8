//! The image service.

use std::collections::HashMap;

use base64::Engine;
use corten_cri::v1;
use tonic::{Request, Response, Status};

use super::Services;
use crate::Error;
use crate::images::{ImageRecord, ImageStore, PullAuth};

pub(crate) struct Images(pub Services);

#[tonic::async_trait]
impl corten_cri::ImageService for Images {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let store = &self.0.daemon.images;
        let wanted = request.into_inner().filter.and_then(|filter| filter.image).unwrap_or_default().image;
        let records = match wanted.as_str() {
            "" => store.list()?,
            image => store.find(image)?.into_iter().collect(),
        };
        let images = records.iter().map(|record| shown(store, record)).collect();
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let store = &self.0.daemon.images;
        let request = request.into_inner();
        let found = store.find(&request.image.unwrap_or_default().image)?;
        let image = found.as_ref().map(|record| shown(store, record));
        let mut info = HashMap::new();
        if let (true, Some(record)) = (request.verbose, &found) {
            info.insert("info".to_string(), serde_json::to_string(record).unwrap_or_default());
        }
        Ok(Response::new(v1::ImageStatusResponse { image, info }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let request = request.into_inner();
        let image = request.image.unwrap_or_default().image;
        let auth = credentials(request.auth.unwrap_or_default())?;
        let record = self.0.daemon.images.pull(&image, auth).await?;
        Ok(Response::new(v1::PullImageResponse { image_ref: record.id.to_string() }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let image = request.into_inner().image.unwrap_or_default().image;
        let store = self.0.daemon.images.clone();
        let in_use = self.0.daemon.layers_in_use();
        let removed = tokio::task::spawn_blocking(move || store.remove(&image, &in_use)).await;
        removed.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        Ok(Response::new(self.0.daemon.filesystem_usage().await?))
    }
}

/// Returns the CRI image of a record. The image's user decides whether `runAsNonRoot` holds: an id if it is numeric,
/// else a name.
fn shown(store: &ImageStore, record: &ImageRecord) -> v1::Image {
    let user = store.config(&record.id).map(|config| config.config.user).unwrap_or_default();
    let user = user.split(':').next().unwrap_or_default().to_string();
    // A minus sign makes a name, as where the container's user is looked up.
    let uid = user.parse::<i64>().ok().filter(|_| !user.starts_with('-'));
    v1::Image {
        id: record.id.to_string(),
        repo_tags: record.tags.clone(),
        repo_digests: record.digests.clone(),
        size: record.size,
        uid: uid.map(|value| v1::Int64Value { value }),
        username: if uid.is_none() { user } else { String::new() },
        spec: Some(v1::ImageSpec { image: record.id.to_string(), ..v1::ImageSpec::default() }),
        pinned: record.pinned,
    }
}

/// Returns the credentials that the kubelet sends; the first kind that is set wins.
fn credentials(auth: v1::AuthConfig) -> Result<PullAuth, Error> {
    if !auth.username.is_empty() || !auth.password.is_empty() {
        return Ok(PullAuth::Basic(auth.username, auth.password));
    }
    if !auth.auth.is_empty() {
        let malformed = || Error::Invalid("malformed registry credentials".into());
        let decoded = base64::engine::general_purpose::STANDARD.decode(&auth.auth).map_err(|_| malformed())?;
        let pair = String::from_utf8(decoded).map_err(|_| malformed())?;
        let (user, password) = pair.split_once(':').ok_or_else(malformed)?;
        return Ok(PullAuth::Basic(user.to_string(), password.trim_end_matches('\0').to_string()));
    }
    if !auth.registry_token.is_empty() {
        return Ok(PullAuth::Token(auth.registry_token));
    }
    Ok(PullAuth::Anonymous)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_come_in_three_forms() {
        let basic = PullAuth::Basic("user".into(), "word".into());
        let plain = v1::AuthConfig { username: "user".into(), password: "word".into(), ..v1::AuthConfig::default() };
        assert_eq!(credentials(plain).expect("plain"), basic);
        let encoded = v1::AuthConfig { auth: "dXNlcjp3b3Jk".into(), ..v1::AuthConfig::default() };
        assert_eq!(credentials(encoded).expect("encoded"), basic);
        let token = v1::AuthConfig { registry_token: "t".into(), ..v1::AuthConfig::default() };
        assert_eq!(credentials(token).expect("token"), PullAuth::Token("t".into()));
        assert_eq!(credentials(v1::AuthConfig::default()).expect("none"), PullAuth::Anonymous);
        assert!(credentials(v1::AuthConfig { auth: "?".into(), ..v1::AuthConfig::default() }).is_err());
    }
}
