//! The files of a `downwardAPI` volume or projection: the pod's own fields.

use corten_api::k8s_openapi::api::core::v1::DownwardAPIVolumeFile;

use super::{Context, File, Payload, mode};
use crate::error::{Error, Result};
use crate::pod::downward_api;

pub fn payload(context: &Context<'_>, items: &[DownwardAPIVolumeFile], default_mode: u32) -> Result<Payload> {
    let mut payload = Payload::new();
    for item in items {
        let text = if let Some(selector) = &item.field_ref {
            downward_api::field(context.pod, context.downward, selector)?
        } else if let Some(selector) = &item.resource_field_ref {
            downward_api::resource(context.pod, None, context.downward, selector)?
        } else {
            return Err(Error::pod(format!(
                "downwardAPI item {} has neither fieldRef nor resourceFieldRef",
                item.path
            )));
        };
        let file = File { content: text.into_bytes(), mode: mode(item.mode, default_mode), owner: None };
        payload.insert(item.path.clone(), file);
    }
    Ok(payload)
}
