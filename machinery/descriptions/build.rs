//! Writes every description in the schema output of `k8s-openapi` into one compressed file.
//!
//! The build makes the file, so that no description is in the source tree. It is deflated JSON, type → field →
//! description (the field of the type itself is empty). A second, small file has the descriptions of table columns,
//! which every `kubectl get` needs; `src/columns.tbl` names their sources.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use k8s_openapi::schemars::SchemaGenerator;
use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::Value;

type Descriptions = BTreeMap<String, BTreeMap<String, String>>;

/// Adds each type, and every type that it refers to.
macro_rules! kinds {
    ($generator:ident: $($kind:path;)+) => {
        $( $generator.subschema_for::<$kind>(); )+
    };
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/columns.tbl");
    let mut generator = SchemaSettings::openapi3().into_generator();
    add_kinds(&mut generator);
    let descriptions = collect(generator.definitions());
    write("descriptions.zz", &descriptions);
    write("columns.zz", &columns(&descriptions));
}

fn write(name: &str, descriptions: &Descriptions) {
    let json = serde_json::to_vec(descriptions).expect("maps of text are JSON");
    let directory = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let file = std::fs::File::create(Path::new(&directory).join(name)).expect("OUT_DIR is writable");
    let mut encoder = flate2::write::ZlibEncoder::new(file, flate2::Compression::best());
    encoder.write_all(&json).and_then(|()| encoder.finish().map(drop)).expect("OUT_DIR is writable");
}

/// Returns kind → column → description. A line without a described field fails the build.
fn columns(descriptions: &Descriptions) -> Descriptions {
    let mut all = Descriptions::new();
    for line in include_str!("src/columns.tbl").lines().filter(|line| !line.starts_with('#')) {
        let (column, source) = line.split_once(" = ").expect("a line is KIND/COLUMN = SOURCE");
        let (kind, column) = column.split_once('/').expect("a line is KIND/COLUMN = SOURCE");
        let text = source_text(descriptions, source).unwrap_or_else(|| panic!("no description: {line}"));
        all.entry(kind.to_string()).or_default().insert(column.to_string(), text);
    }
    all
}

fn source_text(descriptions: &Descriptions, source: &str) -> Option<String> {
    let unquoted = |text: &str| text.strip_prefix('"')?.strip_suffix('"').map(str::to_string);
    if let Some(text) = unquoted(source) {
        return Some(text);
    }
    let (source, ending) = source.split_once(" minus ").unwrap_or((source, "\"\""));
    let (of, field) = source.rsplit_once('.')?;
    let package = if of.starts_with("meta.") { "io.k8s.apimachinery.pkg.apis." } else { "io.k8s.api." };
    let text = descriptions.get(&format!("{package}{of}"))?.get(field)?;
    text.strip_suffix(&unquoted(ending)?).map(str::to_string)
}

fn collect(definitions: &serde_json::Map<String, Value>) -> Descriptions {
    let text = |schema: &Value| schema.get("description").and_then(Value::as_str).map(str::to_string);
    let mut all = Descriptions::new();
    for (name, schema) in definitions {
        let mut fields: BTreeMap<String, String> = text(schema).map(|t| (String::new(), t)).into_iter().collect();
        for (field, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            fields.extend(text(property).map(|t| (field.clone(), t)));
        }
        all.insert(name.clone(), fields);
    }
    all
}

fn add_kinds(generator: &mut SchemaGenerator) {
    use k8s_openapi::api::*;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
    use k8s_openapi::apimachinery::pkg::apis::meta;
    use k8s_openapi::kube_aggregator::pkg::apis::apiregistration;
    kinds! { generator:
        core::v1::ComponentStatus;
        core::v1::ConfigMap;
        core::v1::Endpoints;
        core::v1::Event;
        core::v1::LimitRange;
        core::v1::Namespace;
        core::v1::Node;
        core::v1::PersistentVolume;
        core::v1::PersistentVolumeClaim;
        core::v1::Pod;
        core::v1::PodTemplate;
        core::v1::ReplicationController;
        core::v1::ResourceQuota;
        core::v1::Secret;
        core::v1::Service;
        core::v1::ServiceAccount;
        admissionregistration::v1::MutatingAdmissionPolicy;
        admissionregistration::v1::MutatingAdmissionPolicyBinding;
        admissionregistration::v1::MutatingWebhookConfiguration;
        admissionregistration::v1::ValidatingAdmissionPolicy;
        admissionregistration::v1::ValidatingAdmissionPolicyBinding;
        admissionregistration::v1::ValidatingWebhookConfiguration;
        apiextensions::v1::CustomResourceDefinition;
        apiregistration::v1::APIService;
        apps::v1::ControllerRevision;
        apps::v1::DaemonSet;
        apps::v1::Deployment;
        apps::v1::ReplicaSet;
        apps::v1::StatefulSet;
        autoscaling::v1::HorizontalPodAutoscaler;
        autoscaling::v2::HorizontalPodAutoscaler;
        batch::v1::CronJob;
        batch::v1::Job;
        certificates::v1::CertificateSigningRequest;
        coordination::v1::Lease;
        discovery::v1::EndpointSlice;
        events::v1::Event;
        flowcontrol::v1::FlowSchema;
        flowcontrol::v1::PriorityLevelConfiguration;
        networking::v1::IngressClass;
        networking::v1::Ingress;
        networking::v1::IPAddress;
        networking::v1::NetworkPolicy;
        networking::v1::ServiceCIDR;
        node::v1::RuntimeClass;
        policy::v1::PodDisruptionBudget;
        rbac::v1::ClusterRoleBinding;
        rbac::v1::ClusterRole;
        rbac::v1::RoleBinding;
        rbac::v1::Role;
        resource::v1::DeviceClass;
        resource::v1::ResourceClaim;
        resource::v1::ResourceClaimTemplate;
        resource::v1::ResourceSlice;
        scheduling::v1::PriorityClass;
        storage::v1::CSIDriver;
        storage::v1::CSINode;
        storage::v1::CSIStorageCapacity;
        storage::v1::StorageClass;
        storage::v1::VolumeAttachment;
        storage::v1::VolumeAttributesClass;
        core::v1::Binding;
        authentication::v1::SelfSubjectReview;
        authentication::v1::TokenReview;
        authorization::v1::LocalSubjectAccessReview;
        authorization::v1::SelfSubjectAccessReview;
        authorization::v1::SelfSubjectRulesReview;
        authorization::v1::SubjectAccessReview;
        authentication::v1::TokenRequest;
        autoscaling::v1::Scale;
        policy::v1::Eviction;
        meta::v1::DeleteOptions;
        meta::v1::Status;
        meta::v1::APIResourceList;
        meta::v1::APIGroupList;
        meta::v1::APIVersions;
    }
}
