//! The list of all controllers under upstream's names, and the choice of those that run.

use std::sync::Arc;

use crate::runtime::Decide;
use crate::{
    AddressRange, Cidr, Config, Error, LoadBalancerAddresses, attach_detach, bootstrap_token, certificates,
    clusterrole_aggregation, cronjob, daemonset, deployment, device_taint_eviction, disruption, endpoints,
    ephemeral_volume, job, legacy_token, load_balancer, local_volumes, node, replicaset, resourceclaim, root_ca,
    service_cidr, serviceaccount, statefulset, storage_protection, ttl_after_finished, volume_binding,
    volume_expansion,
};

/// Controllers that work on all resources, or that make no plans; each has a task of its own.
pub const NAMESPACE: &str = "namespace-controller";
pub const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
pub const RESOURCE_QUOTA: &str = "resourcequota-controller";
pub const CERTIFICATE_APPROVING: &str = "certificatesigningrequest-approving-controller";
pub const CERTIFICATE_SIGNING: &str = "certificatesigningrequest-signing-controller";
pub const HORIZONTAL_POD_AUTOSCALER: &str = "horizontal-pod-autoscaler-controller";
pub const SERVICE_ACCOUNT_TOKEN: &str = "serviceaccount-token-controller";
const NODE_IPAM: &str = "node-ipam-controller";
const SERVICE_LB: &str = "service-lb-controller";
/// Not an upstream controller: it provisions for the default StorageClass of the cluster.
const LOCAL_VOLUMES: &str = "local-volume-controller";
/// Not a controller of upstream's manager: there it is a program of its own.
pub const SNAPSHOTS: &str = "snapshot-controller";
/// Not a controller of upstream's.
pub const VOLUME_BACKUPS: &str = "volume-backup-controller";

/// Not an upstream controller: upstream leaves it to the administrator to approve kubelet serving certificates.
const KUBELET_SERVING_APPROVING: &str = "kubelet-serving-approving-controller";

/// The names of those controllers.
const OTHERS: [&str; 7] = [
    NAMESPACE,
    GARBAGE_COLLECTOR,
    RESOURCE_QUOTA,
    CERTIFICATE_APPROVING,
    CERTIFICATE_SIGNING,
    HORIZONTAL_POD_AUTOSCALER,
    SERVICE_ACCOUNT_TOKEN,
];

/// Names by which older configurations choose controllers.
const OLD_NAMES: [(&str, &str); 40] = [
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", CERTIFICATE_APPROVING),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", CERTIFICATE_SIGNING),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", GARBAGE_COLLECTOR),
    ("horizontalpodautoscaling", HORIZONTAL_POD_AUTOSCALER),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", NAMESPACE),
    ("nodeipam", NODE_IPAM),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("resourcequota", RESOURCE_QUOTA),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("route", "node-route-controller"),
    ("service", SERVICE_LB),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", SERVICE_ACCOUNT_TOKEN),
    ("statefulset", "statefulset-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
];
/// Upstream's controllers that do not exist here: those for clouds, or for APIs that are not served. `--controllers`
/// may disable them by name.
const ELSEWHERE: [&str; 10] = [
    "cloud-node-lifecycle-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "node-route-controller",
    "podcertificaterequest-cleaner-controller",
    "podgroup-protection-controller",
    "resourcepoolstatusrequest-controller",
    "selinux-warning-controller",
    "storage-version-migrator-controller",
    "storageversion-garbage-collector-controller",
    "validatingadmissionpolicy-status-controller",
];

/// Returns the names of all controllers that run.
pub fn running(config: &Config, controllers: &[Named]) -> Vec<&'static str> {
    let others = OTHERS.into_iter().filter(|name| is_enabled(name, &config.controllers));
    let snapshots = [SNAPSHOTS, VOLUME_BACKUPS].into_iter();
    let snapshots = snapshots.filter(|name| config.snapshots && is_enabled(name, &config.controllers));
    let mut all: Vec<&'static str> =
        controllers.iter().map(|(name, ..)| *name).chain(others).chain(snapshots).collect();
    all.dedup();
    all
}

/// Replaces old names in the choice by the current ones.
pub fn canonical(chosen: &[String]) -> Vec<String> {
    let renamed = |choice: &String| {
        let (sign, name) = choice.strip_prefix('-').map_or(("", choice.as_str()), |name| ("-", name));
        let known = OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new);
        format!("{sign}{known}")
    };
    chosen.iter().map(renamed).collect()
}

/// Reports whether a controller is enabled: `name` enables it, `-name` disables it, and `*` enables all that are not
/// named.
pub fn is_enabled(name: &str, chosen: &[String]) -> bool {
    let excluded = |choice: &String| choice.strip_prefix('-') == Some(name);
    let choice = chosen.iter().find(|choice| *choice == name || excluded(choice));
    choice.map_or_else(|| chosen.iter().any(|choice| choice == "*"), |choice| choice == name)
}

/// Returns the enabled controllers that make plans. Fails on an unknown name: a typing error would leave a controller
/// running, or disabled.
pub fn controllers(config: &Config) -> Result<Vec<Named>, Error> {
    let mut all = known(config)?;
    let is_known = |name: &str| name == "*" || OTHERS.contains(&name) || all.iter().any(|(known, ..)| *known == name);
    let unknown = config.controllers.iter().find(|choice| {
        // A controller that the configuration leaves out may still be named.
        let (left_out, name) = choice.strip_prefix('-').map_or((false, choice.as_str()), |name| (true, name));
        !(is_known(name)
            || [NODE_IPAM, SERVICE_LB, LOCAL_VOLUMES, SNAPSHOTS, VOLUME_BACKUPS, KUBELET_SERVING_APPROVING]
                .contains(&name)
            || left_out && ELSEWHERE.contains(&name))
    });
    if let Some(unknown) = unknown {
        return Err(Error::UnknownController(unknown.clone()));
    }
    all.retain(|(name, ..)| is_enabled(name, &config.controllers));
    Ok(all)
}

/// A controller with its name in `--controllers` and the name of its queue in metrics. Both names are upstream's.
pub type Named = (&'static str, &'static str, Arc<dyn Decide>);

/// Returns all controllers.
fn known(config: &Config) -> Result<Vec<Named>, Error> {
    Ok([workloads(), services(config), storage(config), identities(config), nodes(config)?]
        .into_iter()
        .flatten()
        .collect())
}

fn workloads() -> Vec<Named> {
    vec![
        ("deployment-controller", "deployment", Arc::new(deployment::DeploymentController)),
        ("replicaset-controller", "replicaset", Arc::new(replicaset::REPLICA_SETS)),
        ("replicationcontroller-controller", "replicationmanager", Arc::new(replicaset::REPLICATION_CONTROLLERS)),
        ("daemonset-controller", "daemonset", Arc::new(daemonset::DaemonSetController)),
        ("job-controller", "job", Arc::new(job::JobController)),
        ("job-controller", "job_orphan_pod", Arc::new(job::UncountedPods)),
        ("statefulset-controller", "statefulset", Arc::new(statefulset::StatefulSetController)),
        (
            "ttl-after-finished-controller",
            "ttl_jobs_to_delete",
            Arc::new(ttl_after_finished::TtlAfterFinishedController),
        ),
        ("cronjob-controller", "cronjob", Arc::new(cronjob::CronJobController)),
        ("disruption-controller", "disruption", Arc::new(disruption::DisruptionController)),
        ("disruption-controller", "stale_pod_disruption", Arc::new(disruption::StaleDisruptionController)),
        ("resourceclaim-controller", "resource_claim", Arc::new(resourceclaim::ClaimMaker)),
        ("resourceclaim-controller", "resource_claim", Arc::new(resourceclaim::ClaimReleaser)),
        (
            "device-taint-eviction-controller",
            "device_taint_eviction",
            Arc::new(device_taint_eviction::DeviceTaintEvictionController),
        ),
    ]
}

fn services(config: &Config) -> Vec<Named> {
    let mut all: Vec<Named> = vec![
        ("endpointslice-controller", "endpoint_slice", Arc::new(endpoints::EndpointSliceController)),
        ("endpoints-controller", "endpoint", Arc::new(endpoints::EndpointsController)),
        (
            "endpointslice-mirroring-controller",
            "endpoint_slice_mirroring",
            Arc::new(endpoints::EndpointSliceMirroringController),
        ),
        ("service-cidr-controller", "ipaddresses", Arc::new(service_cidr::ServiceCidrController)),
    ];
    if let Some(addresses) = &config.load_balancer {
        let balancer = load_balancer::ServiceLoadBalancerController {
            addresses: addresses.clone(),
            has_pools: config.address_pools,
            reserved: pod_ranges(config),
        };
        all.push((SERVICE_LB, "service", Arc::new(balancer)));
        if config.address_pools {
            all.push((SERVICE_LB, "address_pool", Arc::new(address_pools(config, addresses))));
        }
    }
    all
}

fn address_pools(config: &Config, addresses: &LoadBalancerAddresses) -> load_balancer::AddressPoolController {
    load_balancer::AddressPoolController {
        configured: match addresses {
            LoadBalancerAddresses::Nodes { .. } => None,
            LoadBalancerAddresses::Pool(ranges) => Some(ranges.clone()),
        },
        reserved: pod_ranges(config),
    }
}

/// Returns the pod CIDRs as ranges.
fn pod_ranges(config: &Config) -> Vec<AddressRange> {
    let pods = config.cluster_cidr.iter().flat_map(|ranges| ranges.split(','));
    pods.filter_map(AddressRange::parse).collect()
}

fn storage(config: &Config) -> Vec<Named> {
    let mut all: Vec<Named> = vec![
        ("persistentvolume-binder-controller", "claims", Arc::new(volume_binding::ClaimBinder)),
        (
            "persistentvolume-binder-controller",
            "volumes",
            Arc::new(volume_binding::VolumePhases { recyclers: config.recyclers.clone() }),
        ),
        (
            "persistentvolume-attach-detach-controller",
            "pvcs",
            Arc::new(attach_detach::AttachDetachController::default()),
        ),
        ("persistentvolume-expander-controller", "volume_expand", Arc::new(volume_expansion::ExpandController)),
        ("ephemeral-volume-controller", "ephemeral_volume", Arc::new(ephemeral_volume::EphemeralVolumeController)),
        (
            "persistentvolumeclaim-protection-controller",
            "pvcprotection",
            Arc::new(storage_protection::ClaimProtectionController),
        ),
        (
            "persistentvolume-protection-controller",
            "pvprotection",
            Arc::new(storage_protection::VolumeProtectionController),
        ),
        (
            "volumeattributesclass-protection-controller",
            "vacprotection",
            Arc::new(storage_protection::AttributesClassProtectionController),
        ),
    ];
    if config.local_volumes {
        all.push((LOCAL_VOLUMES, "local_volume_claims", Arc::new(local_volumes::Provisioner)));
        all.push((LOCAL_VOLUMES, "local_volumes", Arc::new(local_volumes::Reclaimer)));
    }
    all
}

fn identities(config: &Config) -> Vec<Named> {
    let publisher = root_ca::RootCaPublisher { root_ca: config.root_ca.clone() };
    let mut all: Vec<Named> = vec![
        ("serviceaccount-controller", "serviceaccount", Arc::new(serviceaccount::ServiceAccountController)),
        (
            "legacy-serviceaccount-token-cleaner-controller",
            "legacy_service_account_token_cleaner",
            Arc::new(legacy_token::LegacyTokenCleaner),
        ),
        ("root-ca-certificate-publisher-controller", "root_ca_cert_publisher", Arc::new(publisher)),
        (
            "clusterrole-aggregation-controller",
            "ClusterRoleAggregator",
            Arc::new(clusterrole_aggregation::ClusterRoleAggregationController),
        ),
        ("certificatesigningrequest-cleaner-controller", "csrcleaner", Arc::new(certificates::CertificateCleaner)),
        ("bootstrap-signer-controller", "bootstrap_signer_queue", Arc::new(bootstrap_token::BootstrapSigner)),
        ("token-cleaner-controller", "token_cleaner", Arc::new(bootstrap_token::TokenCleaner)),
    ];
    if let Some(serving) = &config.kubelet_serving {
        let pinner = certificates::ServingNamePinner { serving: serving.clone() };
        let approver = certificates::ServingApprover { serving: serving.clone() };
        all.push((KUBELET_SERVING_APPROVING, "kubelet_serving_names", Arc::new(pinner)));
        all.push((KUBELET_SERVING_APPROVING, "kubelet_serving_requests", Arc::new(approver)));
    }
    all
}

fn nodes(config: &Config) -> Result<Vec<Named>, Error> {
    let lifecycle = node::lifecycle::NodeLifecycleController {
        grace_period: config.node_monitor_grace_period,
        startup_grace_period: config.node_startup_grace_period,
        started: crate::runtime::now(),
        clock: crate::runtime::now,
        heartbeats: node::Heartbeats::default(),
    };
    let pod_gc = node::pod_gc::PodGcController { terminated_threshold: config.terminated_pod_threshold };
    let mut all: Vec<Named> = vec![
        ("node-lifecycle-controller", "node_lifecycle_controller", Arc::new(lifecycle)),
        (
            "taint-eviction-controller",
            "noexec_taint_pod",
            Arc::new(node::taint_eviction::TaintEvictionController::default()),
        ),
        ("pod-garbage-collector-controller", "orphaned_pods_nodes", Arc::new(pod_gc)),
        ("ttl-controller", "ttlcontroller", Arc::new(node::ttl::TtlController)),
    ];
    if let Some(network) = &config.cluster_cidr {
        let clusters = Cidr::parse_list(network).ok_or_else(|| Error::ClusterCidr(network.clone()))?;
        let ipam = node::ipam::NodeIpamController {
            clusters,
            node_prefix_v4: config.node_cidr_mask,
            node_prefix_v6: config.node_cidr_mask_v6,
        };
        all.push((NODE_IPAM, "node", Arc::new(ipam)));
    }
    Ok(all)
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
        let names: Vec<&str> = controllers(&config).unwrap().iter().map(|(.., one)| one.name()).collect();
        assert_eq!(names, ["node-controller"]);
        let old = ["*".to_owned(), "bootstrapsigner".to_owned(), "-deployment".to_owned(), "-service".to_owned()];
        let config = Config { controllers: canonical(&old), ..config };
        let names: Vec<&str> = controllers(&config).unwrap().iter().map(|(.., one)| one.name()).collect();
        assert!(names.contains(&"bootstrap-signer") && !names.contains(&"deployment-controller"));
        let config = Config { controllers: vec!["*".to_owned(), "-deploymnet-controller".to_owned()], ..config };
        assert!(
            matches!(controllers(&config), Err(Error::UnknownController(name)) if name == "-deploymnet-controller")
        );
    }

    /// Compares with upstream's bootstrap policy, if it is at hand: a service account without a role may do nothing,
    /// and no error says so.
    #[test]
    fn every_controller_acts_as_an_account_that_has_a_role() {
        let Ok(directory) = std::env::var("KUBERNETES_FACTS") else {
            eprintln!("skipped: KUBERNETES_FACTS does not name a directory with rbac/");
            return;
        };
        let read = |name: &str| std::fs::read_to_string(format!("{directory}/rbac/{name}-role-bindings.yaml")).unwrap();
        let bindings = read("controller") + &read("namespace");
        let config = Config { cluster_cidr: Some("10.244.0.0/16".to_owned()), ..Config::default() };
        for (.., controller) in controllers(&config).unwrap() {
            let name = controller.name();
            assert!(bindings.lines().any(|line| line.trim() == format!("name: {name}")), "{name}");
        }
    }
}
