//! Metrics of the server's build: its versions, its features, and the number of its metric families.

use super::version::version;
use crate::config::Config;
use crate::metrics::Exposition;
use crate::metrics::families::*;

/// The features of upstream's API server and their stages there; features that are GA have none.
const FEATURES: &[(&str, &str)] = &[
    ("APIResponseCompression", "BETA"),
    ("APIServerIdentity", "BETA"),
    ("AnonymousAuthConfigurableEndpoints", ""),
    ("AuthorizeNodeWithSelectors", ""),
    ("AuthorizeWithSelectors", ""),
    ("ConsistentListFromCache", ""),
    ("CoordinatedLeaderElection", "BETA"),
    ("JobSuccessPolicy", ""),
    ("MultiCIDRServiceAllocator", ""),
    ("MutatingAdmissionPolicy", ""),
    ("OpenAPIEnums", "BETA"),
    ("OrderedNamespaceDeletion", ""),
    ("RemoteRequestHeaderUID", "BETA"),
    ("RetryGenerateName", ""),
    ("ServiceAccountTokenJTI", ""),
    ("ServiceAccountTokenNodeBinding", ""),
    ("ServiceAccountTokenPodNodeInfo", ""),
    ("SidecarContainers", ""),
    ("StorageVersionHash", "BETA"),
    ("StreamingCollectionEncodingToJSON", ""),
    ("StrictIPCIDRValidation", "BETA"),
    ("StructuredAuthenticationConfiguration", ""),
    ("TranslateStreamCloseWebsocketRequests", "BETA"),
    ("UnknownVersionInteroperabilityProxy", "BETA"),
    ("WatchList", "BETA"),
];

/// The features that are disabled.
const OFF: &[&str] = &["CoordinatedLeaderElection", "UnknownVersionInteroperabilityProxy"];

pub fn render(out: &mut Exposition, config: &Config) {
    build_info(out, config);
    validation(out);
    let version = config.git_version.trim_start_matches('v');
    let numbers: Vec<&str> = version.split('.').collect();
    let major = numbers.first().copied().unwrap_or_default();
    let minor = numbers.get(1).copied().unwrap_or_default();
    let binary = format!("{major}.{minor}");
    let emulated = config.emulated_version.to_string();
    let compatible = config.emulated_version.min_compatibility().to_string();
    out.family(&VERSION_INFO);
    out.sample(&VERSION_INFO, &[&binary, "kube", &emulated, &compatible], 1.0);
    out.family(&FEATURES_ENABLED);
    for (feature, stage) in FEATURES {
        let is_there = !OFF.contains(feature);
        out.sample(&FEATURES_ENABLED, &[feature, stage], f64::from(u8::from(is_there)));
    }
}

fn build_info(out: &mut Exposition, config: &Config) {
    let version = version(config);
    let text = |key: &str| version[key].as_str().unwrap_or_default().to_owned();
    let values =
        ["buildDate", "compiler", "gitCommit", "gitTreeState", "gitVersion", "goVersion", "major", "minor", "platform"]
            .map(text);
    let values = values.each_ref().map(String::as_str);
    out.family(&BUILD_INFO);
    out.sample(&BUILD_INFO, &values, 1.0);
}

/// Renders the metrics of declarative validation. Upstream writes each rule twice and counts the differences. Here each
/// rule is written once, so these stay 0.
fn validation(out: &mut Exposition) {
    out.single(&VALIDATION_MISMATCHES, 0.0);
    out.single(&VALIDATION_PANICS, 0.0);
}

/// Renders the number of families of an exposition, by stability level. None is hidden and none disabled.
pub fn registered(exposition: &str) -> String {
    let mut out = Exposition::default();
    out.family(&REGISTERED_METRICS);
    for level in ["ALPHA", "BETA", "STABLE"] {
        let mark = format!(" [{level}] ");
        let count = exposition.lines().filter(|line| line.starts_with("# HELP ") && line.contains(&mark)).count();
        out.sample(&REGISTERED_METRICS, &["", level], count as f64);
    }
    out.single(&HIDDEN_METRICS, 0.0);
    out.single(&DISABLED_METRICS, 0.0);
    out.finish()
}
