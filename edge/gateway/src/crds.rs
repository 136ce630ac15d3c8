//! The CustomResourceDefinitions of Gateway API, made of the table `schema/gateway.tbl`, and those of our own policies
//! (`schema/policy.tbl`).
//!
//! Those of Gateway API carry the bundle version and the channel, by which tools and upstream's suite recognise them.
//! Upstream's own files hold the descriptions of fields as well; ours hold none.

use corten_crds::Table;
use corten_meta::Value;

const GATEWAY_TABLE: &str = include_str!("../schema/gateway.tbl");
/// Both tables: policies use the types of Gateway API.
const TABLE: &str = concat!(include_str!("../schema/gateway.tbl"), "\n", include_str!("../schema/policy.tbl"));

/// The API group of Gateway API.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// The API group of our own policies.
pub const POLICY_GROUP: &str = "edge.corten.dev";
/// The version of our own policies.
pub const POLICY_VERSION: &str = "v1beta1";
/// The annotation with the version of the whole bundle.
pub const BUNDLE_ANNOTATION: &str = "gateway.networking.k8s.io/bundle-version";
const CHANNEL_ANNOTATION: &str = "gateway.networking.k8s.io/channel";
/// The version of the bundle that the table describes.
pub const BUNDLE_VERSION: &str = "v1.6.1";

/// Returns the CustomResourceDefinitions.
pub fn definitions() -> Vec<Value> {
    Table::parse(TABLE).definitions()
}

/// Returns the resources of Gateway API.
pub fn resources() -> Vec<String> {
    Table::parse(GATEWAY_TABLE).resources()
}

/// Reports whether a CustomResourceDefinition of the cluster is newer than ours, and so stays as it is.
pub fn is_newer(installed: &Value) -> bool {
    let version = |text: &str| -> Vec<u64> {
        let numbers = text.trim_start_matches('v').split(['.', '-']);
        numbers.map_while(|number| number.parse().ok()).collect()
    };
    let annotations = &installed["metadata"]["annotations"];
    let bundle = annotations[BUNDLE_ANNOTATION].as_str().unwrap_or_default();
    version(bundle) > version(BUNDLE_VERSION)
        || (annotations[CHANNEL_ANNOTATION] == "experimental" && version(bundle) == version(BUNDLE_VERSION))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_type_and_pattern_of_the_table_exists() {
        assert_eq!(Table::parse(TABLE).errors(), Vec::<String>::new());
    }

    #[test]
    fn a_field_has_the_limits_of_its_line_and_of_its_type() {
        let definitions = definitions();
        let gateways = definitions.iter().find(|one| one["metadata"]["name"] == format!("gateways.{GROUP}"));
        let gateways = gateways.expect("gateways");
        let schema = &gateways["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let listeners = &schema["properties"]["spec"]["properties"]["listeners"];
        assert_eq!(listeners["maxItems"], 64);
        assert_eq!(listeners["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(listeners["items"]["properties"]["port"]["maximum"], 65535);
        assert_eq!(listeners["items"]["required"], json!(["name", "port", "protocol"]));
        assert_eq!(gateways["spec"]["names"]["categories"], json!(["gateway-api"]));
        assert_eq!(gateways["metadata"]["annotations"][BUNDLE_ANNOTATION], BUNDLE_VERSION);
        assert!(gateways["metadata"]["annotations"]["api-approved.kubernetes.io"].is_string());
        assert_eq!(definitions.len(), 11);
        assert_eq!(resources().len(), 10);
    }

    #[test]
    fn a_newer_bundle_and_the_experimental_channel_stay() {
        let of = |version: &str, channel: &str| {
            let annotations = json!({BUNDLE_ANNOTATION: version, CHANNEL_ANNOTATION: channel});
            json!({"metadata": {"annotations": annotations}})
        };
        assert!(is_newer(&of("v1.7.0", "standard")));
        assert!(is_newer(&of("v1.6.1", "experimental")));
        assert!(!is_newer(&of("v1.6.1", "standard")));
        assert!(!is_newer(&of("v1.5.0", "experimental")));
        assert!(!is_newer(&json!({})));
    }
}
