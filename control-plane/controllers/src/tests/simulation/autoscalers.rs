//! Autoscalers of Deployments under a load that users change.
//!
//! The replicas stay within the bounds at every moment, and under a constant load they converge to the target
//! utilization.

use corten_meta::Value;
use http::Method;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, path_of, play};
use super::server::{Invariant, Server, Write};
use super::{Random, all, any, kubelet, touch};

const AUTOSCALER: &str = "horizontal-pod-autoscaler";
/// The CPU request of each pod in thousandths, and the target utilization in percent.
const REQUEST: i64 = 100;
const WISHED: i64 = 50;

pub const WORLD: World = World {
    controllers: &[
        "horizontal-pod-autoscaler-controller",
        "deployment-controller",
        "replicaset-controller",
        "garbage-collector-controller",
    ],
    objects,
    begins: |server, _| server.state().api.load = 200,
    happens,
    goes_on: kubelet,
    invariant,
    at_rest,
    pace: std::time::Duration::from_secs(4),
    steps: 200,
    ..World::USUAL
};

fn objects(_: &mut Random) -> Vec<Value> {
    // The autoscaler follows the load at once, so that a run can be short.
    fixture::objects(&format!(
        "ns default
         node a
         deployment w replicas=2 template.spec.containers[0].resources.requests.cpu={REQUEST}m
         hpa w target=deployment/w minReplicas=2 maxReplicas=8 behavior.scaleDown.stabilizationWindowSeconds=0 \
         metrics=[{{type: Resource, resource: {{name: cpu, \
         target: {{type: Utilization, averageUtilization: {WISHED}}}}}}}]"
    ))
}

fn happens(server: &Server, random: &mut Random) {
    match random.next(8) {
        0 => server.state().api.load = i64::try_from(random.next(9)).unwrap_or(0) * REQUEST * WISHED / 100,
        1 => {
            let Some(mut object) = any(server, random, "HorizontalPodAutoscaler") else { return };
            let least = 1 + random.next(4);
            object["spec"]["minReplicas"] = json!(least);
            object["spec"]["maxReplicas"] = json!(least + random.next(6));
            let _ = server.ask("user", Method::PUT, &path_of(&object), &object);
        }
        _ => {
            let kind = ["Deployment", "ReplicaSet", "HorizontalPodAutoscaler", "Pod"][random.next(4)];
            touch(server, random, kind);
        }
    }
}

fn bounds(autoscaler: &Value) -> (i64, i64) {
    let bound = |field: &str| autoscaler["spec"][field].as_i64().unwrap_or(1);
    (bound("minReplicas"), bound("maxReplicas"))
}

/// Checks the bounds, including those of a moment ago: no manager sees new ones at once.
fn invariant() -> Invariant {
    let mut known: Vec<(jiff::Timestamp, (i64, i64))> = Vec::new();
    Box::new(move |write: &Write<'_>| {
        if let ("HorizontalPodAutoscaler", Some(new)) = (write.kind, &write.new)
            && known.last().is_none_or(|(_, last)| *last != bounds(new))
        {
            known.push((super::now(), bounds(new)));
        }
        let (AUTOSCALER, "Deployment", Some(new)) = (write.who, write.kind, &write.new) else { return Ok(()) };
        let replicas = new["spec"]["replicas"].as_i64().unwrap_or(0);
        // Bounds apply from their time until newer ones have been visible for long.
        let ended =
            |at: usize| known.get(at + 1).is_some_and(|(then, _)| super::now().duration_since(*then) > super::SETTLED);
        let holding = known.iter().enumerate().filter(|(at, _)| !ended(*at)).map(|(_, (_, bounds))| *bounds);
        match holding.into_iter().any(|(least, most)| (least..=most).contains(&replicas)) {
            true => Ok(()),
            false => Err(format!("{replicas} replicas, the bounds were {known:?}")),
        }
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let load = server.state().api.load;
    let one = |kind: &str| all(server, kind).pop().ok_or_else(|| format!("no {kind}"));
    let (autoscaler, deployment) = (one("HorizontalPodAutoscaler")?, one("Deployment")?);
    let (least, most) = bounds(&autoscaler);
    let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(0);
    let wished = REQUEST * WISHED / 100;
    // A tenth more or less is within the tolerance.
    let fits = |replicas: i64| {
        let share = load / replicas.max(1);
        (share * 10 - wished * 10).abs() <= wished
    };
    let wanted = ((load + wished - 1) / wished).clamp(least, most);
    if replicas == wanted || ((least..=most).contains(&replicas) && fits(replicas)) {
        return Ok(());
    }
    Err(format!("{replicas} replicas at a load of {load}, not {wanted}: {}", autoscaler["status"]))
}

#[test]
fn replicas_stay_within_bounds_and_follow_the_load() {
    play(&WORLD);
}
