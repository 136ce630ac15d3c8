//! The settings of a kubelet: a `KubeletConfiguration` file and upstream's most used flags, which win over the file.
//! They are read and checked here once; the kubelet itself gets plain values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use corten_api::k8s_openapi::api::core::v1::Taint;
use corten_kubelet::{Config, configuration, parse_flag};

use crate::cloud_options::is_provider;

/// The flags, named as upstream's kubelet names them.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Kubelet")]
pub struct KubeletOptions {
    /// A KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) for the kubelets of this process.
    #[arg(long = "kubelet-config", alias = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The kubelet's directory of volumes and plugin sockets, as CSI drivers expect it. It applies to the first node
    /// of this process only; defaults to a directory below the data directory.
    #[arg(long, value_name = "DIR")]
    pub root_dir: Option<PathBuf>,
    /// The directory of static pod manifests.
    #[arg(long, value_name = "DIR")]
    pub pod_manifest_path: Option<PathBuf>,
    /// The maximum number of pods on a node.
    #[arg(long, value_name = "N")]
    pub max_pods: Option<u32>,
    /// The hard eviction thresholds, as `memory.available<100Mi,nodefs.available<10%`.
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_hard: Option<String>,
    /// The soft eviction thresholds.
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_soft: Option<String>,
    /// The grace periods of the soft eviction thresholds, as `memory.available=1m30s`.
    #[arg(long, value_name = "PERIODS")]
    pub eviction_soft_grace_period: Option<String>,
    /// The minimum that an eviction reclaims, as `nodefs.available=1Gi`.
    #[arg(long, value_name = "QUANTITIES")]
    pub eviction_minimum_reclaim: Option<String>,
    /// The resources reserved for system daemons, as `cpu=100m,memory=1Gi`.
    #[arg(long, value_name = "QUANTITIES")]
    pub system_reserved: Option<String>,
    /// The resources reserved for Kubernetes components.
    #[arg(long, value_name = "QUANTITIES")]
    pub kube_reserved: Option<String>,
    /// Labels to register the node with, as `disk=ssd,zone=a`.
    #[arg(long, value_name = "LABELS")]
    pub node_labels: Option<String>,
    /// A YAML file with the configuration of image registries: mirrors, TLS, credentials.
    #[arg(long, value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    /// Additional OCI runtimes by RuntimeClass handler, as `runc=/usr/sbin/runc,kata=/usr/bin/kata-runtime`.
    #[arg(long, value_name = "HANDLERS")]
    pub runtime_handlers: Option<String>,
    /// Taints to register the node with, as `key=value:NoSchedule`.
    #[arg(long, value_name = "TAINTS")]
    pub register_with_taints: Option<String>,
    /// The cloud of the nodes, whose controller manager gives them addresses and removes their taint: `external` if it
    /// runs elsewhere; a server that is given `aws` or `hetzner` runs it.
    #[arg(long, value_name = "PROVIDER")]
    pub cloud_provider: Option<String>,
}

impl KubeletOptions {
    /// Returns the same flags for another process, with another working directory.
    pub fn arguments(&self) -> Vec<OsString> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).into_os_string();
        let text = |value: &Option<String>| value.clone().map(OsString::from);
        let pairs = [
            ("--kubelet-config", self.config.as_ref().map(absolute)),
            ("--registry-config", self.registry_config.as_ref().map(absolute)),
            ("--pod-manifest-path", self.pod_manifest_path.as_ref().map(absolute)),
            ("--max-pods", self.max_pods.map(|most| most.to_string().into())),
            ("--eviction-hard", text(&self.eviction_hard)),
            ("--eviction-soft", text(&self.eviction_soft)),
            ("--eviction-soft-grace-period", text(&self.eviction_soft_grace_period)),
            ("--eviction-minimum-reclaim", text(&self.eviction_minimum_reclaim)),
            ("--system-reserved", text(&self.system_reserved)),
            ("--kube-reserved", text(&self.kube_reserved)),
            ("--node-labels", text(&self.node_labels)),
            ("--runtime-handlers", text(&self.runtime_handlers)),
            ("--register-with-taints", text(&self.register_with_taints)),
            ("--cloud-provider", text(&self.cloud_provider)),
        ];
        pairs.into_iter().filter_map(|(name, value)| Some([name.into(), value?])).flatten().collect()
    }

    /// Reports whether a cloud controller manager initializes the node.
    pub fn is_external_cloud(&self) -> bool {
        self.cloud_provider.is_some()
    }

    /// Applies the file and the flags.
    pub fn apply(&self, config: &mut Config) -> Result<()> {
        if let Some(path) = &self.config {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let document = corten_meta::codec::decode_yaml(&bytes)
                .map_err(|error| anyhow!("{} is not YAML: {error}", path.display()))?;
            configuration::apply(config, &document).with_context(|| format!("{} cannot be used", path.display()))?;
        }
        if let Some(provider) = &self.cloud_provider {
            let is_known = provider == "external" || is_provider(provider);
            ensure!(is_known, "--cloud-provider {provider:?} is none of external, aws and hetzner");
        }
        config.root_dir = self.root_dir.clone().unwrap_or_else(|| std::mem::take(&mut config.root_dir));
        config.static_pod_path = self.pod_manifest_path.clone().or(config.static_pod_path.take());
        config.max_pods = self.max_pods.unwrap_or(config.max_pods);
        self.apply_eviction(config)?;
        for (flag, text, target) in [
            ("--system-reserved", &self.system_reserved, &mut config.system_reserved),
            ("--kube-reserved", &self.kube_reserved, &mut config.kube_reserved),
            ("--node-labels", &self.node_labels, &mut config.labels),
        ] {
            if let Some(text) = text {
                *target = pairs(text, '=').with_context(|| format!("{flag} {text:?}"))?;
            }
        }
        for quantity in config.system_reserved.values().chain(config.kube_reserved.values()) {
            corten_meta::Quantity::parse(quantity)
                .map_err(|error| anyhow!("{quantity:?} cannot be reserved: {error}"))?;
        }
        if let Some(text) = &self.register_with_taints {
            config.taints = text.split(',').map(taint).collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// Returns the programs of other OCI runtimes. Each must exist: a pod should not be the first to notice.
    pub fn runtime_handlers(&self) -> Result<BTreeMap<String, PathBuf>> {
        let Some(text) = &self.runtime_handlers else { return Ok(BTreeMap::new()) };
        let named = pairs(text, '=').with_context(|| format!("--runtime-handlers {text:?}"))?;
        for (handler, program) in &named {
            ensure!(!handler.is_empty() && handler != "corten", "the runtime handler {handler:?} is our own");
            let path = std::path::Path::new(program);
            ensure!(
                path.is_absolute() && path.is_file(),
                "the runtime handler {handler:?} needs the absolute path of a program, and {program:?} is none"
            );
        }
        Ok(named.into_iter().map(|(handler, program)| (handler, program.into())).collect())
    }

    fn apply_eviction(&self, config: &mut Config) -> Result<()> {
        let eviction = &mut config.eviction;
        for (flag, text, operator, target) in [
            ("--eviction-hard", &self.eviction_hard, '<', &mut eviction.hard),
            ("--eviction-soft", &self.eviction_soft, '<', &mut eviction.soft),
            ("--eviction-minimum-reclaim", &self.eviction_minimum_reclaim, '=', &mut eviction.minimum_reclaim),
        ] {
            if let Some(text) = text {
                *target = pairs(text, operator).with_context(|| format!("{flag} {text:?}"))?;
            }
        }
        if let Some(text) = &self.eviction_soft_grace_period {
            let periods = pairs(text, '=')?.into_iter().map(|(signal, period)| {
                Ok((signal, configuration::parse_duration(&period).map_err(|why| anyhow!(why))?))
            });
            eviction.soft_grace_period = periods.collect::<Result<_>>()?;
        }
        eviction.thresholds().map_err(|why| anyhow!("the eviction thresholds cannot be used: {why}"))?;
        Ok(())
    }
}

fn pairs(text: &str, operator: char) -> Result<BTreeMap<String, String>> {
    parse_flag(text, operator).map_err(|why| anyhow!(why))
}

/// Parses `key[=value]:effect`.
fn taint(text: &str) -> Result<Taint> {
    let (key, effect) = text.rsplit_once(':').with_context(|| format!("the taint {text:?} has no effect"))?;
    ensure!(
        ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect),
        "the taint {text:?} has an unknown effect"
    );
    let (key, value) = key.split_once('=').map_or((key, None), |(key, value)| (key, Some(value.to_owned())));
    if key.is_empty() {
        bail!("the taint {text:?} has no key");
    }
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet.yaml");
        let file = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 5\nclusterDNS: [10.0.0.1]\n";
        std::fs::write(&path, file).unwrap();
        let options = KubeletOptions {
            config: Some(path.clone()),
            max_pods: Some(7),
            eviction_hard: Some("memory.available<1Gi".into()),
            node_labels: Some("disk=ssd".into()),
            register_with_taints: Some("a=b:NoSchedule,c:NoExecute".into()),
            ..KubeletOptions::default()
        };
        let mut config = Config::default();
        options.apply(&mut config).unwrap();
        assert_eq!((config.max_pods, config.cluster_dns.as_slice()), (7, &["10.0.0.1".to_owned()][..]));
        assert_eq!((config.eviction.hard.len(), config.labels["disk"].as_str(), config.taints.len()), (1, "ssd", 2));
        assert_eq!(options.arguments().len(), 10);
        std::fs::write(&path, file.replace("maxPods", "maxpods")).unwrap();
        let error = format!("{:#}", options.apply(&mut config).unwrap_err());
        assert!(error.contains("unknown field \"maxpods\""), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        for options in [
            KubeletOptions { eviction_hard: Some("memory.available".into()), ..KubeletOptions::default() },
            KubeletOptions { eviction_soft: Some("memory.available<1Gi".into()), ..KubeletOptions::default() },
            KubeletOptions { system_reserved: Some("cpu=much".into()), ..KubeletOptions::default() },
            KubeletOptions { register_with_taints: Some("a=b".into()), ..KubeletOptions::default() },
        ] {
            assert!(options.apply(&mut Config::default()).is_err(), "{options:?}");
        }
        for handlers in ["runc", "runc=runc", "corten=/bin/sh", "kata=/no/such/program"] {
            let options = KubeletOptions { runtime_handlers: Some(handlers.into()), ..KubeletOptions::default() };
            assert!(options.runtime_handlers().is_err(), "{handlers}");
        }
    }
}
