//! Autoscalers in tables: recommendations, limits, conditions.

use super::behavior::{Bounds, History, permitted};
use super::custom::Measured;
use super::*;
use crate::tests::model::{NOW, pod};
use jiff::SignedDuration;

fn autoscaler(spec: Value) -> HorizontalPodAutoscaler {
    let mut value = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"namespace": "default", "name": "web", "generation": 1},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 2, "maxReplicas": 10,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    });
    corten_meta::patch::merge_patch(&mut value["spec"], &spec);
    HorizontalPodAutoscaler::from_value(value).unwrap()
}

/// Returns pods that request one CPU each, with the usage of each in thousandths, or none if not measured.
fn observed(spec: Value, replicas: i32, used: &[Option<i64>]) -> Observed {
    let containers = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]);
    let running = |number: usize| {
        let name = format!("p{number}");
        let pod = pod(&name).phase("Running").ready(3600).set("/spec/containers", containers.clone());
        pod.set("/status/startTime", json!("2026-01-01T00:00:00Z")).build()
    };
    let pods: Vec<Pod> = (0..used.len()).map(running).collect();
    let items: Vec<Value> = used
        .iter()
        .enumerate()
        .filter_map(|(number, used)| {
            let usage = json!({"cpu": format!("{}m", (*used)?)});
            Some(json!({"metadata": {"name": format!("p{number}")}, "timestamp": "2026-01-02T03:04:00Z", "window": "15s", "containers": [{"name": "c", "usage": usage}]}))
        })
        .collect();
    Observed {
        autoscaler: autoscaler(spec),
        scale: Ok(json!({"spec": {"replicas": replicas}, "status": {"selector": "app=web"}})),
        selectable: true,
        pods,
        metrics: Ok(metrics::parse(&json!({ "items": items }))),
        others: Vec::new(),
    }
}

fn told(decision: &Decision, kind: &str) -> (String, String) {
    let conditions = decision.status.conditions.as_ref().unwrap();
    let found = conditions.iter().find(|one| one.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone().unwrap())
}

#[test]
fn replicas_follow_the_load() {
    for (replicas, used, expected) in [
        (3, &[Some(1000), Some(1000), Some(1000)][..], Some(6)),
        (3, &[Some(500), Some(500), Some(500)], None),
        (3, &[Some(540), Some(540), Some(540)], None),
        (4, &[Some(100), Some(100), Some(100), Some(100)], Some(2)),
        // A pod without metrics damps a scale-up and limits a scale-down.
        (3, &[Some(1000), Some(1000), None], Some(4)),
        (3, &[Some(100), Some(100), None], None),
        (12, &[Some(500); 12], Some(10)),
        (1, &[Some(500)], Some(2)),
    ] {
        let observed = observed(json!({}), replicas, used);
        let decision = decide(&observed, &mut History::default(), *NOW);
        assert_eq!(decision.replicas, expected, "{replicas} replicas using {used:?}");
    }
}

#[test]
fn average_values_and_containers_are_measured_too() {
    let target = json!({"type": "AverageValue", "averageValue": "250m"});
    let metric = json!([{"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": target}}]);
    let observed = observed(json!({"metrics": metric}), 2, &[Some(500), Some(500)]);
    let decision = decide(&observed, &mut History::default(), *NOW);
    assert_eq!(decision.replicas, Some(4));
    let status = decision.status.current_metrics.unwrap().remove(0);
    assert_eq!(status.container_resource.unwrap().current.average_value.unwrap().0, "500m");
}

#[test]
fn without_metrics_nothing_moves_and_the_conditions_say_why() {
    let mut blind = observed(json!({}), 3, &[None, None, None]);
    blind.metrics = Err("unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)".to_owned());
    let decision = decide(&blind, &mut History::default(), *NOW);
    assert_eq!(decision.replicas, None);
    assert_eq!(told(&decision, "AbleToScale"), ("True".into(), "SucceededGetScale".into()));
    assert_eq!(told(&decision, "ScalingActive"), ("False".into(), "FailedGetResourceMetric".into()));
    let reasons: Vec<&str> = decision.events.iter().map(|(_, reason, _)| *reason).collect();
    assert_eq!(reasons, ["FailedGetResourceMetric", "FailedComputeMetricsReplicas"]);
    assert_eq!(
        decision.events[1].2,
        "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"
    );
    let mut lost = observed(json!({}), 3, &[]);
    lost.scale = Err("deployments.apps \"web\" not found".to_owned());
    let decision = decide(&lost, &mut History::default(), *NOW);
    assert_eq!(told(&decision, "AbleToScale"), ("False".into(), "FailedGetScale".into()));
    let stopped = observed(json!({}), 0, &[]);
    let decision = decide(&stopped, &mut History::default(), *NOW);
    assert_eq!(told(&decision, "ScalingActive"), ("False".into(), "ScalingDisabled".into()));
}

#[test]
fn a_rescale_is_told_and_a_settled_autoscaler_says_the_same_again() {
    let busy = observed(json!({}), 3, &[Some(1000), Some(1000), Some(1000)]);
    let mut decision = decide(&busy, &mut History::default(), *NOW);
    assert!(decision.scaled(&busy, Ok(()), *NOW));
    let (_, reason, message) = decision.events.pop().unwrap();
    assert_eq!(reason, "SuccessfulRescale");
    assert_eq!(message, "New size: 6; reason: cpu resource utilization (percentage of request) above target");

    let mut settled = observed(json!({}), 3, &[Some(500), Some(500), Some(500)]);
    let first = decide(&settled, &mut History::default(), *NOW);
    settled.autoscaler.status = Some(first.status.clone());
    settled.pods.reverse();
    let again = decide(&settled, &mut History::default(), NOW.checked_add(SignedDuration::from_secs(15)).unwrap());
    assert_eq!((again.replicas, again.status), (None, first.status));
}

#[test]
fn changes_are_limited_and_stabilized() {
    let behavior = |value: Value| autoscaler(json!({"behavior": value})).spec.behavior;
    let slow = behavior(json!({
        "scaleUp": {"selectPolicy": "Max", "stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]},
        "scaleDown": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
    }));
    let halving = behavior(json!({
        "scaleDown": {"selectPolicy": "Max", "stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
    }));
    for (behavior, current, desired, expected, reason) in [
        (None, 3, 20, 6, Some("ScaleUpLimit")),
        (None, 8, 20, 10, Some("TooManyReplicas")),
        (None, 3, 1, 2, Some("TooFewReplicas")),
        (None, 3, 4, 4, None),
        (slow.as_ref(), 3, 9, 4, Some("ScaleUpLimit")),
        (slow.as_ref(), 5, 2, 5, Some("ScaleDownLimit")),
        (halving.as_ref(), 8, 2, 4, Some("ScaleDownLimit")),
    ] {
        let bounds = Bounds { min: 2, max: 10, behavior };
        let allowed = permitted(&bounds, &mut History::default(), current, desired, *NOW);
        let why = allowed.limited.map(|(reason, _)| reason);
        assert_eq!((allowed.replicas, why), (expected, reason), "{current} to {desired}");
    }
    let bounds = Bounds { min: 1, max: 10, behavior: None };
    let mut history = History::default();
    let later = |seconds| NOW.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    assert_eq!(permitted(&bounds, &mut history, 8, 8, *NOW).replicas, 8);
    let held = permitted(&bounds, &mut history, 8, 2, later(60));
    assert_eq!((held.replicas, held.stabilized.map(|(reason, _)| reason)), (8, Some("ScaleDownStabilized")));
    assert_eq!(permitted(&bounds, &mut history, 8, 2, later(361)).replicas, 2);

    let one = Bounds { min: 1, max: 10, behavior: slow.as_ref() };
    let mut history = History::default();
    history.changed(1, *NOW);
    assert_eq!(permitted(&one, &mut history, 4, 9, later(30)).replicas, 4, "one a minute");
    assert_eq!(permitted(&one, &mut history, 4, 9, later(90)).replicas, 5);
}

#[test]
fn requests_that_are_missing_are_told() {
    let mut bare = observed(json!({}), 1, &[Some(500), Some(500)]);
    bare.pods[0].spec.as_mut().unwrap().containers[0].resources = None;
    bare.scale = Ok(json!({"spec": {"replicas": 2}}));
    let decision = decide(&bare, &mut History::default(), *NOW);
    assert_eq!(decision.events[0].2, "failed to get cpu utilization: missing request for cpu in container c of Pod p0");
}

/// Custom metrics, with their values and the recommended replicas.
#[test]
fn other_metrics_are_answered_by_their_targets() {
    let pods = |value: i64| {
        let one = |number: usize| {
            let usage = std::collections::BTreeMap::from([(custom::VALUE.to_owned(), value)]);
            let found = metrics::PodMetrics { containers: [(String::new(), usage)].into(), ..Default::default() };
            (format!("p{number}"), found)
        };
        Measured::Pods((0..2).map(one).collect())
    };
    let external =
        |target: Value| json!([{"type": "External", "external": {"metric": {"name": "q"}, "target": target}}]);
    let object = json!([{"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": {"kind": "Service", "name": "s"},
        "target": {"type": "Value", "value": "10"}}}]);
    let of_pods = json!([{"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "10"}}}]);
    for (metrics, measured, expected, name) in [
        (of_pods.clone(), Ok(pods(20_000)), Some(4), "pods metric rps"),
        (of_pods.clone(), Ok(pods(10_500)), None, "pods metric rps"),
        (
            external(json!({"type": "Value", "value": "10"})),
            Ok(Measured::One(15_000)),
            Some(3),
            "external metric q(nil)",
        ),
        (
            external(json!({"type": "AverageValue", "averageValue": "10"})),
            Ok(Measured::One(41_000)),
            Some(5),
            "external metric q(nil)",
        ),
        (
            external(json!({"type": "AverageValue", "averageValue": "10"})),
            Ok(Measured::One(20_000)),
            None,
            "external metric q(nil)",
        ),
        (object, Ok(Measured::One(30_000)), Some(6), "Service metric hits"),
        (of_pods, Err("gone".to_owned()), None, ""),
    ] {
        let failed = measured.is_err();
        let mut observed = observed(json!({"maxReplicas": 10, "metrics": metrics}), 2, &[None, None]);
        observed.others = vec![Some(measured)];
        let decision = decide(&observed, &mut History::default(), *NOW);
        // Without rules it scales up to four, or to twice as many.
        assert_eq!(decision.replicas, expected.map(|count: i32| count.min(4)), "{name}");
        let (active, reason) = told(&decision, "ScalingActive");
        if failed {
            assert_eq!((active.as_str(), reason.as_str()), ("False", "FailedGetPodsMetric"));
        } else {
            let condition =
                decision.status.conditions.iter().flatten().find(|one| one.type_ == "ScalingActive").unwrap();
            let message = format!("the HPA was able to successfully calculate a replica count from {name}");
            assert_eq!(condition.message.as_deref(), Some(message.as_str()));
        }
    }
}

/// A metrics API may return any quantity: the autoscaler caps it at the largest number and keeps its bounds.
#[test]
fn amounts_beyond_all_numbers_keep_the_bounds() {
    let average = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1"}}}]);
    let specs = [json!({}), json!({ "metrics": average })];
    for (spec, used, expected) in [
        (&specs[0], [i64::MAX, i64::MAX], Some(4)),
        (&specs[1], [i64::MAX, i64::MAX], Some(4)),
        (&specs[0], [i64::MIN, i64::MIN], None),
        (&specs[1], [i64::MIN, i64::MIN], None),
    ] {
        let observed = observed(spec.clone(), 2, &used.map(Some));
        let decision = decide(&observed, &mut History::default(), *NOW);
        assert_eq!(decision.replicas, expected, "{spec} {used:?}");
    }
    assert_eq!(usage::total(&[i64::MAX, 1, i64::MAX]), i64::MAX);
    assert_eq!(usage::total(&[i64::MIN, -1, 1]), i64::MIN);
}

#[test]
fn a_window_beyond_all_times_leaves_a_pod_unready() {
    let mut observed = observed(json!({}), 2, &[Some(1000), Some(1000)]);
    for pod in &mut observed.pods {
        pod.status.as_mut().unwrap().start_time.as_mut().unwrap().0 = *NOW;
    }
    for found in observed.metrics.as_mut().unwrap().values_mut() {
        found.window = std::time::Duration::from_secs(i64::MAX.unsigned_abs());
    }
    let decision = decide(&observed, &mut History::default(), *NOW);
    assert_eq!(told(&decision, "ScalingActive"), ("False".to_owned(), "FailedGetResourceMetric".to_owned()));
}

proptest::proptest! {
    /// For any load: the bounds hold, the order of pods does not matter, and once the recommended replicas run and
    /// share the load, nothing changes any more.
    #[test]
    fn an_autoscaler_keeps_its_bounds_and_comes_to_rest(
        used in proptest::collection::vec(proptest::option::of(0i64..2000), 2..10), turned in 0usize..10,
    ) {
        let replicas = i32::try_from(used.len()).unwrap();
        let seen = observed(json!({}), replicas, &used);
        let decision = decide(&seen, &mut History::default(), *NOW);
        let wanted = decision.replicas.unwrap_or(replicas);
        proptest::prop_assert!((2..=10).contains(&wanted), "{wanted}");

        let mut other = observed(json!({}), replicas, &used);
        other.pods.rotate_left(turned % used.len());
        let same = decide(&other, &mut History::default(), *NOW);
        proptest::prop_assert_eq!(same.replicas, decision.replicas);
        proptest::prop_assert_eq!(same.status, decision.status);

        // With all pods measured and the load at the target, the replicas stay.
        let met = observed(json!({}), wanted, &vec![Some(500); usize::try_from(wanted).unwrap()]);
        proptest::prop_assert_eq!(decide(&met, &mut History::default(), *NOW).replicas, None);
    }
}
