//! Compares decisions with another scheduler's on random clusters: `compare PROGRAM [CASES] [SEED]`.
//!
//! PROGRAM reads one case per line (`nodes`, `pods`, `pod`, `services`, `namespaces`, all as the API encodes them) and
//! answers each with a line: `rejected`, a list of plugin, code and reasons by node, and `scores`, the weighted score
//! by node and plugin. Feasible nodes, reasons and scores must be equal. Prints the first differences, and fails.

#![allow(clippy::unwrap_used, reason = "a comparison that cannot go on has nothing to report")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use corten_api::Typed;
use corten_scheduler::evaluate::{Cluster, Evaluation, evaluate};
use serde_json::{Value, json};

/// A small random number generator, so that a seed reproduces a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const APPS: [&str; 3] = ["web", "db", "cache"];
const ZONES: [&str; 3] = ["one", "two", "three"];
const KEYS: [&str; 3] = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"];
const NAMESPACES: [&str; 3] = ["default", "team-a", "team-b"];
const IMAGES: [&str; 3] = ["web:1", "db", "registry.example.com:5000/cache"];

fn node(random: &mut Random, number: usize) -> Value {
    let name = format!("node-{number}");
    let mut labels = json!({"kubernetes.io/hostname": name, "number": number.to_string()});
    if !random.one_in(5) {
        labels["topology.kubernetes.io/zone"] = json!(random.pick(&ZONES));
    }
    if random.one_in(2) {
        labels["rack"] = json!(random.below(3).to_string());
    }
    let mut taints = Vec::new();
    for effect in ["NoSchedule", "PreferNoSchedule", "NoExecute"] {
        if random.one_in(5) {
            taints.push(
                json!({"key": random.pick(&["gpu", "spot"]), "value": random.pick(&["", "yes"]), "effect": effect}),
            );
        }
    }
    let mut images = Vec::new();
    for image in ["web:1", "db:latest", "registry.example.com:5000/cache:latest"] {
        if random.one_in(2) {
            images.push(json!({"names": [image], "sizeBytes": (random.below(2000) as i64) * 1_000_000}));
        }
    }
    let mut allocatable = json!({"cpu": random.pick(&["500m", "2", "8"]), "memory": random.pick(&["1Gi", "4Gi", "16Gi"]),
        "pods": random.pick(&["2", "10", "110"]), "ephemeral-storage": "10Gi"});
    if random.one_in(3) {
        allocatable["example.com/gpu"] = json!(random.below(4).to_string());
    }
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": random.one_in(8)},
        "status": {"allocatable": allocatable, "images": images}})
}

fn selector(random: &mut Random) -> Value {
    match random.below(5) {
        0 => json!({}),
        1 => {
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [random.pick(&APPS), random.pick(&APPS)]}]})
        }
        2 => json!({"matchExpressions": [{"key": "tier", "operator": random.pick(&["Exists", "DoesNotExist"])}]}),
        _ => json!({"matchLabels": {"app": random.pick(&APPS)}}),
    }
}

fn term(random: &mut Random) -> Value {
    let mut term = json!({"topologyKey": random.pick(&KEYS), "labelSelector": selector(random)});
    match random.below(4) {
        0 => term["namespaces"] = json!([random.pick(&NAMESPACES)]),
        1 => term["namespaceSelector"] = json!({"matchLabels": {"team": random.pick(&["a", "b"])}}),
        _ => {}
    }
    term
}

fn node_term(random: &mut Random) -> Value {
    let expression = match random.below(4) {
        0 => json!({"key": "number", "operator": random.pick(&["Gt", "Lt"]), "values": [random.below(8).to_string()]}),
        1 => json!({"key": "rack", "operator": random.pick(&["Exists", "DoesNotExist"])}),
        2 => json!({"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": [random.pick(&ZONES)]}),
        _ => {
            json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": [random.pick(&ZONES), random.pick(&ZONES)]})
        }
    };
    json!({"matchExpressions": [expression]})
}

fn affinity(random: &mut Random) -> Value {
    let mut affinity = json!({});
    if random.one_in(3) {
        let terms: Vec<Value> = (0..=random.below(2)).map(|_| node_term(random)).collect();
        affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": terms});
    }
    if random.one_in(3) {
        let wish = json!({"weight": 1 + random.below(100), "preference": node_term(random)});
        affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([wish]);
    }
    for side in ["podAffinity", "podAntiAffinity"] {
        if random.one_in(4) {
            affinity[side]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([term(random)]);
        }
        if random.one_in(3) {
            let wish = json!({"weight": 1 + random.below(100), "podAffinityTerm": term(random)});
            affinity[side]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([wish]);
        }
    }
    affinity
}

fn spread(random: &mut Random) -> Value {
    let hard = random.one_in(2);
    let mut constraint = json!({"maxSkew": 1 + random.below(3), "topologyKey": random.pick(&KEYS),
        "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" }, "labelSelector": selector(random)});
    if hard && random.one_in(3) {
        constraint["minDomains"] = json!(1 + random.below(4));
    }
    if random.one_in(3) {
        constraint["nodeAffinityPolicy"] = json!(random.pick(&["Honor", "Ignore"]));
    }
    if random.one_in(3) {
        constraint["nodeTaintsPolicy"] = json!(random.pick(&["Honor", "Ignore"]));
    }
    if random.one_in(3) {
        constraint["matchLabelKeys"] = json!(["tier"]);
    }
    constraint
}

fn container(random: &mut Random, name: &str) -> Value {
    let mut requests = json!({});
    if !random.one_in(4) {
        requests["cpu"] = json!(random.pick(&["0", "100m", "500m", "1", "1500m"]));
    }
    if !random.one_in(4) {
        requests["memory"] = json!(random.pick(&["64Mi", "500Mi", "1.5Gi", "100M"]));
    }
    if random.one_in(8) {
        requests["example.com/gpu"] = json!("1");
    }
    if random.one_in(8) {
        requests["ephemeral-storage"] = json!("3Gi");
    }
    let mut container = json!({"name": name, "image": random.pick(&IMAGES), "resources": {"requests": requests}});
    if random.one_in(6) {
        let port = json!({"containerPort": 80, "hostPort": 8000 + random.below(2), "protocol": random.pick(&["TCP", "UDP"]),
            "hostIP": random.pick(&["", "127.0.0.1"])});
        container["ports"] = json!([port]);
    }
    container
}

fn pod(random: &mut Random, name: &str, node: Option<usize>) -> Value {
    let mut labels = json!({"app": random.pick(&APPS)});
    if random.one_in(2) {
        labels["tier"] = json!(random.pick(&["front", "back"]));
    }
    let mut metadata = json!({"namespace": random.pick(&NAMESPACES), "name": name, "uid": name, "labels": labels});
    if node.is_some() && random.one_in(10) {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let containers: Vec<Value> = (0..=random.below(2)).map(|n| container(random, &format!("c{n}"))).collect();
    let mut spec = json!({"containers": containers, "schedulerName": "default-scheduler", "priority": random.below(3)});
    if random.one_in(4) {
        let mut init = container(random, "init");
        if random.one_in(2) {
            init["restartPolicy"] = json!("Always");
        }
        spec["initContainers"] = json!([init]);
    }
    if random.one_in(6) {
        spec["overhead"] = json!({"cpu": "100m", "memory": "50Mi"});
    }
    if random.one_in(6) {
        spec["resources"] = json!({"requests": {"cpu": "1"}});
    }
    if random.one_in(2) {
        spec["affinity"] = affinity(random);
    }
    if random.one_in(3) {
        let key = random.pick(&["gpu", "spot", ""]);
        let mut toleration =
            json!({"operator": if key.is_empty() { "Exists" } else { random.pick(&["Exists", "Equal"]) }});
        if !key.is_empty() {
            toleration["key"] = json!(key);
        }
        if random.one_in(2) {
            toleration["effect"] = json!(random.pick(&["NoSchedule", "PreferNoSchedule", "NoExecute"]));
        }
        spec["tolerations"] = json!([toleration]);
    }
    if random.one_in(6) {
        spec["nodeSelector"] = json!({"topology.kubernetes.io/zone": random.pick(&ZONES)});
    }
    if random.one_in(3) {
        spec["topologySpreadConstraints"] = json!((0..=random.below(2)).map(|_| spread(random)).collect::<Vec<_>>());
    }
    if let Some(node) = node {
        spec["nodeName"] = json!(format!("node-{node}"));
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn case(random: &mut Random) -> Value {
    let count = 1 + random.below(8);
    let nodes: Vec<Value> = (0..count).map(|number| node(random, number)).collect();
    let pods: Vec<Value> = (0..random.below(20))
        .map(|number| {
            let node = random.below(count);
            pod(random, &format!("old-{number}"), Some(node))
        })
        .collect();
    let namespaces: Vec<Value> = NAMESPACES
        .iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": random.pick(&["a", "b"])}}}))
        .collect();
    let services: Vec<Value> = (0..random.below(3))
        .map(|number| {
            let metadata = json!({"namespace": random.pick(&NAMESPACES), "name": format!("s{number}")});
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": {"app": random.pick(&APPS)}}})
        })
        .collect();
    json!({"nodes": nodes, "pods": pods, "pod": pod(random, "new", None), "services": services, "namespaces": namespaces})
}

fn typed<K: Typed>(list: &Value) -> Vec<K> {
    list.as_array().unwrap().iter().map(|value| K::from_value(value.clone()).unwrap()).collect()
}

fn ours(case: &Value) -> BTreeMap<String, Evaluation> {
    let cluster = Cluster {
        nodes: typed(&case["nodes"]),
        pods: typed(&case["pods"]),
        services: typed(&case["services"]),
        namespaces: typed(&case["namespaces"]),
    };
    evaluate(cluster, corten_api::k8s_openapi::api::core::v1::Pod::from_value(case["pod"].clone()).unwrap())
}

/// Returns the differences; empty if there are none.
fn differences(ours: &BTreeMap<String, Evaluation>, theirs: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (node, evaluation) in ours {
        let (rejected, scores) = (&theirs["rejected"][node], &theirs["scores"][node]);
        match evaluation {
            Evaluation::Rejected { plugin, unresolvable, reasons } => {
                let code = if *unresolvable { "UnschedulableAndUnresolvable" } else { "Unschedulable" };
                let mut words = vec![(*plugin).to_owned(), code.to_owned()];
                words.extend(reasons.iter().cloned());
                let mut given: Vec<String> =
                    rejected.as_array().into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect();
                words[2..].sort_unstable();
                if given.len() > 2 {
                    given[2..].sort_unstable();
                }
                if words != given {
                    found.push(format!(
                        "{node}: {words:?} against {given:?}{}",
                        if scores.is_null() { "" } else { " (fits)" }
                    ));
                }
            }
            Evaluation::Scores(given) => {
                for (plugin, score) in given {
                    // A plugin that skips scoring is not listed by the other side, or as zero.
                    let other = scores[*plugin].as_i64();
                    if other.unwrap_or(if scores.is_null() { i64::MIN } else { *score }) != *score {
                        found.push(format!("{node}: {plugin} gives {score} against {other:?}; rejected {rejected}"));
                    }
                }
                for (plugin, other) in scores.as_object().into_iter().flatten() {
                    if other != 0 && !given.contains_key(plugin.as_str()) {
                        found.push(format!("{node}: {plugin} gives nothing against {other}"));
                    }
                }
                if scores.is_null() {
                    found.push(format!("{node}: fits against {rejected}"));
                }
            }
        }
    }
    found
}

fn main() {
    let mut words = std::env::args().skip(1);
    let program = words.next().expect("the program to compare with");
    let cases: usize = words.next().map_or(1000, |text| text.parse().unwrap());
    let mut random = Random(words.next().map_or(1, |text| text.parse::<u64>().unwrap()) | 1);
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut nodes, mut feasible, mut wrong) = (0, 0, 0);
    for number in 0..cases {
        let case = case(&mut random);
        writeln!(input, "{case}").unwrap();
        input.flush().unwrap();
        let theirs: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        let ours = ours(&case);
        nodes += ours.len();
        feasible += ours.values().filter(|evaluation| matches!(evaluation, Evaluation::Scores(_))).count();
        let found = differences(&ours, &theirs);
        if !found.is_empty() {
            wrong += 1;
            if wrong <= 5 {
                println!("case {number}: {}\n{case}", found.join("\n  "));
            }
        }
    }
    drop(input);
    child.wait().unwrap();
    println!("{cases} clusters, {nodes} nodes, {feasible} feasible, {wrong} clusters evaluated differently");
    assert_eq!(wrong, 0);
}
