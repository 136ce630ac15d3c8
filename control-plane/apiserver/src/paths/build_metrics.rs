//! Metrics of the server's build: its versions, its features, and the number of its metric families.

use super::version::version;
use crate::config::Config;
use crate::metrics::Exposition;

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
    let before = minor.parse::<u32>().unwrap_or(1).saturating_sub(1);
    let api = format!("{major}.{minor}");
    let compatible = format!("{major}.{before}");
    let labels = [("binary", api.as_str()), ("component", "kube"), ("emulation", &api), ("min_compat", &compatible)];
    out.family("version_info", "gauge", "The versions that this server is compatible with; always 1.");
    out.sample("version_info", &labels, 1.0);
    let name = "kubernetes_feature_enabled";
    out.family(name, "gauge", "Whether a feature is enabled.");
    for (feature, stage) in FEATURES {
        let is_there = !OFF.contains(feature);
        out.sample(name, &[("name", feature), ("stage", stage)], f64::from(u8::from(is_there)));
    }
}

fn build_info(out: &mut Exposition, config: &Config) {
    let version = version(config);
    let text = |key: &str| version[key].as_str().unwrap_or_default().to_owned();
    let labels = [
        ("build_date", text("buildDate")),
        ("compiler", text("compiler")),
        ("git_commit", text("gitCommit")),
        ("git_tree_state", text("gitTreeState")),
        ("git_version", text("gitVersion")),
        ("go_version", text("goVersion")),
        ("major", text("major")),
        ("minor", text("minor")),
        ("platform", text("platform")),
    ];
    let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    out.family("kubernetes_build_info", "gauge", "The build of this server; always 1.");
    out.sample("kubernetes_build_info", &labels, 1.0);
}

/// Renders the metrics of declarative validation. Upstream writes each rule twice and counts the differences. Here each
/// rule is written once, so these stay 0.
fn validation(out: &mut Exposition) {
    for (name, help) in [
        (
            "apiserver_validation_declarative_validation_mismatch_total",
            "Results of declarative validation that differed from handwritten validation.",
        ),
        ("apiserver_validation_declarative_validation_panic_total", "Panics of declarative validation."),
    ] {
        out.family(name, "counter", help);
        out.sample(name, &[], 0.0);
    }
}

/// Renders the number of families of an exposition, by stability level. None is hidden and none disabled.
pub fn registered(exposition: &str) -> String {
    let mut out = Exposition::default();
    let name = "registered_metrics_total";
    out.family(name, "counter", "The number of metric families, by stability level.");
    for level in ["ALPHA", "BETA", "STABLE"] {
        let mark = format!(" [{level}] ");
        let count = exposition.lines().filter(|line| line.starts_with("# HELP ") && line.contains(&mark)).count();
        out.sample(name, &[("deprecated_version", ""), ("stability_level", level)], count as f64);
    }
    for (name, help) in [
        ("hidden_metrics_total", "The number of hidden metric families."),
        ("disabled_metrics_total", "The number of disabled metric families."),
    ] {
        out.family(name, "counter", help);
        out.sample(name, &[], 0.0);
    }
    out.finish()
}
