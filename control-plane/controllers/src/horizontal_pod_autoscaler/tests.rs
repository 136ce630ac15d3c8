//! Autoscalers: recommendations, limits and conditions in `tests.txt`; properties of any load.

use super::behavior::{Bounds, History, permitted};
use super::custom::Measured;
use super::*;
use crate::tests::model::NOW;
use expect_test::expect_file;
use jiff::{SignedDuration, Timestamp};
use testkit_fixture as fixture;

const AUTOSCALER: &str = "hpa web generation=1 target=deployment/web minReplicas=2 maxReplicas=10 \
     metrics=[{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]";

/// Returns pods that request one CPU each, with the usage of each in thousandths, or none if not measured.
fn observed(autoscaler: &str, replicas: i32, used: &[Option<i64>]) -> Observed {
    let running = |number: usize| {
        fixture::typed(&format!("pod p{number} Running ready=3600 request.cpu=1 status.startTime=now-1d"))
    };
    let items = used.iter().enumerate().filter_map(|(number, used)| {
        let containers = json!([{"name": "c", "usage": {"cpu": format!("{}m", (*used)?)}}]);
        let metadata = json!({"name": format!("p{number}")});
        let timestamp = "2026-01-02T03:04:00Z";
        Some(json!({"metadata": metadata, "timestamp": timestamp, "window": "15s", "containers": containers}))
    });
    Observed {
        autoscaler: fixture::typed(autoscaler),
        scale: Ok(json!({"spec": {"replicas": replicas}, "status": {"selector": "app=web"}})),
        selectable: true,
        pods: (0..used.len()).map(running).collect(),
        metrics: Ok(metrics::parse(&json!({ "items": items.collect::<Vec<Value>>() }))),
        others: Vec::new(),
    }
}

/// The state of a case: the last observation and the history of the autoscaler.
struct Scene {
    autoscaler: String,
    observed: Observed,
    history: History,
    now: Timestamp,
}

impl Default for Scene {
    fn default() -> Scene {
        let autoscaler = AUTOSCALER.to_owned();
        Scene { observed: observed(AUTOSCALER, 2, &[]), autoscaler, history: History::default(), now: *NOW }
    }
}

/// Runs a command: `hpa WORDS`, `load REPLICAS USAGE…`, `metric …`, `no-scale`, `no-metrics`, `no-requests`,
/// `pod-level-requests LIST`, `decide`, `rescale`, `permit CURRENT DESIRED`, `changed BY`, `now +60s`.
fn run(scene: &mut Scene, command: &str) -> String {
    let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
    let numbers = || rest.split(' ').map(|word| word.parse::<i64>().ok()).collect::<Vec<_>>();
    let small = |number: Option<i64>| i32::try_from(number.expect("a number")).unwrap();
    match verb {
        "hpa" => {
            scene.autoscaler = format!("{AUTOSCALER} {rest}");
            scene.observed.autoscaler = fixture::typed(&scene.autoscaler);
        }
        "load" => {
            let numbers = numbers();
            scene.observed = observed(&scene.autoscaler, small(numbers[0]), &numbers[1..]);
        }
        "metric" => scene.observed.others = vec![Some(measured(rest))],
        "no-scale" => scene.observed.scale = Err(rest.to_owned()),
        "no-metrics" => scene.observed.metrics = Err(rest.to_owned()),
        "no-requests" => scene.observed.pods[0].spec.as_mut().unwrap().containers[0].resources = None,
        "pod-level-requests" => {
            for pod in &mut scene.observed.pods {
                *pod = fixture::typed(&format!(
                    "pod {} Running ready=3600 request.cpu=1 status.startTime=now-1d resources.requests={rest}",
                    pod.name()
                ));
            }
        }
        "decide" | "rescale" => {
            let mut decision = decide(&scene.observed, &mut scene.history, scene.now);
            if verb == "rescale" {
                assert!(decision.scaled(&scene.observed, Ok(()), scene.now));
            }
            return written(decision);
        }
        "permit" => {
            let behavior = scene.observed.autoscaler.spec.behavior.as_ref();
            let bounds = Bounds { min: 2, max: 10, behavior };
            let (current, desired) = (small(numbers()[0]), small(numbers()[1]));
            let allowed = permitted(&bounds, &mut scene.history, current, desired, scene.now);
            let why = allowed.limited.iter().chain(&allowed.stabilized).map(|(reason, _)| format!(" {reason}"));
            return format!("{}{}", allowed.replicas, why.collect::<String>());
        }
        "changed" => scene.history.changed(small(numbers()[0]), scene.now),
        "now" => {
            scene.now = scene.now.checked_add(fixture::duration(rest.trim_start_matches('+')).unwrap()).unwrap();
        }
        other => panic!("no command is named {other}"),
    }
    String::new()
}

/// Reads `pods VALUE`, the same value for two pods, `value VALUE` or `error MESSAGE`.
fn measured(text: &str) -> Result<Measured, String> {
    let (kind, value) = text.split_once(' ').expect("KIND VALUE");
    let number = || value.parse::<i64>().expect("a number");
    match kind {
        "error" => Err(value.to_owned()),
        "value" => Ok(Measured::One(number())),
        _ => {
            let one = |name: &str| {
                let usage = std::collections::BTreeMap::from([(custom::VALUE.to_owned(), number())]);
                let found = metrics::PodMetrics { containers: [(String::new(), usage)].into(), ..Default::default() };
                (name.to_owned(), found)
            };
            Ok(Measured::Pods(["p0", "p1"].map(one).into()))
        }
    }
}

fn written(decision: Decision) -> String {
    let replicas = decision.replicas.map_or("unchanged".to_owned(), |replicas| replicas.to_string());
    let mut lines = vec![format!("replicas {replicas}")];
    for one in decision.status.conditions.iter().flatten() {
        let (reason, message) = (one.reason.as_deref().unwrap_or(""), one.message.as_deref().unwrap_or(""));
        lines.push(format!("{}={}/{reason} {message}", one.type_, one.status));
    }
    for metric in decision.status.current_metrics.iter().flatten() {
        let current = metric.container_resource.as_ref().map(|one| &one.current);
        lines.extend(
            current.and_then(|current| current.average_value.as_ref()).map(|value| format!("average {}", value.0)),
        );
    }
    let event = |(_, reason, message): &(bool, &str, String)| format!("event {reason} {message}");
    lines.extend(decision.events.iter().map(event));
    lines.join("\n")
}

#[test]
fn every_load_has_its_replicas() {
    fixture::script::check(expect_file!["tests.txt"], Scene::default, run);
    assert_eq!(usage::total(&[i64::MAX, 1, i64::MAX]), i64::MAX);
    assert_eq!(usage::total(&[i64::MIN, -1, 1]), i64::MIN);
}

#[test]
fn a_settled_autoscaler_decides_the_same_again() {
    let mut settled = observed(AUTOSCALER, 3, &[Some(500), Some(500), Some(500)]);
    let first = decide(&settled, &mut History::default(), *NOW);
    settled.autoscaler.status = Some(first.status.clone());
    settled.pods.reverse();
    let again = decide(&settled, &mut History::default(), NOW.checked_add(SignedDuration::from_secs(15)).unwrap());
    assert_eq!((again.replicas, again.status), (None, first.status));
}

#[test]
fn a_window_beyond_all_times_leaves_a_pod_unready() {
    let mut observed = observed(AUTOSCALER, 2, &[Some(1000), Some(1000)]);
    for pod in &mut observed.pods {
        pod.status.as_mut().unwrap().start_time.as_mut().unwrap().0 = *NOW;
    }
    for found in observed.metrics.as_mut().unwrap().values_mut() {
        found.window = std::time::Duration::from_secs(i64::MAX.unsigned_abs());
    }
    let status = written(decide(&observed, &mut History::default(), *NOW));
    assert!(status.contains("ScalingActive=False/FailedGetResourceMetric"), "{status}");
}

proptest::proptest! {
    /// For any load: the bounds hold, the order of pods does not matter, and once the recommended replicas run and
    /// share the load, nothing changes any more.
    #[test]
    fn an_autoscaler_keeps_its_bounds_and_comes_to_rest(
        used in proptest::collection::vec(proptest::option::of(0i64..2000), 2..10), turned in 0usize..10,
    ) {
        let replicas = i32::try_from(used.len()).unwrap();
        let seen = observed(AUTOSCALER, replicas, &used);
        let decision = decide(&seen, &mut History::default(), *NOW);
        let wanted = decision.replicas.unwrap_or(replicas);
        proptest::prop_assert!((2..=10).contains(&wanted), "{wanted}");

        let mut other = observed(AUTOSCALER, replicas, &used);
        other.pods.rotate_left(turned % used.len());
        let same = decide(&other, &mut History::default(), *NOW);
        proptest::prop_assert_eq!(same.replicas, decision.replicas);
        proptest::prop_assert_eq!(same.status, decision.status);

        // With all pods measured and the load at the target, the replicas stay.
        let met = observed(AUTOSCALER, wanted, &vec![Some(500); usize::try_from(wanted).unwrap()]);
        proptest::prop_assert_eq!(decide(&met, &mut History::default(), *NOW).replicas, None);
    }
}
