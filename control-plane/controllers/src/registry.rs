//! Every controller under upstream's name, in one list, and which of them are to run.

use std::sync::Arc;

use crate::runtime::Decide;
use crate::{
    Cidr, Config, Error, bootstrap_token, certificates, clusterrole_aggregation, cronjob, daemonset, deployment,
    disruption, endpoints, ephemeral_volume, job, node, replicaset, root_ca, service_cidr, service_load_balancer,
    serviceaccount, statefulset, storage_protection, ttl_after_finished, volume_binding,
};

/// Controllers that work on all kinds, or beyond plans; each has a task of its own.
pub const NAMESPACE: &str = "namespace-controller";
pub const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
pub const RESOURCE_QUOTA: &str = "resourcequota-controller";
pub const CERTIFICATE_APPROVING: &str = "certificatesigningrequest-approving-controller";
pub const CERTIFICATE_SIGNING: &str = "certificatesigningrequest-signing-controller";
pub const HORIZONTAL_POD_AUTOSCALER: &str = "horizontal-pod-autoscaler-controller";
pub const SERVICE_ACCOUNT_TOKEN: &str = "serviceaccount-token-controller";

/// Whether a controller is to run: `name` says yes, `-name` no, and `*` yes for all that nothing else is said about.
pub fn is_enabled(name: &str, chosen: &[String]) -> bool {
    let excluded = |choice: &String| choice.strip_prefix('-') == Some(name);
    let said = chosen.iter().find(|choice| *choice == name || excluded(choice));
    said.map_or_else(|| chosen.iter().any(|choice| choice == "*"), |choice| choice == name)
}

/// The controllers that decide on plans, those chosen.
pub fn controllers(config: &Config) -> Result<Vec<Arc<dyn Decide>>, Error> {
    let lifecycle = node::lifecycle::NodeLifecycleController {
        grace_period: config.node_monitor_grace_period,
        startup_grace_period: config.node_startup_grace_period,
        started: corten_meta::time::now(),
    };
    let pod_gc = node::pod_gc::PodGcController { terminated_threshold: config.terminated_pod_threshold };
    let mut all: Vec<(&str, Arc<dyn Decide>)> = vec![
        ("deployment-controller", Arc::new(deployment::DeploymentController)),
        ("replicaset-controller", Arc::new(replicaset::REPLICA_SETS)),
        ("replicationcontroller-controller", Arc::new(replicaset::REPLICATION_CONTROLLERS)),
        ("daemonset-controller", Arc::new(daemonset::DaemonSetController)),
        ("job-controller", Arc::new(job::JobController)),
        ("statefulset-controller", Arc::new(statefulset::StatefulSetController)),
        ("ttl-after-finished-controller", Arc::new(ttl_after_finished::TtlAfterFinishedController)),
        ("cronjob-controller", Arc::new(cronjob::CronJobController)),
        ("disruption-controller", Arc::new(disruption::DisruptionController)),
        ("disruption-controller", Arc::new(disruption::StaleDisruptionController)),
        ("clusterrole-aggregation-controller", Arc::new(clusterrole_aggregation::ClusterRoleAggregationController)),
        ("persistentvolumeclaim-protection-controller", Arc::new(storage_protection::ClaimProtectionController)),
        ("persistentvolume-protection-controller", Arc::new(storage_protection::VolumeProtectionController)),
        ("persistentvolume-binder-controller", Arc::new(volume_binding::ClaimBinder)),
        ("persistentvolume-binder-controller", Arc::new(volume_binding::VolumePhases)),
        ("ephemeral-volume-controller", Arc::new(ephemeral_volume::EphemeralVolumeController)),
        ("endpointslice-controller", Arc::new(endpoints::EndpointSliceController)),
        ("endpoints-controller", Arc::new(endpoints::EndpointsController)),
        ("endpointslice-mirroring-controller", Arc::new(endpoints::EndpointSliceMirroringController)),
        ("service-cidr-controller", Arc::new(service_cidr::ServiceCidrController)),
        ("serviceaccount-controller", Arc::new(serviceaccount::ServiceAccountController)),
        (
            "root-ca-certificate-publisher-controller",
            Arc::new(root_ca::RootCaPublisher { root_ca: config.root_ca.clone() }),
        ),
        ("certificatesigningrequest-cleaner-controller", Arc::new(certificates::CertificateCleaner)),
        ("bootstrap-signer-controller", Arc::new(bootstrap_token::BootstrapSigner)),
        ("token-cleaner-controller", Arc::new(bootstrap_token::TokenCleaner)),
        ("node-lifecycle-controller", Arc::new(lifecycle)),
        ("taint-eviction-controller", Arc::new(node::taint_eviction::TaintEvictionController::default())),
        ("pod-garbage-collector-controller", Arc::new(pod_gc)),
    ];
    if let Some(network) = &config.cluster_cidr {
        let cluster = Cidr::parse(network).ok_or_else(|| Error::ClusterCidr(network.clone()))?;
        let ipam = node::ipam::NodeIpamController { cluster, node_prefix: config.node_cidr_mask };
        all.push(("node-ipam-controller", Arc::new(ipam)));
    }
    if let Some(addresses) = &config.load_balancer {
        let balancer = service_load_balancer::ServiceLoadBalancerController { addresses: addresses.clone() };
        all.push(("service-lb-controller", Arc::new(balancer)));
    }
    all.retain(|(name, _)| is_enabled(name, &config.controllers));
    Ok(all.into_iter().map(|(_, controller)| controller).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_by_name_stands_above_the_star() {
        for (chosen, expected) in
            [(&["*"][..], true), (&["*", "-a"], false), (&["a"], true), (&["b"], false), (&["-b"], false), (&[], false)]
        {
            let chosen: Vec<String> = chosen.iter().map(|choice| (*choice).to_owned()).collect();
            assert_eq!(is_enabled("a", &chosen), expected, "{chosen:?}");
        }
        let config = Config { controllers: vec!["node-ipam-controller".to_owned()], ..Config::default() };
        let names: Vec<&str> = controllers(&config).unwrap().iter().map(|one| one.name()).collect();
        assert_eq!(names, ["node-controller"]);
    }

    /// Upstream's bootstrap policy, where it is at hand: an account without a role can do nothing, and says so
    /// nowhere.
    #[test]
    fn every_controller_acts_as_an_account_that_has_a_role() {
        let Ok(directory) = std::env::var("KUBERNETES_FACTS") else {
            eprintln!("skipped: KUBERNETES_FACTS does not name a directory with rbac/");
            return;
        };
        let read = |name: &str| std::fs::read_to_string(format!("{directory}/rbac/{name}-role-bindings.yaml")).unwrap();
        let bindings = read("controller") + &read("namespace");
        let config = Config { cluster_cidr: Some("10.244.0.0/16".to_owned()), ..Config::default() };
        for controller in controllers(&config).unwrap() {
            let name = controller.name();
            assert!(bindings.lines().any(|line| line.trim() == format!("name: {name}")), "{name}");
        }
    }
}
