//! The objects that users of a simulated cluster create: namespaces, Deployments, Services, pods. Pure.

use corten_meta::Value;
use serde_json::json;

use crate::node::{SIMULATED, SIMULATION};
use crate::{Config, Load};

/// The most Deployments of a namespace.
const DEPLOYMENTS_OF_NAMESPACE: u64 = 20;
/// The image of simulated pods, which no node pulls.
const IMAGE: &str = "simulated.invalid/pause:1";

/// A Deployment of the simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    pub namespace: String,
    pub name: String,
    pub replicas: u64,
}

/// Returns the Deployments whose replicas are all pods of the simulation.
pub fn deployments(config: &Config) -> Vec<Deployment> {
    let size = u64::from(config.deployment_size);
    let all = config.pods_of_deployments();
    let deployment = |number: u64| Deployment {
        namespace: namespace_name(config, number / DEPLOYMENTS_OF_NAMESPACE),
        name: format!("web-{number}"),
        replicas: size.min(all - number * size),
    };
    (0..all.div_ceil(size)).map(deployment).collect()
}

/// Returns the names of all namespaces of the simulation.
pub fn namespaces(config: &Config) -> Vec<String> {
    let deployments = config.pods_of_deployments().div_ceil(u64::from(config.deployment_size));
    let workloads = (0..deployments.div_ceil(DEPLOYMENTS_OF_NAMESPACE)).map(|number| namespace_name(config, number));
    let churn = (config.churn > 0.0).then(|| churn_namespace(config));
    workloads.chain(churn).collect()
}

fn namespace_name(config: &Config, number: u64) -> String {
    format!("{}-{number}", config.prefix)
}

/// Returns the namespace of the pods of the churn.
pub fn churn_namespace(config: &Config) -> String {
    format!("{}-churn", config.prefix)
}

pub fn namespace(config: &Config, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {SIMULATED: "true", SIMULATION: config.prefix}},
    })
}

pub fn deployment(config: &Config, deployment: &Deployment) -> Value {
    let labels = json!({"app": deployment.name, SIMULATED: "true"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment.name, "namespace": deployment.namespace, "labels": labels},
        "spec": {
            "replicas": deployment.replicas,
            "selector": {"matchLabels": {"app": deployment.name}},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(config)},
        },
    })
}

/// Returns the Service of all pods of a namespace.
pub fn service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "all", "namespace": namespace, "labels": {SIMULATED: "true"}},
        "spec": {"selector": {SIMULATED: "true"}, "ports": [{"port": 80, "targetPort": 8080}]},
    })
}

/// Returns a pod of the churn.
pub fn churn_pod(config: &Config, number: u64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": churn_name(number),
            "namespace": churn_namespace(config),
            "labels": {"app": "churn", SIMULATED: "true"},
        },
        "spec": pod_spec(config),
    })
}

pub fn churn_name(number: u64) -> String {
    format!("churn-{number}")
}

/// Returns the spec of a pod that only simulated nodes of this simulation run.
fn pod_spec(config: &Config) -> Value {
    json!({
        "nodeSelector": {SIMULATION: config.prefix},
        "tolerations": [{"key": SIMULATED, "operator": "Exists"}],
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 30,
        "containers": [{
            "name": "web",
            "image": IMAGE,
            "ports": [{"containerPort": 8080}],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "env": [{"name": "MODE", "value": "simulated"}],
        }],
    })
}

/// Returns whether the simulation has a load.
pub fn has(config: &Config, load: Load) -> bool {
    config.loads.contains(&load)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replicas_of_all_deployments_are_the_pods_of_the_simulation() {
        let config = Config { nodes: 1001, pods_per_node: 3, churn: 1.0, ..Config::default() };
        let all = deployments(&config);
        assert_eq!(all.iter().map(|one| one.replicas).sum::<u64>(), 3003);
        assert_eq!(all.len(), 31);
        assert_eq!(all[30], Deployment { namespace: "simulated-1".into(), name: "web-30".into(), replicas: 3 });
        assert_eq!(namespaces(&config), ["simulated-0", "simulated-1", "simulated-churn"]);
        let known = namespaces(&config);
        assert!(all.iter().all(|one| known.contains(&one.namespace)));
        assert!(deployments(&Config::default()).is_empty());
        assert!(namespaces(&Config::default()).is_empty());
    }

    #[test]
    fn pods_run_on_simulated_nodes_alone() {
        let config = Config::default();
        let pod = churn_pod(&config, 7);
        assert_eq!(pod["metadata"]["name"], "churn-7");
        assert_eq!(pod["spec"]["nodeSelector"][SIMULATION], "simulated");
        assert_eq!(pod["spec"]["tolerations"][0]["key"], SIMULATED);
    }
}
