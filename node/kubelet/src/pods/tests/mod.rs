//! The plan by table: a pod, its state in the runtime, and the plan as text. Also the property that a plan that was
//! carried out leads to an empty plan.

use std::fmt::Write;

use corten_api::k8s_openapi::api::core::v1::Pod;
use expect_test::{Expect, expect};
use jiff::{SignedDuration, Timestamp};

use super::plan::{Applied, Memory, Plan, SandboxAction, Termination, backoff_key, is_resizing, plan};
use crate::fixtures;
use crate::pod::observed::{Instance, InstanceState, Observed, Sandbox};
use crate::pod::verdict::Verdict;

const NOW: i64 = 1_000_000;

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

/// Parses instances such as `s0 main running`, `s0 init exited 1 -5 #2` (code, seconds ago, restart count).
fn observed(text: &str) -> Observed {
    let mut observed = Observed::default();
    for (index, line) in text.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
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
            exit_code: i32::try_from(number(3)).unwrap(),
            finished_at: nanos(number(4)),
            ..Instance::default()
        });
    }
    observed.sorted()
}

fn show(plan: &Plan) -> String {
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

fn check(spec: &str, runtime: &str, expected: Expect) {
    check_with(spec, runtime, &Memory::default(), expected);
}

fn check_with(spec: &str, runtime: &str, memory: &Memory, expected: Expect) {
    expected.assert_eq(&show(&plan(&fixtures::pod(spec), &observed(runtime), memory, at(0))));
}

const ONE: &str = r#"{"containers":[{"name":"main"}]}"#;
const NEVER: &str = r#"{"restartPolicy":"Never","containers":[{"name":"main"}]}"#;
const ON_FAILURE: &str = r#"{"restartPolicy":"OnFailure","containers":[{"name":"main"}]}"#;
const WITH_INIT: &str = r#"{"initContainers":[{"name":"one"},{"name":"two"}],"containers":[{"name":"main"}]}"#;
const WITH_SIDECAR: &str = r#"{"initContainers":[{"name":"side","restartPolicy":"Always","startupProbe":{"exec":{}}},{"name":"init"}],
    "containers":[{"name":"main"}]}"#;
const TWO_SIDECARS: &str = r#"{"restartPolicy":"Never","initContainers":[{"name":"a","restartPolicy":"Always"},{"name":"b","restartPolicy":"Always"}],
    "containers":[{"name":"main"}]}"#;

#[test]
fn a_new_pod_gets_a_sandbox_then_its_containers() {
    check(
        ONE,
        "",
        expect![[r#"
        create sandbox 0
    "#]],
    );
    check(
        ONE,
        "s0 ready",
        expect![[r#"
        start main (Main) #0
    "#]],
    );
    check(
        ONE,
        "s0 ready\n s0 main running",
        expect![[r#"
        nothing
    "#]],
    );
}

#[test]
fn restart_policies_decide_about_ended_containers() {
    for (spec, code, restarted) in [
        (ONE, 0, true),
        (ONE, 1, true),
        (ON_FAILURE, 0, false),
        (ON_FAILURE, 1, true),
        (NEVER, 0, false),
        (NEVER, 1, false),
    ] {
        let runtime = observed(&format!("s0 ready\n s0 main exited {code} -60"));
        let plan = plan(&fixtures::pod(spec), &runtime, &Memory::default(), at(0));
        assert_eq!(!plan.start.is_empty(), restarted, "{spec} {code}");
        assert_eq!(plan.sandbox == SandboxAction::Stop, !restarted, "{spec} {code}");
    }
}

#[test]
fn restart_rules_overrule_the_policy() {
    let spec = r#"{"restartPolicy":"Never","containers":[{"name":"main","restartPolicy":"Never",
        "restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[42]}}]}]}"#;
    check(
        spec,
        "s0 ready\n s0 main exited 42 -60",
        expect![[r#"
        start main (Main) #1
    "#]],
    );
    check(
        spec,
        "s0 ready\n s0 main exited 1 -60",
        expect![[r#"
        stop sandbox
    "#]],
    );
}

#[test]
fn crash_loops_back_off() {
    let mut memory = Memory::default();
    check_with(
        ONE,
        "s0 ready\n s0 main exited 1 -1 #3",
        &memory,
        expect![[r#"
        start main (Main) #4
    "#]],
    );
    let pod = fixtures::pod(ONE);
    let mut container = crate::pod::spec::spec(&pod).containers[0].clone();
    memory.backoffs.next(&backoff_key(&container), at(-2));
    container.image = Some("another".to_owned());
    assert_eq!(memory.backoffs.until(&backoff_key(&container), at(-1), at(0)), None, "another image begins anew");
    check_with(
        ONE,
        "s0 ready\n s0 main exited 1 -1 #3",
        &memory,
        expect![[r#"
        wait 9s: back-off 10s restarting failed container=main pod=p_ns(pod-uid)
    "#]],
    );
    check_with(
        ONE,
        "s0 ready\n s0 main exited 1 -10 #3",
        &memory,
        expect![[r#"
        start main (Main) #4
    "#]],
    );
}

#[test]
fn init_containers_run_in_order() {
    check(
        WITH_INIT,
        "s0 ready",
        expect![[r#"
        start one (Init) #0
    "#]],
    );
    check(
        WITH_INIT,
        "s0 ready\n s0 one running",
        expect![[r#"
        nothing
    "#]],
    );
    check(
        WITH_INIT,
        "s0 ready\n s0 one exited 0 -1",
        expect![[r#"
        start two (Init) #0
    "#]],
    );
    check(
        WITH_INIT,
        "s0 ready\n s0 one exited 0 -2\n s0 two exited 0 -1",
        expect![[r#"
        start main (Main) #0
    "#]],
    );
    check(
        WITH_INIT,
        "s0 ready\n s0 one exited 1 -1",
        expect![[r#"
        start one (Init) #1
    "#]],
    );
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let spec = r#"{"restartPolicy":"Never","initContainers":[{"name":"one"}],"containers":[{"name":"main"}]}"#;
    check(
        spec,
        "s0 ready\n s0 one exited 1 -1",
        expect![[r#"
        stop sandbox
    "#]],
    );
    check(
        spec,
        "s0 notready\n s0 one exited 1 -1",
        expect![[r#"
        nothing
    "#]],
    );
}

#[test]
fn sidecars_start_before_and_stay_beside() {
    check(
        WITH_SIDECAR,
        "s0 ready",
        expect![[r#"
        start side (Sidecar) #0
    "#]],
    );
    check(
        WITH_SIDECAR,
        "s0 ready\n s0 side running",
        expect![[r#"
        nothing
    "#]],
    );
    let mut memory = Memory::default();
    memory.verdicts.insert("side1".into(), Verdict { startup: Some(true), ..Verdict::default() });
    check_with(
        WITH_SIDECAR,
        "s0 ready\n s0 side running",
        &memory,
        expect![[r#"
        start init (Init) #0
    "#]],
    );
    check_with(
        WITH_SIDECAR,
        "s0 ready\n s0 side running\n s0 init exited 0 -1",
        &memory,
        expect![[r#"
        start main (Main) #0
    "#]],
    );
    check_with(
        WITH_SIDECAR,
        "s0 ready\n s0 side exited 0 -60\n s0 init exited 0 -60\n s0 main running",
        &memory,
        expect![[r#"
        start side (Sidecar) #1
    "#]],
    );
}

#[test]
fn sidecars_stop_last_and_in_reverse() {
    check(
        TWO_SIDECARS,
        "s0 ready\n s0 a running\n s0 b running\n s0 main exited 0 -1",
        expect![[r#"
        stop b2 grace 30: Stopping container b
    "#]],
    );
    check(
        TWO_SIDECARS,
        "s0 ready\n s0 a running\n s0 b exited 0 -1\n s0 main exited 0 -1",
        expect![[r#"
        stop a1 grace 30: Stopping container a
    "#]],
    );
    check(
        TWO_SIDECARS,
        "s0 ready\n s0 a exited 0 0\n s0 b exited 0 -1\n s0 main exited 0 -1",
        expect![[r#"
        stop sandbox
    "#]],
    );
}

fn terminating(since: i64, grace: i64) -> Memory {
    Memory { termination: Some(Termination { since: at(since), grace, ..Termination::default() }), ..Memory::default() }
}

#[test]
fn ending_stops_containers_within_the_grace_that_is_left() {
    check_with(
        ONE,
        "s0 ready\n s0 main running",
        &terminating(0, 30),
        expect![[r#"
        stop main1 grace 30: Stopping container main
    "#]],
    );
    check_with(
        TWO_SIDECARS,
        "s0 ready\n s0 a running\n s0 b running\n s0 main running",
        &terminating(-10, 30),
        expect![[r#"
        stop main3 grace 20: Stopping container main
    "#]],
    );
    check_with(
        TWO_SIDECARS,
        "s0 ready\n s0 a running\n s0 main exited 0 -1",
        &terminating(-100, 30),
        expect![[r#"
        stop a1 grace 2: Stopping container a
    "#]],
    );
    check_with(
        ONE,
        "s0 ready\n s0 main running",
        &terminating(-1, 0),
        expect![[r#"
        stop main1 grace 1: Stopping container main
    "#]],
    );
    check_with(
        ONE,
        "s0 ready\n s0 main exited 1 -1",
        &terminating(0, 30),
        expect![[r#"
        stop sandbox
    "#]],
    );
    check_with(
        ONE,
        "s0 notready\n s0 main exited 1 -1",
        &terminating(0, 30),
        expect![[r#"
        nothing
    "#]],
    );
    check_with(
        ONE,
        "",
        &terminating(0, 30),
        expect![[r#"
        nothing
    "#]],
    );
}

#[test]
fn a_container_that_is_being_stopped_is_not_stopped_twice() {
    let mut memory = terminating(0, 30);
    memory.stopping.insert("main1".into());
    check_with(
        ONE,
        "s0 ready\n s0 main running",
        &memory,
        expect![[r#"
        nothing
    "#]],
    );
}

#[test]
fn a_lost_sandbox_is_replaced_after_what_ran_in_it_has_ended() {
    check(
        ONE,
        "s0 notready\n s0 main running",
        expect![[r#"
        stop main1 grace 30: Stopping container main
    "#]],
    );
    check(
        ONE,
        "s0 notready\n s0 main exited 137 -1",
        expect![[r#"
        create sandbox 1
    "#]],
    );
    check(
        NEVER,
        "s0 notready\n s0 main exited 0 -1",
        expect![[r#"
        nothing
    "#]],
    );
    check(
        WITH_INIT,
        "s1 ready\n s0 notready\n s0 one exited 0 -9\n s0 two exited 0 -8\n s0 main exited 137 -1",
        expect![[r#"
        start one (Init) #1
    "#]],
    );
}

#[test]
fn failing_probes_restart_the_container() {
    let spec = r#"{"terminationGracePeriodSeconds":7,"containers":[{"name":"main","livenessProbe":{"exec":{},"terminationGracePeriodSeconds":3}}]}"#;
    let mut memory = Memory::default();
    memory.verdicts.insert("main1".into(), Verdict { liveness: Some(false), ..Verdict::default() });
    check_with(
        spec,
        "s0 ready\n s0 main running",
        &memory,
        expect![[r#"
        stop main1 grace 3: Container main failed liveness probe, will be restarted
    "#]],
    );
    memory.verdicts.insert("main1".into(), Verdict { startup: Some(false), ..Verdict::default() });
    check_with(
        spec,
        "s0 ready\n s0 main running",
        &memory,
        expect![[r#"
        stop main1 grace 7: Container main failed startup probe, will be restarted
    "#]],
    );
}

#[test]
fn a_changed_image_restarts_the_container() {
    let pod = fixtures::pod(r#"{"containers":[{"name":"main","image":"new"}]}"#);
    let mut runtime = observed("s0 ready\n s0 main running");
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
    let runtime = observed("s0 ready\n s0 main running");
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
    let runtime = observed("s0 ready\n s0 own running\n s0 bare running\n s0 restarted running");
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
    let runtime = observed("s0 ready\n s0 init running");
    assert!(plan(&before, &runtime, &memory, at(0)).resize.is_empty() && !is_resizing(&before, &runtime, &memory));
    let after = pod("2");
    assert_eq!(plan(&after, &runtime, &memory, at(0)).resize, [("init1".to_owned(), "init".to_owned())]);
    assert!(is_resizing(&after, &runtime, &memory));
}

#[test]
fn an_exit_may_restart_all_containers_from_the_first() {
    let pod = r#"{"restartPolicy":"Never","initContainers":[{"name":"init"},{"name":"side","restartPolicy":"Always"}],
        "containers":[{"name":"main"},{"name":"source","restartPolicy":"Never","restartPolicyRules":[
        {"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[42]}}]}]}"#;
    let before = "s0 ready\n s0 init exited 0\n s0 side running";
    check(
        pod,
        &format!("{before}\n s0 main running\n s0 source exited 42"),
        expect![[r#"
        stop main3 grace 0: Stopping container main
        stop side2 grace 0: Stopping container side
    "#]],
    );
    check(
        pod,
        &format!("{before}\n s0 main running\n s0 source exited 1"),
        expect![[r#"
        nothing
    "#]],
    );
    check(
        pod,
        "s0 ready\n s0 init exited 0\n s0 side exited 137\n s0 main exited 137\n s0 source exited 42",
        expect![[r#"
            reset main3
            reset side2
            reset init1
            reset source4
        "#]],
    );
    check(
        pod,
        "s0 ready",
        expect![[r#"
        start init (Init) #0
    "#]],
    );
}

#[test]
fn only_the_newest_two_instances_are_kept() {
    check(
        ONE,
        "s0 ready\n s0 main exited 1 -99 #0\n s0 main exited 1 -98 #1\n s0 main exited 1 -97 #2\n s0 main running 0 0 #3",
        expect![[r#"
            remove main2
            remove main1
        "#]],
    );
    check(
        ONE,
        "s0 ready\n s0 main created",
        expect![[r#"
        start main (Main) #1
        remove main1
    "#]],
    );
}

#[test]
fn ephemeral_containers_start_once() {
    let spec =
        r#"{"containers":[{"name":"main"}],"ephemeralContainers":[{"name":"debug","targetContainerName":"main"}]}"#;
    check(
        spec,
        "s0 ready\n s0 main running",
        expect![[r#"
        start debug (Ephemeral) #0
    "#]],
    );
    check(
        spec,
        "s0 ready\n s0 main running\n s0 debug exited 1 -1",
        expect![[r#"
        nothing
    "#]],
    );
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

#[test]
fn plans_carried_out_lead_to_an_empty_plan() {
    let ends = r#"{"restartPolicy":"Never","initContainers":[{"name":"side","restartPolicy":"Always"}],"containers":[{"name":"ends"}]}"#;
    let starts = ["", "s0 ready", "s0 notready\n s0 main running", "s0 ready\n s0 main created"];
    for spec in [ONE, NEVER, ON_FAILURE, WITH_INIT, WITH_SIDECAR, TWO_SIDECARS, ends] {
        for start in starts {
            let pod = fixtures::pod(spec);
            let observed = converge(&pod, observed(start), Memory::default());
            let gone = converge(&pod, observed, terminating(0, 30));
            assert!(
                gone.running().next().is_none() && gone.sandboxes.iter().all(|sandbox| !sandbox.ready),
                "{spec} {start}"
            );
        }
    }
}
