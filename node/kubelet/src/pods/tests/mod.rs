//! The plan and the status of a pod for its state in the runtime: `plan.txt`, `status.txt`. Also the property that a
//! plan that was carried out leads to an empty plan.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::IpAddr;

use corten_api::k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, Pod, PodStatus, ResourceHealth, ResourceStatus,
};
use expect_test::expect_file;
use jiff::{SignedDuration, Timestamp};
use testkit_fixture::script;

use super::plan::{Applied, Memory, Plan, SandboxAction, Termination, backoff_key, is_resizing, plan};
use super::status::{Facts, status};
use crate::fixtures;
use crate::pod::observed::{Instance, InstanceState, Observed, Sandbox};
use crate::pod::verdict::Verdict;
use crate::pod::waiting::Waiting;

const NOW: i64 = 1_000_000;

/// A pod and the kubelet's knowledge of it.
#[derive(Default)]
struct Scene {
    pod: Pod,
    observed: Observed,
    memory: Memory,
    waiting: HashMap<String, Waiting>,
    device_health: HashMap<String, Vec<ResourceStatus>>,
    ended: bool,
}

impl Scene {
    fn status(&self) -> PodStatus {
        status(&Facts {
            pod: &self.pod,
            observed: &self.observed,
            memory: &self.memory,
            waiting: &self.waiting,
            device_health: &self.device_health,
            host_ips: &[IpAddr::from([192, 0, 2, 1])],
            runtime_name: "corten",
            ended: self.ended,
            now: at(0),
        })
    }
}

fn run(scene: &mut Scene, command: &str) -> String {
    let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
    let words: Vec<&str> = rest.split_whitespace().collect();
    match word {
        "pod" => scene.pod = testkit_fixture::typed(&format!("{command} uid=pod-uid generation=1")),
        "runtime" => scene.observed = observed(rest),
        "terminating" => scene.memory.termination = Some(termination(&words)),
        "stopping" => drop(scene.memory.stopping.insert(rest.into())),
        "probed" => drop(scene.memory.verdicts.insert(words[0].into(), verdict(&words[1..]))),
        "backoff" => {
            let container = &crate::pod::spec::spec(&scene.pod).containers[0];
            scene.memory.backoffs.next(&backoff_key(container), at(words[1].parse().unwrap()));
        }
        "waiting" => {
            let waiting = Waiting { reason: words[1].into(), message: "why".into() };
            scene.waiting.insert(words[0].into(), waiting);
        }
        "device" => {
            let health = ResourceHealth { resource_id: words[1].into(), health: Some(words[2].into()), message: None };
            let status = ResourceStatus { name: "x.io/gpu".into(), resources: Some(vec![health]) };
            scene.device_health.insert(words[0].into(), vec![status]);
        }
        "ended" => scene.ended = true,
        "plan" => return show_plan(&plan(&scene.pod, &scene.observed, &scene.memory, at(0))),
        "status" => return show_status(&scene.status()),
        "containers" => return show_containers(&scene.status()),
        "phase" => {
            let status = scene.status();
            return [status.phase, status.reason].into_iter().flatten().collect::<Vec<_>>().join(" ");
        }
        other => panic!("no command {other}"),
    }
    String::new()
}

#[test]
fn plans() {
    script::check(expect_file!["plan.txt"], Scene::default, run);
}

#[test]
fn statuses() {
    script::check(expect_file!["status.txt"], Scene::default, run);
}

/// Parses the seconds since the start, the grace period, and the reason of a failure.
fn termination(words: &[&str]) -> Termination {
    let failed = words.get(2).map(|reason| ((*reason).to_owned(), "why".to_owned()));
    Termination {
        since: at(words[0].parse().unwrap()),
        grace: words[1].parse().unwrap(),
        failed,
        ..Termination::default()
    }
}

/// Parses the results of probes: `startup liveness=false`.
fn verdict(words: &[&str]) -> Verdict {
    let result = |probe: &str| {
        let word = words.iter().find(|word| word.split('=').next() == Some(probe))?;
        Some(!word.ends_with("=false"))
    };
    Verdict { startup: result("startup"), readiness: result("readiness"), liveness: result("liveness") }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOW + second).unwrap()
}

fn nanos(second: i64) -> i64 {
    (NOW + second) * 1_000_000_000
}

fn sandbox(id: &str, ready: bool) -> Sandbox {
    let attempt = id.trim_start_matches('s').parse().unwrap();
    Sandbox { id: id.into(), attempt, ready, created_at: i64::from(attempt), ips: vec!["10.244.0.2".into()] }
}

/// Parses sandboxes and instances: `s0 ready, s0 main running, s0 init exited 1 -5 #2` (code, seconds ago, restart
/// count).
fn observed(text: &str) -> Observed {
    let mut observed = Observed::default();
    for (index, part) in text.split(',').map(str::trim).filter(|part| !part.is_empty()).enumerate() {
        let words: Vec<&str> = part.split_whitespace().collect();
        if let [id, state] = words.as_slice() {
            observed.sandboxes.push(sandbox(id, *state == "ready"));
            continue;
        }
        let state = match words[2] {
            "created" => InstanceState::Created,
            "running" => InstanceState::Running,
            _ => InstanceState::Exited,
        };
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
        let count = words.iter().find_map(|word| word.strip_prefix('#')).map_or(0, |count| count.parse().unwrap());
        observed.instances.push(Instance {
            id: format!("{}{index}", words[1]),
            sandbox_id: words[0].into(),
            name: words[1].into(),
            restart_count: count,
            state,
            created_at: index as i64,
            started_at: nanos(-1000),
            exit_code: i32::try_from(number(3)).unwrap(),
            finished_at: nanos(number(4)),
            ..Instance::default()
        });
    }
    observed.sorted()
}

fn show_plan(plan: &Plan) -> String {
    let mut text = String::new();
    for stop in &plan.stop {
        writeln!(text, "stop {} grace {}: {}", stop.id, stop.grace, stop.message).unwrap();
    }
    match plan.sandbox {
        SandboxAction::Keep => {}
        SandboxAction::Create { attempt } => writeln!(text, "create sandbox {attempt}").unwrap(),
        SandboxAction::Stop => text.push_str("stop sandbox\n"),
    }
    for start in &plan.start {
        writeln!(text, "start {} ({:?}) #{}", start.name, start.role, start.restart_count).unwrap();
    }
    for waiting in &plan.backing_off {
        let seconds = waiting.until.duration_since(at(0)).as_secs();
        writeln!(text, "wait {seconds}s: {}", waiting.message).unwrap();
    }
    for id in &plan.remove {
        writeln!(text, "remove {id}").unwrap();
    }
    for id in &plan.reset {
        writeln!(text, "reset {id}").unwrap();
    }
    if text.is_empty() { "nothing\n".into() } else { text }
}

fn show_state(state: Option<&ContainerState>) -> String {
    let Some(state) = state else { return "-".into() };
    if let Some(waiting) = &state.waiting {
        return format!("waiting:{}", waiting.reason.as_deref().unwrap_or("-"));
    }
    if let Some(terminated) = &state.terminated {
        return format!("terminated:{}:{}", terminated.exit_code, terminated.reason.as_deref().unwrap_or("-"));
    }
    if state.running.is_some() { "running".into() } else { "-".into() }
}

fn show_status(status: &PodStatus) -> String {
    let mut text = format!("{} {}", status.phase.as_deref().unwrap(), status.pod_ip.as_deref().unwrap_or("-"));
    if let Some(reason) = &status.reason {
        text += &format!(" {reason}");
    }
    text += "\n";
    text += &show_containers(status);
    for condition in status.conditions.iter().flatten() {
        let reason = condition.reason.as_deref().unwrap_or_default();
        let message = condition.message.as_deref().unwrap_or_default();
        text += format!("{}={} {reason} {message}", condition.type_, condition.status).trim_end();
        text += "\n";
    }
    text
}

fn show_containers(status: &PodStatus) -> String {
    let mut text = String::new();
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let ContainerStatus { name, ready, started, restart_count, state, last_state, .. } = container;
        let started = started.map_or("-".to_owned(), |started| started.to_string());
        text += &format!(
            "{name}: {} last={} ready={ready} started={started} restarts={restart_count}\n",
            show_state(state.as_ref()),
            show_state(last_state.as_ref())
        );
        for resource in container.allocated_resources_status.iter().flatten() {
            let each = resource.resources.iter().flatten();
            let each = each.map(|device| format!("{}={}", device.resource_id, device.health.as_deref().unwrap_or("-")));
            let _ = writeln!(text, "  {}: {}", resource.name, each.collect::<Vec<_>>().join(" "));
        }
    }
    text
}

#[test]
fn a_crash_loop_of_another_image_begins_anew() {
    let mut container = crate::pod::spec::spec(&running().pod).containers[0].clone();
    let mut memory = Memory::default();
    memory.backoffs.next(&backoff_key(&container), at(-2));
    assert!(memory.backoffs.until(&backoff_key(&container), at(-1), at(0)).is_some());
    container.image = Some("another".to_owned());
    assert_eq!(memory.backoffs.until(&backoff_key(&container), at(-1), at(0)), None);
}

fn running() -> Scene {
    let mut scene = Scene::default();
    run(&mut scene, "pod ns/p containers=[{name: main, image: busybox}]");
    run(&mut scene, "runtime s0 ready, s0 main running");
    scene
}

#[test]
fn a_changed_image_restarts_the_container() {
    let pod = fixtures::pod(r#"{"containers":[{"name":"main","image":"new"}]}"#);
    let mut runtime = observed("s0 ready, s0 main running");
    runtime.instances[0].hash = "old".into();
    let plan = plan(&pod, &runtime, &Memory::default(), at(0));
    assert_eq!(plan.stop[0].message, "Container main definition changed, will be restarted");
}

#[test]
fn changed_resources_are_applied_or_restart_the_container() {
    let spec = |policy: &str| {
        let policies = format!(r#"[{{"resourceName":"memory","restartPolicy":"{policy}"}}]"#);
        format!(
            r#"{{"containers":[{{"name":"main","resizePolicy":{policies},"resources":{{"limits":{{"memory":"2Gi"}}}}}}]}}"#
        )
    };
    let pod = fixtures::pod(&spec("NotRequired"));
    let mut memory = Memory::default();
    let runtime = observed("s0 ready, s0 main running");
    let main_resources = Applied::new(&pod, &crate::pod::spec::spec(&pod).containers[0]);
    memory.applied.insert("main1".into(), main_resources);
    assert_eq!(plan(&pod, &runtime, &memory, at(0)), Plan::default());
    memory.applied.insert("main1".into(), Default::default());
    assert_eq!(plan(&pod, &runtime, &memory, at(0)).resize, [("main1".to_owned(), "main".to_owned())]);
    let restarted = plan(&fixtures::pod(&spec("RestartContainer")), &runtime, &memory, at(0));
    assert_eq!(restarted.stop[0].message, "Container main resize requires restart");
    assert!(restarted.resize.is_empty());
}

#[test]
fn a_changed_limit_of_the_pod_reaches_containers_without_one() {
    let pod = |memory: &str| {
        let policies = r#"[{"resourceName":"memory","restartPolicy":"RestartContainer"}]"#;
        fixtures::pod(&format!(
            r#"{{"resources":{{"limits":{{"memory":"{memory}"}}}},"containers":[
                {{"name":"own","resources":{{"limits":{{"memory":"1Mi"}}}}}},{{"name":"bare"}},
                {{"name":"restarted","resizePolicy":{policies}}}]}}"#
        ))
    };
    let before = pod("8Mi");
    let runtime = observed("s0 ready, s0 own running, s0 bare running, s0 restarted running");
    let mut memory = Memory { applied_to_pod: Some(crate::pod::resources::pod_level(&before)), ..Memory::default() };
    for container in &crate::pod::spec::spec(&before).containers {
        let id = runtime.newest(&container.name).unwrap().id.clone();
        memory.applied.insert(id, Applied::new(&before, container));
    }
    assert!(!is_resizing(&before, &runtime, &memory));
    let after = pod("9Mi");
    assert!(is_resizing(&after, &runtime, &memory));
    let plan = plan(&after, &runtime, &memory, at(0));
    assert_eq!(plan.resize.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["bare"]);
    assert_eq!(plan.stop[0].message, "Container restarted resize requires restart");
}

#[test]
fn an_init_container_is_resized_while_it_runs() {
    let pod = |cpu: &str| {
        let init = format!(r#"{{"name":"init","resources":{{"requests":{{"cpu":"{cpu}"}}}}}}"#);
        fixtures::pod(&format!(r#"{{"initContainers":[{init}],"containers":[{{"name":"main"}}]}}"#))
    };
    let before = pod("1");
    let applied = Applied::new(&before, crate::pod::spec::init_containers(&before).next().unwrap().1);
    let memory = Memory { applied: [("init1".to_owned(), applied)].into(), ..Memory::default() };
    let runtime = observed("s0 ready, s0 init running");
    assert!(plan(&before, &runtime, &memory, at(0)).resize.is_empty() && !is_resizing(&before, &runtime, &memory));
    let after = pod("2");
    assert_eq!(plan(&after, &runtime, &memory, at(0)).resize, [("init1".to_owned(), "init".to_owned())]);
    assert!(is_resizing(&after, &runtime, &memory));
}

/// Carries out a plan at once; containers named `fails…` exit with 1, init containers with 0.
fn carry_out(plan: &Plan, observed: &mut Observed, memory: &mut Memory, clock: &mut i64) {
    *clock += 1;
    if let SandboxAction::Create { attempt } = plan.sandbox {
        observed.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
        observed.sandboxes.push(sandbox(&format!("s{attempt}"), true));
    }
    if plan.sandbox == SandboxAction::Stop {
        observed.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
    }
    observed.instances.retain(|instance| !plan.remove.contains(&instance.id));
    for instance in &mut observed.instances {
        if plan.stop.iter().any(|stop| stop.id == instance.id) {
            (instance.state, instance.exit_code, instance.finished_at) = (InstanceState::Exited, 137, nanos(*clock));
        }
    }
    for start in &plan.start {
        let ends = start.role == crate::pod::spec::Role::Init || start.name.starts_with("ends");
        let state = if ends { InstanceState::Exited } else { InstanceState::Running };
        observed.instances.push(Instance {
            id: format!("{}-{}", start.name, start.restart_count),
            sandbox_id: observed.sandboxes.iter().max_by_key(|sandbox| sandbox.attempt).unwrap().id.clone(),
            name: start.name.clone(),
            restart_count: start.restart_count,
            state,
            created_at: *clock,
            finished_at: nanos(*clock),
            ..Instance::default()
        });
        memory.verdicts.insert(
            format!("{}-{}", start.name, start.restart_count),
            Verdict { startup: Some(true), ..Verdict::default() },
        );
    }
    *observed = std::mem::take(observed).sorted();
}

fn converge(pod: &Pod, mut observed: Observed, mut memory: Memory) -> Observed {
    let mut clock = 0;
    for _ in 0..20 {
        let plan = plan(pod, &observed, &memory, at(0) + SignedDuration::from_secs(clock));
        if plan == Plan::default() {
            return observed;
        }
        carry_out(&plan, &mut observed, &mut memory, &mut clock);
    }
    panic!("no end of plans for {pod:?}");
}

/// Pods with every kind of container and restart policy; the one that `ends` exits at once.
const PODS: [&str; 7] = [
    "containers=[{name: main}]",
    "containers=[{name: main}] restartPolicy=Never",
    "containers=[{name: main}] restartPolicy=OnFailure",
    "containers=[{name: main}] initContainers=[{name: one}, {name: two}]",
    "containers=[{name: main}] \
     initContainers=[{name: side, restartPolicy: Always, startupProbe: {exec: {}}}, {name: init}]",
    "containers=[{name: main}] restartPolicy=Never \
     initContainers=[{name: a, restartPolicy: Always}, {name: b, restartPolicy: Always}]",
    "containers=[{name: ends}] initContainers=[{name: side, restartPolicy: Always}] restartPolicy=Never",
];

#[test]
fn plans_carried_out_lead_to_an_empty_plan() {
    let starts = ["", "s0 ready", "s0 notready, s0 main running", "s0 ready, s0 main created"];
    for spec in PODS {
        for start in starts {
            let pod: Pod = testkit_fixture::typed(&format!("pod p {spec}"));
            let observed = converge(&pod, observed(start), Memory::default());
            let ends = Memory { termination: Some(termination(&["0", "30"])), ..Memory::default() };
            let gone = converge(&pod, observed, ends);
            assert!(
                gone.running().next().is_none() && gone.sandboxes.iter().all(|sandbox| !sandbox.ready),
                "{spec} {start}"
            );
        }
    }
}

#[test]
fn times_of_unchanged_conditions_stay() {
    let mut scene = running();
    let mut first = scene.status();
    for condition in first.conditions.iter_mut().flatten() {
        condition.last_transition_time =
            Some(corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(5).unwrap()));
    }
    scene.pod.status = Some(first.clone());
    assert_eq!(scene.status().conditions, first.conditions);
}

#[test]
fn a_previous_attempt_is_the_last_state() {
    let mut scene = running();
    scene.observed = observed("s0 ready, s0 main exited 3 -500, s0 main running 0 0 #1");
    let container = &scene.status().container_statuses.unwrap()[0];
    let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.container_id.as_deref(), container.restart_count), (3, Some("corten://main1"), 1));
}
