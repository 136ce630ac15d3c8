//! The parts that all kinds share, and how a struct becomes a typed kind.

use serde::{Deserialize, Serialize};

/// A reference from a content to its snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The last error in a status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusError {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// Implements [`corten_api::Typed`] for a struct with the field `metadata`.
macro_rules! kind {
    ($struct:ident, $group:literal, $version:literal, $plural:literal, $namespaced:literal) => {
        impl corten_api::Typed for $struct {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const KIND: &'static str = stringify!($struct);
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $namespaced;

            fn decode(bytes: &[u8]) -> Result<Self, corten_api::Error> {
                serde_json::from_slice(bytes)
                    .map_err(|error| corten_api::Error::Decode { kind: stringify!($struct), reason: error.to_string() })
            }

            fn encode(&self) -> bytes::Bytes {
                let mut object = serde_json::to_value(self).unwrap_or_default();
                object["apiVersion"] = Self::API_VERSION.into();
                object["kind"] = Self::KIND.into();
                object.to_string().into()
            }

            fn meta(&self) -> &corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use kind;
