//! Typed views of objects: k8s-openapi's structs, decoded and encoded here and nowhere else.
//!
//! The serde code of a struct is instantiated in the crate that calls it, and one Pod takes minutes to compile; so
//! every package uses [`Typed`], whose functions are plain code of this crate. Invariant: no other package calls serde
//! on an API struct.

use bytes::Bytes;
use corten_meta::{Object, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};

use crate::Error;

/// A built-in kind as a struct.
pub trait Typed: Sized + Send + Sync + Clone + Default + std::fmt::Debug + PartialEq + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str;
    /// The `apiVersion`: `apps/v1`, or `v1` for the core group.
    const API_VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
    const NAMESPACED: bool;

    /// Decodes JSON; unknown fields are ignored, absent required ones take their zero value.
    fn decode(bytes: &[u8]) -> Result<Self, Error>;
    /// Encodes JSON with `apiVersion` and `kind`.
    fn encode(&self) -> Bytes;
    fn from_value(value: Value) -> Result<Self, Error> {
        Self::decode(value.to_string().as_bytes())
    }
    fn to_value(&self) -> Value {
        serde_json::from_slice(&self.encode()).expect("encode wrote JSON")
    }
    fn meta(&self) -> &ObjectMeta;
    fn meta_mut(&mut self) -> &mut ObjectMeta;
    /// Returns `metadata.name`, or empty.
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }
    /// Returns `metadata.namespace`, or empty.
    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }
}

/// Decodes a cached object; its resourceVersion is the revision, which the bytes do not have.
pub fn decode_object<K: Typed>(object: &Object) -> Result<K, Error> {
    let mut typed = K::decode(&object.bytes)?;
    typed.meta_mut().resource_version = Some(object.revision.to_string());
    Ok(typed)
}

/// Declares kinds, one per line: the struct, its plural and its scope.
macro_rules! typed {
    ($($($path:ident)::+ , $plural:literal, $namespaced:literal;)+) => { $(
        impl Typed for k8s_openapi::$($path)::+ {
            const GROUP: &'static str = <Self as Resource>::GROUP;
            const VERSION: &'static str = <Self as Resource>::VERSION;
            const API_VERSION: &'static str = <Self as Resource>::API_VERSION;
            const KIND: &'static str = <Self as Resource>::KIND;
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $namespaced;

            fn decode(bytes: &[u8]) -> Result<Self, Error> {
                serde_json::from_slice(bytes)
                    .map_err(|e| Error::Decode { kind: <Self as Typed>::KIND, reason: e.to_string() })
            }
            fn encode(&self) -> Bytes {
                serde_json::to_vec(self).expect("API structs have string keys only").into()
            }
            fn meta(&self) -> &ObjectMeta {
                self.metadata()
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                self.metadata_mut()
            }
        }
    )+
    /// Decodes and encodes an object of a kind: the round trip of the golden tests. `None` if the kind has no typed
    /// form.
    pub fn round_trip(api_version: &str, kind: &str, bytes: &[u8]) -> Option<Result<Bytes, Error>> {
        $(
            if <k8s_openapi::$($path)::+ as Typed>::API_VERSION == api_version
                && <k8s_openapi::$($path)::+ as Typed>::KIND == kind
            {
                return Some(<k8s_openapi::$($path)::+ as Typed>::decode(bytes).map(|o| o.encode()));
            }
        )+
        None
    }
    };
}

typed! {
    api::core::v1::Binding, "bindings", true;
    api::core::v1::ConfigMap, "configmaps", true;
    api::core::v1::Endpoints, "endpoints", true;
    api::core::v1::Event, "events", true;
    api::core::v1::Namespace, "namespaces", false;
    api::core::v1::Node, "nodes", false;
    api::core::v1::PersistentVolume, "persistentvolumes", false;
    api::core::v1::PersistentVolumeClaim, "persistentvolumeclaims", true;
    api::core::v1::Pod, "pods", true;
    api::core::v1::ReplicationController, "replicationcontrollers", true;
    api::core::v1::ResourceQuota, "resourcequotas", true;
    api::core::v1::Secret, "secrets", true;
    api::core::v1::Service, "services", true;
    api::core::v1::ServiceAccount, "serviceaccounts", true;
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, "customresourcedefinitions", false;
    api::apps::v1::ControllerRevision, "controllerrevisions", true;
    api::apps::v1::DaemonSet, "daemonsets", true;
    api::apps::v1::Deployment, "deployments", true;
    api::apps::v1::ReplicaSet, "replicasets", true;
    api::apps::v1::StatefulSet, "statefulsets", true;
    api::authentication::v1::TokenReview, "tokenreviews", false;
    api::authorization::v1::SubjectAccessReview, "subjectaccessreviews", false;
    api::autoscaling::v1::HorizontalPodAutoscaler, "horizontalpodautoscalers", true;
    api::autoscaling::v2::HorizontalPodAutoscaler, "horizontalpodautoscalers", true;
    api::batch::v1::CronJob, "cronjobs", true;
    api::batch::v1::Job, "jobs", true;
    api::certificates::v1::CertificateSigningRequest, "certificatesigningrequests", false;
    api::coordination::v1::Lease, "leases", true;
    api::discovery::v1::EndpointSlice, "endpointslices", true;
    api::events::v1::Event, "events", true;
    api::flowcontrol::v1::FlowSchema, "flowschemas", false;
    api::networking::v1::IPAddress, "ipaddresses", false;
    api::networking::v1::NetworkPolicy, "networkpolicies", true;
    api::networking::v1::ServiceCIDR, "servicecidrs", false;
    api::node::v1::RuntimeClass, "runtimeclasses", false;
    api::policy::v1::PodDisruptionBudget, "poddisruptionbudgets", true;
    api::rbac::v1::ClusterRoleBinding, "clusterrolebindings", false;
    api::rbac::v1::ClusterRole, "clusterroles", false;
    api::rbac::v1::RoleBinding, "rolebindings", true;
    api::rbac::v1::Role, "roles", true;
    api::resource::v1::DeviceClass, "deviceclasses", false;
    api::resource::v1::ResourceClaim, "resourceclaims", true;
    api::resource::v1::ResourceClaimTemplate, "resourceclaimtemplates", true;
    api::resource::v1::ResourceSlice, "resourceslices", false;
    api::scheduling::v1::PriorityClass, "priorityclasses", false;
    api::storage::v1::CSIDriver, "csidrivers", false;
    api::storage::v1::CSINode, "csinodes", false;
    api::storage::v1::CSIStorageCapacity, "csistoragecapacities", true;
    api::storage::v1::StorageClass, "storageclasses", false;
    api::storage::v1::VolumeAttachment, "volumeattachments", false;
    api::storage::v1::VolumeAttributesClass, "volumeattributesclasses", false;
    api::authentication::v1::TokenRequest, "token", true;
    api::autoscaling::v1::Scale, "scale", true;
}
