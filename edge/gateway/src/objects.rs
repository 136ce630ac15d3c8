//! The objects that routes are resolved from: the fields that matter here, as plain structs.
//!
//! The API server has validated and defaulted them by their schemas. A field that is missing nevertheless (an object
//! that was stored under an older schema) has the zero value; nothing here may panic on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_meta::{Key, Object, Value};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use crate::policy_spec::RoutePolicySpec;
pub use crate::reference::Reference;

/// All objects of the cluster that routing depends on.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub classes: Store<GatewayClassSpec>,
    pub gateways: Store<GatewaySpec>,
    pub listener_sets: Store<ListenerSetSpec>,
    pub http_routes: Store<HttpRouteSpec>,
    pub grpc_routes: Store<GrpcRouteSpec>,
    pub tls_routes: Store<StreamRouteSpec>,
    pub tcp_routes: Store<StreamRouteSpec>,
    pub udp_routes: Store<StreamRouteSpec>,
    pub grants: Store<ReferenceGrantSpec>,
    pub policies: Store<BackendTlsPolicySpec>,
    pub route_policies: Store<RoutePolicySpec>,
    pub ingresses: Store<IngressSpec>,
    pub ingress_classes: Store<IngressClassSpec>,
    pub services: Store<ServiceSpec>,
    pub namespaces: Store<NamespaceSpec>,
    /// Secrets that a Gateway, ListenerSet or Ingress names.
    pub secrets: Store<NoSpec>,
    /// ConfigMaps with certificates of authorities.
    pub config_maps: Store<NoSpec>,
    /// The data nodes, by name.
    pub nodes: BTreeMap<String, DataNode>,
}

impl Objects {
    /// Returns the status of an object that has one of ours.
    pub fn status(&self, plural: &str, key: &Key) -> Option<&Value> {
        fn of<'a, S>(store: &'a Store<S>, key: &Key) -> Option<&'a Value> {
            store.get(key).map(|object| &object.status)
        }
        match plural {
            "httproutes" => of(&self.http_routes, key),
            "grpcroutes" => of(&self.grpc_routes, key),
            "tlsroutes" => of(&self.tls_routes, key),
            "tcproutes" => of(&self.tcp_routes, key),
            "udproutes" => of(&self.udp_routes, key),
            "ingresses" => of(&self.ingresses, key),
            "routepolicies" => of(&self.route_policies, key),
            _ => None,
        }
    }
}

/// The objects of one kind.
pub type Store<S> = BTreeMap<Key, Arc<Resource<S>>>;

/// A node whose data half is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataNode {
    pub addresses: Vec<std::net::IpAddr>,
    /// The generations of the Gateways that the node serves, by namespace and name; an IngressClass has no namespace.
    pub serves: BTreeMap<Key, i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resource<S> {
    pub metadata: Metadata,
    pub spec: S,
    pub status: Value,
    /// Of Secrets and ConfigMaps.
    pub data: BTreeMap<String, String>,
    #[serde(rename = "type")]
    pub type_: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub generation: i64,
    pub creation_timestamp: String,
    pub deletion_timestamp: Option<String>,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    pub fn key(&self) -> Key {
        Key::new(self.namespace.clone(), self.name.clone())
    }

    /// Reports whether two versions of an object differ in its status at most.
    pub fn is_same_spec(&self, other: &Metadata) -> bool {
        self.generation > 0
            && self.generation == other.generation
            && self.uid == other.uid
            && self.deletion_timestamp == other.deletion_timestamp
            && self.labels == other.labels
            && self.annotations == other.annotations
    }

    /// Returns the order of precedence: the oldest first, then by namespace and name.
    pub fn age(&self) -> Age {
        Age { created: self.creation_timestamp.clone(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// The precedence of objects that compete. Times are RFC 3339 in UTC, so their strings sort as they do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age {
    created: String,
    namespace: String,
    name: String,
}

/// Decodes an object. One that does not decode is left out: the API server admits none.
pub fn decode<S: DeserializeOwned + Default>(value: Value) -> Option<Resource<S>> {
    serde_json::from_value(value).inspect_err(|error| tracing::warn!(%error, "cannot decode an object")).ok()
}

/// Decodes an object as a watch has it, without the annotation in which kubectl keeps a copy of it.
pub fn decode_object<S: DeserializeOwned + Default>(object: &Object) -> Option<Resource<S>> {
    let decoded: Result<Resource<S>, _> = serde_json::from_slice(&object.bytes);
    let mut decoded = decoded.inspect_err(|error| tracing::warn!(%error, "cannot decode an object")).ok()?;
    decoded.metadata.resource_version = object.revision.to_string();
    decoded.metadata.annotations.remove(LAST_APPLIED);
    Some(decoded)
}

/// The annotation in which kubectl keeps a copy of an object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Clone, Debug, Default, Deserialize)]
pub struct NoSpec {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassSpec {
    pub controller_name: String,
    pub parameters_ref: Option<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    pub gateway_class_name: String,
    pub listeners: Vec<ListenerSpec>,
    pub addresses: Vec<AddressSpec>,
    pub infrastructure: Infrastructure,
    pub allowed_listeners: AllowedListeners,
    pub tls: GatewayTls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AddressSpec {
    #[serde(rename = "type")]
    pub type_: String,
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Infrastructure {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub parameters_ref: Option<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    pub namespaces: Namespaces,
}

/// The namespaces that may attach something.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    /// All, Selector, Same or None.
    pub from: String,
    pub selector: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    pub backend: BackendTlsSpec,
    pub frontend: FrontendTls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsSpec {
    pub client_certificate_ref: Option<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTls {
    pub default: TlsValidation,
    pub per_port: Vec<PortTls>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PortTls {
    pub port: u16,
    pub tls: TlsValidation,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TlsValidation {
    pub validation: Option<ClientCertificates>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientCertificates {
    pub ca_certificate_refs: Vec<Reference>,
    pub mode: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSpec {
    pub name: String,
    pub hostname: Option<String>,
    pub port: u16,
    pub protocol: String,
    pub tls: Option<ListenerTls>,
    pub allowed_routes: AllowedRoutes,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    pub mode: String,
    pub certificate_refs: Vec<Reference>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    pub namespaces: Namespaces,
    pub kinds: Vec<RouteKind>,
}

impl Default for AllowedRoutes {
    fn default() -> AllowedRoutes {
        let namespaces = Namespaces { from: "Same".to_owned(), ..Namespaces::default() };
        AllowedRoutes { namespaces, kinds: Vec::new() }
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct RouteKind {
    pub group: Option<String>,
    pub kind: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetSpec {
    pub parent_ref: Reference,
    pub listeners: Vec<ListenerSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRouteSpec {
    pub parent_refs: Box<[Reference]>,
    pub hostnames: Box<[String]>,
    pub rules: Box<[HttpRuleSpec]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRuleSpec {
    pub name: Option<String>,
    pub matches: Box<[HttpMatchSpec]>,
    pub filters: Box<[FilterSpec]>,
    pub backend_refs: Box<[BackendRefSpec]>,
    pub timeouts: TimeoutsSpec,
    pub retry: Option<RetrySpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TimeoutsSpec {
    pub request: Option<String>,
    pub backend_request: Option<String>,
}

/// Of the experimental channel.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RetrySpec {
    pub codes: Vec<u16>,
    pub attempts: Option<u32>,
    pub backoff: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpMatchSpec {
    pub path: ValueMatch,
    pub headers: Box<[ValueMatch]>,
    pub query_params: Box<[ValueMatch]>,
    pub method: Option<String>,
}

/// A match of a path, header or query parameter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    #[serde(rename = "type")]
    pub type_: String,
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FilterSpec {
    #[serde(rename = "type")]
    pub type_: String,
    pub request_header_modifier: HeaderFilter,
    pub response_header_modifier: HeaderFilter,
    pub request_mirror: MirrorFilter,
    pub request_redirect: RedirectFilter,
    pub url_rewrite: RewriteFilter,
    pub cors: CorsFilter,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HeaderFilter {
    pub set: Vec<ValueMatch>,
    pub add: Vec<ValueMatch>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MirrorFilter {
    pub backend_ref: Reference,
    pub percent: Option<u32>,
    pub fraction: Option<Fraction>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fraction {
    pub numerator: u32,
    pub denominator: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RedirectFilter {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    pub port: Option<u16>,
    pub status_code: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RewriteFilter {
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathModifier {
    #[serde(rename = "type")]
    pub type_: String,
    pub replace_full_path: String,
    pub replace_prefix_match: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CorsFilter {
    pub allow_origins: Vec<String>,
    pub allow_credentials: bool,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    pub max_age: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BackendRefSpec {
    #[serde(flatten)]
    pub target: Reference,
    pub weight: Option<u32>,
    pub filters: Box<[FilterSpec]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRouteSpec {
    pub parent_refs: Box<[Reference]>,
    pub hostnames: Box<[String]>,
    pub rules: Box<[GrpcRuleSpec]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRuleSpec {
    pub name: Option<String>,
    pub matches: Box<[GrpcMatchSpec]>,
    pub filters: Box<[FilterSpec]>,
    pub backend_refs: Box<[BackendRefSpec]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcMatchSpec {
    pub method: GrpcMethod,
    pub headers: Box<[ValueMatch]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcMethod {
    #[serde(rename = "type")]
    pub type_: String,
    pub service: Option<String>,
    pub method: Option<String>,
}

/// A TLSRoute, TCPRoute or UDPRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamRouteSpec {
    pub parent_refs: Box<[Reference]>,
    pub hostnames: Box<[String]>,
    pub rules: Box<[StreamRuleSpec]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamRuleSpec {
    pub backend_refs: Box<[BackendRefSpec]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    pub from: Vec<Reference>,
    pub to: Vec<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsPolicySpec {
    pub target_refs: Vec<Reference>,
    pub validation: BackendValidation,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendValidation {
    pub ca_certificate_refs: Vec<Reference>,
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    pub hostname: String,
    pub subject_alt_names: Vec<SubjectAltName>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SubjectAltName {
    #[serde(rename = "type")]
    pub type_: String,
    pub hostname: String,
    pub uri: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressClassSpec {
    pub controller: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressSpec {
    pub ingress_class_name: Option<String>,
    pub default_backend: Option<IngressBackend>,
    pub tls: Vec<IngressTls>,
    pub rules: Vec<IngressRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressTls {
    pub hosts: Vec<String>,
    pub secret_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    pub host: Option<String>,
    pub http: IngressHttp,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressHttp {
    pub paths: Vec<IngressPath>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressPath {
    pub path: Option<String>,
    pub path_type: String,
    pub backend: IngressBackend,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressBackend {
    pub service: Option<IngressService>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressService {
    pub name: String,
    pub port: IngressPort,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressPort {
    pub name: Option<String>,
    pub number: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub type_: String,
    pub ports: Vec<ServicePort>,
    pub selector: BTreeMap<String, String>,
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: String,
    pub port: u16,
    pub protocol: String,
    pub app_protocol: Option<String>,
    /// A number or a name.
    pub target_port: Value,
}
