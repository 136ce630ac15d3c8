//! The page of configuration files: the flag of each document, and every field that is read.

use anyhow::{Context, Result};
use corten_kubelet::configuration::{Described, describe};
use serde_json::{Value, json};

use crate::{cell, heading};

/// The documents that are exactly upstream's: kind, flag, reader of changes, and the example in the tree.
const UPSTREAM: &[[&str; 3]] = &[
    ["AuthenticationConfiguration (`apiserver.config.k8s.io`)", "--authentication-config", "authentication.yaml"],
    ["AuthorizationConfiguration (`apiserver.config.k8s.io`)", "--authorization-config", "authorization.yaml"],
    ["EncryptionConfiguration (`apiserver.config.k8s.io/v1`)", "--encryption-provider-config", "encryption.yaml"],
    ["Policy (`audit.k8s.io/v1`)", "--audit-policy-file", "audit-policy.yaml"],
];

/// A position in KubeSchedulerConfiguration, and a document with an unknown field there.
const SCHEDULER: &[(&str, &str)] = &[
    ("", r#"{"?": 0}"#),
    ("leaderElection", r#"{"leaderElection": {"?": 0}}"#),
    ("clientConnection", r#"{"clientConnection": {"?": 0}}"#),
    ("profiles[]", r#"{"profiles": [{"?": 0}]}"#),
    ("profiles[].plugins", r#"{"profiles": [{"plugins": {"?": 0}}]}"#),
    ("profiles[].plugins.*", r#"{"profiles": [{"plugins": {"filter": {"?": 0}}}]}"#),
    ("profiles[].plugins.*.enabled[]", r#"{"profiles": [{"plugins": {"filter": {"enabled": [{"?": 0}]}}}]}"#),
    ("profiles[].pluginConfig[]", r#"{"profiles": [{"pluginConfig": [{"?": 0}]}]}"#),
    (
        "args of DefaultPreemption",
        r#"{"profiles": [{"pluginConfig": [{"name": "DefaultPreemption", "args": {"?": 0}}]}]}"#,
    ),
    (
        "args of InterPodAffinity",
        r#"{"profiles": [{"pluginConfig": [{"name": "InterPodAffinity", "args": {"?": 0}}]}]}"#,
    ),
    ("args of NodeAffinity", r#"{"profiles": [{"pluginConfig": [{"name": "NodeAffinity", "args": {"?": 0}}]}]}"#),
    (
        "args of NodeResourcesBalancedAllocation",
        r#"{"profiles": [{"pluginConfig": [{"name": "NodeResourcesBalancedAllocation", "args": {"?": 0}}]}]}"#,
    ),
    (
        "args of NodeResourcesFit",
        r#"{"profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"?": 0}}]}]}"#,
    ),
    (
        "scoringStrategy of NodeResourcesFit",
        r#"{"profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"?": 0}}}]}]}"#,
    ),
    (
        "args of PodTopologySpread",
        r#"{"profiles": [{"pluginConfig": [{"name": "PodTopologySpread", "args": {"?": 0}}]}]}"#,
    ),
    ("args of VolumeBinding", r#"{"profiles": [{"pluginConfig": [{"name": "VolumeBinding", "args": {"?": 0}}]}]}"#),
    ("extenders[]", r#"{"extenders": [{"?": 0}]}"#),
    ("extenders[].tlsConfig", r#"{"extenders": [{"urlPrefix": "", "tlsConfig": {"?": 0}}]}"#),
    ("extenders[].managedResources[]", r#"{"extenders": [{"urlPrefix": "", "managedResources": [{"?": 0}]}]}"#),
];

pub fn page() -> Result<String> {
    let parts = [upstream(), kubelet(), scheduler()?, registries(), settings()];
    Ok(heading("Configuration files") + &parts.join("\n"))
}

fn upstream() -> String {
    let mut out = "Every file is YAML or JSON. What cannot be read, or asks for what is not there, is refused at the start.\n\n\
         ## Of the API server\n\n\
         The documents are upstream's; each example has every field. The first three are read again when they change.\n\n\
         | document | flag | example |\n|---|---|---|\n"
        .to_owned();
    for [kind, flag, example] in UPSTREAM {
        out.push_str(&format!("| {kind} | `{flag}` | [{example}](../examples/{example}) |\n"));
    }
    out.push_str(
        "\n`--authentication-token-webhook-config-file`, `--authorization-webhook-config-file` and \
         `--audit-webhook-config-file` take kubeconfig files.\n",
    );
    out
}

fn kubelet() -> String {
    let all = describe();
    let (changing, fixed): (Vec<&Described>, Vec<&Described>) = all.iter().partition(|field| field.can_change);
    let mut out = "## KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`)\n\n\
         `--kubelet-config FILE`; flags of the same meaning win over it. An unknown field is an error.\n\n\
         | field | default |\n|---|---|\n"
        .to_owned();
    for field in changing {
        let default = if field.default.is_null() { String::new() } else { format!("`{}`", field.default) };
        out.push_str(&format!("| `{}` | {} |\n", field.name, cell(&default)));
    }
    out.push_str(
        "\n`corten up` sets addresses, directories and the cluster's DNS itself. \
         These fields are known, and only the value here is taken:\n\n| field | value |\n|---|---|\n",
    );
    for field in fixed {
        out.push_str(&format!("| `{}` | `{}` |\n", field.name, cell(&field.default.to_string())));
    }
    out
}

fn scheduler() -> Result<String> {
    let mut out = "## KubeSchedulerConfiguration (`kubescheduler.config.k8s.io/v1`)\n\n\
         `--scheduler-config FILE`, and `--config FILE` of `corten scheduler`. An unknown field is an error.\n\n\
         | place | fields |\n|---|---|\n"
        .to_owned();
    for (place, document) in SCHEDULER {
        let fields = scheduler_fields(document).with_context(|| format!("KubeSchedulerConfiguration, {place}"))?;
        let place = if place.is_empty() { "the document" } else { place };
        out.push_str(&format!("| {place} | {} |\n", cell(&fields)));
    }
    Ok(out)
}

/// Returns the fields that the scheduler knows at a position, from its error for an unknown one.
fn scheduler_fields(document: &str) -> Result<String> {
    let mut document: Value = serde_json::from_str(document)?;
    document["apiVersion"] = json!("kubescheduler.config.k8s.io/v1");
    document["kind"] = json!("KubeSchedulerConfiguration");
    let refusal = match corten_scheduler::Config::from_document(document) {
        Ok(_) => anyhow::bail!("an unknown field was taken"),
        Err(refusal) => refusal.to_string(),
    };
    let (_, known) = refusal.split_once("unknown field `?`, expected ").with_context(|| refusal.clone())?;
    let end = known.rfind('`').with_context(|| refusal.clone())?;
    Ok(known[..=end].trim_start_matches("one of ").to_owned())
}

fn registries() -> String {
    let mut out = "## Image registries\n\n\
         `--registry-config FILE`: a list `registries`, an entry for each host. An unknown field is an error. \
         Example: [registries.yaml](../examples/registries.yaml).\n\n| field | meaning |\n|---|---|\n"
        .to_owned();
    for field in corten::reference::REGISTRY_FIELDS {
        out.push_str(&format!("| `{}` | {} |\n", field.name, cell(field.help)));
    }
    out
}

fn settings() -> String {
    let mut out = "## Settings of the cluster\n\n\
         The server publishes these from its flags as JSON under the key `cluster` of the ConfigMap \
         `kube-system/corten-config`; machines that join read them.\n\n| field | default |\n|---|---|\n"
        .to_owned();
    if let Value::Object(fields) = corten::reference::cluster_settings() {
        for (name, default) in fields {
            out.push_str(&format!("| `{name}` | `{}` |\n", cell(&default.to_string())));
        }
    }
    out
}
