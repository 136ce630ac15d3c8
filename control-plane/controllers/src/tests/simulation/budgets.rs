//! PodDisruptionBudgets, the workloads under them, and a client that evicts as many pods as it may.
//!
//! If nothing else disrupts the pods, evictions alone never leave fewer healthy pods than a budget requires, whatever
//! the controller's caches show; at the end the status of every budget is correct.

use corten_meta::Value;
use http::Method;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, path_of, play};
use super::eviction::{is_ready, selects};
use super::server::{Invariant, Server, Write};
use super::{Random, all, any, delete, kubelet, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &[
        "disruption-controller",
        "deployment-controller",
        "replicaset-controller",
        "replicationcontroller-controller",
        "statefulset-controller",
    ],
    objects,
    happens,
    goes_on: kubelet,
    invariant,
    at_rest,
    pace: std::time::Duration::from_secs(1),
    ..World::USUAL
};

const EVICTOR: &str = "evictor";
/// The label of a namespace in which pods are also deleted by other means, and users change the budgets.
const DISTURBED: &str = "disturbed";

fn objects(random: &mut Random) -> Vec<Value> {
    let disturbed = if random.chance(50) { format!("label.{DISTURBED}=yes") } else { String::new() };
    fixture::objects(&format!(
        "ns default {disturbed}
         node a
         deployment deployment replicas=4 image=i0
         pdb deployment maxUnavailable=40%
         rs replicaset replicas=4 image=i0
         pdb replicaset minAvailable=3
         sts statefulset replicas=4 image=i0 podManagementPolicy=Parallel
         pdb statefulset maxUnavailable=1
         rc replicationcontroller replicas=4 image=i0
         pdb replicationcontroller minAvailable=50%"
    ))
}

fn is_disturbed(model: &Model) -> bool {
    model.value("Namespace", "", "default")["metadata"]["labels"][DISTURBED] == "yes"
}

fn happens(server: &Server, random: &mut Random) {
    let disturbed = is_disturbed(&server.state().api.model);
    match random.next(20) {
        0 if disturbed => {
            if let Some(pod) = any(server, random, "Pod") {
                delete(server, &pod, None);
            }
        }
        1 if disturbed => {
            let kind = ["Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"][random.next(4)];
            let mut owners = all(server, kind);
            owners.retain(|one| one["metadata"]["ownerReferences"].is_null());
            let Some(mut owner) = random.one_of(&owners).cloned() else { return };
            owner["spec"]["replicas"] = json!(random.next(6));
            let _ = server.ask("user", Method::PUT, &path_of(&owner), &owner);
        }
        2 if disturbed => {
            let Some(mut budget) = any(server, random, "PodDisruptionBudget") else { return };
            let rule = [json!({"maxUnavailable": "50%"}), json!({"minAvailable": 2}), json!({"maxUnavailable": 0})];
            let selector = budget["spec"]["selector"].take();
            budget["spec"] = rule[random.next(3)].clone();
            budget["spec"]["selector"] = selector;
            let _ = server.ask("user", Method::PUT, &path_of(&budget), &budget);
        }
        0..12 => {
            let Some(pod) = any(server, random, "Pod") else { return };
            let eviction = json!({"lost": random.chance(10)});
            let _ = server.ask(EVICTOR, Method::POST, &format!("{}/eviction", path_of(&pod)), &eviction);
        }
        _ => {
            let kind = ["PodDisruptionBudget", "Pod", "ReplicaSet", "Deployment"][random.next(4)];
            touch(server, random, kind);
        }
    }
}

/// Returns the correct status of a budget: expected, healthy, desired healthy and allowed disruptions.
fn correct_status(model: &Model, budget: &Value) -> [i64; 4] {
    let values = |kind: &'static str| {
        model.objects().filter(move |(of, _)| *of == kind).map(|(_, object)| object.value()).collect::<Vec<Value>>()
    };
    let mut pods = values("Pod");
    pods.retain(|pod| selects(&budget["spec"]["selector"], pod));
    // Every workload here has the name of its kind, and a ReplicaSet of a Deployment has the Deployment's replicas.
    let name = corten_meta::name(budget);
    let owner = model.value(&fixture::named(name).expect("a kind").kind, "default", name);
    let wanted = if pods.is_empty() { 0 } else { owner["spec"]["replicas"].as_i64().unwrap_or(0) };
    let share = |rule: &Value, of: i64| match rule.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok())
    {
        Some(percent) => (of * percent + 99) / 100,
        None => rule.as_i64().unwrap_or(0),
    };
    let (most, least) = (&budget["spec"]["maxUnavailable"], &budget["spec"]["minAvailable"]);
    let there = i64::try_from(pods.len()).unwrap_or(0);
    let expected = if most.is_null() && least.is_i64() { there } else { wanted };
    let desired = if most.is_null() { share(least, expected) } else { (expected - share(most, expected)).max(0) };
    let healthy = |pod: &&Value| is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null();
    let healthy = i64::try_from(pods.iter().filter(healthy).count()).unwrap_or(0);
    [expected, healthy, desired, if expected > 0 { (healthy - desired).max(0) } else { 0 }]
}

fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| {
        let (EVICTOR, "Pod", Some(old)) = (write.who, write.kind, &write.old) else { return Ok(()) };
        let lives = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
        if is_disturbed(write.after) || !lives(old) || !is_ready(old) || write.new.as_ref().is_some_and(lives) {
            return Ok(());
        }
        let name = old["metadata"]["labels"]["app"].as_str().unwrap_or_default();
        let budget = write.after.value("PodDisruptionBudget", "default", name);
        let [expected, healthy, desired, _] = correct_status(write.after, &budget);
        match healthy < desired {
            true => Err(format!("{healthy} of {expected} are left, {desired} must be: {}", budget["status"])),
            false => Ok(()),
        }
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let state = server.state();
    let model = &state.api.model;
    for key in model.keys("PodDisruptionBudget") {
        let budget = model.value("PodDisruptionBudget", &key.namespace, &key.name);
        let status = &budget["status"];
        let written = ["expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed"]
            .map(|field| status[field].as_i64().unwrap_or(-1));
        let current = status["observedGeneration"] == budget["metadata"]["generation"];
        if written != correct_status(model, &budget) || !current || !status["disruptedPods"].is_null() {
            return Err(format!("{key} has {status}, correct is {:?}", correct_status(model, &budget)));
        }
    }
    let marked = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True")
    };
    let pods = model.keys("Pod").into_iter().map(|key| model.value("Pod", &key.namespace, &key.name));
    match pods.into_iter().find(marked) {
        Some(pod) => Err(format!("{} is marked and stays", corten_meta::name(&pod))),
        None => Ok(()),
    }
}

#[test]
fn evictions_never_take_more_than_a_budget_allows_and_the_status_of_every_budget_is_correct() {
    play(&WORLD);
}
