//! GatewayClasses: accepted if they name this controller.

use corten_meta::Value;
use serde_json::json;

use super::{CONTROLLER, WantedStatus};
use crate::crds;
use crate::objects::{GatewayClassSpec, Objects, Resource};
use crate::status::{Condition, conditions};

/// The features of Gateway API that GatewayClasses report, in the order of their names.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructurePropagation",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// Reports whether a class is this controller's.
pub fn is_ours(class: &Resource<GatewayClassSpec>) -> bool {
    class.spec.controller_name == CONTROLLER
}

/// Adds the statuses of all classes of this controller.
pub fn statuses(objects: &Objects, now: &str, statuses: &mut Vec<WantedStatus>) {
    for (key, class) in objects.classes.iter().filter(|(_, class)| is_ours(class)) {
        let accepted = match &class.spec.parameters_ref {
            None => Condition::is_true("Accepted", "Accepted", "the class is served by this cluster's edge"),
            Some(reference) => {
                let message = format!("{} {} is no parameter of this controller", reference.kind, reference.name);
                Condition::is_false("Accepted", "InvalidParameters", message)
            }
        };
        let version = format!("Gateway API {} is installed or compatible", crds::BUNDLE_VERSION);
        let supported = Condition::is_true("SupportedVersion", "SupportedVersion", version);
        let generation = class.metadata.generation;
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({"name": name})).collect();
        let status = json!({
            "conditions": conditions(&[accepted, supported], generation, &class.status["conditions"], now),
            "supportedFeatures": features,
        });
        statuses.push(WantedStatus { plural: "gatewayclasses", key: key.clone(), status });
    }
}
