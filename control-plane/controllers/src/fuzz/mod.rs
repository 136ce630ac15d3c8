//! Entry points for the fuzz targets: fields that users write for controllers to read, and metrics. No other code may
//! use this module.

mod world;

use corten_api::Typed;
use corten_api::k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::Value;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use crate::certificates::request::Request;
use crate::cronjob::schedule::Schedule;
use crate::horizontal_pod_autoscaler::behavior::History;
use crate::horizontal_pod_autoscaler::decide::{Observed, decide};
use crate::horizontal_pod_autoscaler::{custom, metrics};
use crate::job::indexes::Indexes;
use crate::{Config, KubeletServing, LoadBalancerAddresses, registry};
use world::World;

/// Reads a certificate signing request and checks it for every signer.
pub fn signing_request(pem: &[u8], usages: &[String]) {
    let Ok(request) = Request::parse(pem) else { return };
    let signers = ["kube-apiserver-client-kubelet", "kubelet-serving", "kube-apiserver-client", "legacy-unknown"];
    for signer in signers {
        let _ = request.check(&format!("kubernetes.io/{signer}"), usages);
    }
}

/// Reads a schedule and returns its first time after 1970, if there is one.
pub fn schedule(text: &str) -> Option<Timestamp> {
    Schedule::parse(text).ok()?.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC)
}

/// Reads completion indexes and writes them again.
pub fn indexes(text: &str) -> String {
    Indexes::parse(text).to_string()
}

/// Runs an autoscaler between two and ten replicas whose metrics APIs all answer with this list; returns the replicas that
/// it scales to.
pub fn autoscaled(list: &Value) -> Option<i32> {
    let average =
        |name: &str| json!({"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": "3"}});
    let spec = json!({"scaleTargetRef": {"kind": "Deployment", "name": "a"}, "minReplicas": 2, "maxReplicas": 10, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Mi"}}},
        {"type": "Pods", "pods": average("p")}, {"type": "External", "external": average("e")}]});
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]},
        "status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}})
    };
    let observed = Observed {
        autoscaler: HorizontalPodAutoscaler::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).ok()?,
        scale: Ok(json!({"spec": {"replicas": 2}, "status": {"selector": "a=b", "replicas": 2}})),
        selectable: true,
        pods: ["a", "b"].iter().filter_map(|name| Pod::from_value(pod(name)).ok()).collect(),
        metrics: Ok(metrics::parse(list)),
        others: vec![None, None, Some(Ok(custom::by_pod(list))), custom::sum(list).map(Ok)],
    };
    let now = "2026-01-02T03:05:05Z".parse().ok()?;
    decide(&observed, &mut History::default(), now).replicas
}

/// Reconciles every name among these objects with every controller; returns the number of planned actions.
pub fn planned(objects: &[Value]) -> usize {
    let world = World::new(objects);
    let Ok(now) = "2026-01-02T03:05:05Z".parse() else { return 0 };
    let config = Config {
        kubelet_serving: Some(KubeletServing::default()),
        load_balancer: Some(LoadBalancerAddresses::Nodes { kept_ports: [22].into() }),
        local_volumes: true,
        ..Config::default()
    };
    let Ok(controllers) = registry::controllers(&config) else { return 0 };
    let keys = world.keys();
    let plans =
        controllers.iter().flat_map(|(.., controller)| keys.iter().map(|key| controller.decide(&world, key, now)));
    plans.map(|plan| plan.actions.len()).sum()
}
