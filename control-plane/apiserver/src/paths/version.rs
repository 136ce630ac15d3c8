//! `/version`.

use serde_json::json;

use crate::config::Config;

/// Returns the document of `/version`.
pub fn version(config: &Config) -> serde_json::Value {
    let mut numbers = config.git_version.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default().to_owned();
    let major = next();
    let minor = next();
    let emulated = config.emulated_version;
    json!({
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": emulated.minor().to_string(),
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": emulated.min_compatibility().minor().to_string(),
        "gitVersion": config.git_version,
        "gitCommit": config.git_commit,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

/// Returns the architecture as Kubernetes spells it.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
