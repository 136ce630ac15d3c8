//! The status by table: a pod, its state in the runtime, and the status in short.

use std::collections::HashMap;
use std::net::IpAddr;

use corten_api::k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use expect_test::{Expect, expect};
use jiff::Timestamp;

use super::plan::{Memory, Termination};
use super::status::{Facts, status};
use crate::fixtures;
use crate::pod::observed::{Instance, InstanceState, Observed, Sandbox};
use crate::pod::verdict::Verdict;
use crate::pod::waiting::Waiting;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn instance(name: &str, state: InstanceState, exit_code: i32) -> Instance {
    Instance {
        id: format!("{name}-id"),
        sandbox_id: "s0".into(),
        name: name.into(),
        state,
        exit_code,
        started_at: 999_000_000_000_000,
        finished_at: 999_500_000_000_000,
        ..Instance::default()
    }
}

fn observed(instances: Vec<Instance>) -> Observed {
    let sandbox = Sandbox { id: "s0".into(), ready: true, ips: vec!["10.244.0.7".into()], ..Sandbox::default() };
    Observed { sandboxes: vec![sandbox], instances }.sorted()
}

struct Case {
    pod: Pod,
    observed: Observed,
    memory: Memory,
    waiting: HashMap<String, Waiting>,
    ended: bool,
}

fn case(spec: &str, observed: Observed) -> Case {
    Case { pod: fixtures::pod(spec), observed, memory: Memory::default(), waiting: HashMap::new(), ended: false }
}

impl Case {
    fn status(&self) -> PodStatus {
        status(&Facts {
            pod: &self.pod,
            observed: &self.observed,
            memory: &self.memory,
            waiting: &self.waiting,
            host_ips: &[IpAddr::from([192, 0, 2, 1])],
            runtime_name: "corten",
            ended: self.ended,
            now: now(),
        })
    }

    fn check(&self, expected: Expect) {
        expected.assert_eq(&show(&self.status()));
    }
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

fn show(status: &PodStatus) -> String {
    let mut text = format!("{} {}", status.phase.as_deref().unwrap(), status.pod_ip.as_deref().unwrap_or("-"));
    if let Some(reason) = &status.reason {
        text += &format!(" {reason}");
    }
    text += "\n";
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let ContainerStatus { name, ready, started, restart_count, state, last_state, .. } = container;
        let started = started.map_or("-".to_owned(), |started| started.to_string());
        text += &format!(
            "{name}: {} last={} ready={ready} started={started} restarts={restart_count}\n",
            show_state(state.as_ref()),
            show_state(last_state.as_ref())
        );
    }
    for condition in status.conditions.iter().flatten() {
        let reason = condition.reason.as_deref().unwrap_or_default();
        let message = condition.message.as_deref().unwrap_or_default();
        text += format!("{}={} {reason} {message}", condition.type_, condition.status).trim_end();
        text += "\n";
    }
    text
}

const ONE: &str = r#"{"containers":[{"name":"main","image":"busybox"}]}"#;

#[test]
fn a_pod_that_waits_for_its_sandbox() {
    case(ONE, Observed::default()).check(expect![[r#"
        Pending -
        main: waiting:ContainerCreating last=- ready=false started=false restarts=0
        PodReadyToStartContainers=False PodSandboxNotReady no pod sandbox exists
        Initialized=True
        Ready=False ContainersNotReady containers with unready status: [main]
        ContainersReady=False ContainersNotReady containers with unready status: [main]
        PodScheduled=True
    "#]]);
}

#[test]
fn a_pod_whose_image_cannot_be_pulled() {
    let mut case = case(ONE, observed(vec![]));
    let waiting = Waiting { reason: "ErrImagePull".into(), message: "no such image".into() };
    case.waiting.insert("main".into(), waiting);
    case.check(expect![[r#"
        Pending 10.244.0.7
        main: waiting:ErrImagePull last=- ready=false started=false restarts=0
        PodReadyToStartContainers=True
        Initialized=True
        Ready=False ContainersNotReady containers with unready status: [main]
        ContainersReady=False ContainersNotReady containers with unready status: [main]
        PodScheduled=True
    "#]]);
}

#[test]
fn a_running_pod_is_ready_when_its_probes_say_so() {
    let running = || observed(vec![instance("main", InstanceState::Running, 0)]);
    case(ONE, running()).check(expect![[r#"
        Running 10.244.0.7
        main: running last=- ready=true started=true restarts=0
        PodReadyToStartContainers=True
        Initialized=True
        Ready=True
        ContainersReady=True
        PodScheduled=True
    "#]]);
    let mut probed = case(r#"{"containers":[{"name":"main","startupProbe":{},"readinessProbe":{}}]}"#, running());
    let shown = |case: &Case| show(&case.status()).lines().nth(1).unwrap().to_owned();
    assert_eq!(shown(&probed), "main: running last=- ready=false started=false restarts=0");
    let verdict = Verdict { startup: Some(true), readiness: None, liveness: None };
    probed.memory.verdicts.insert("main-id".into(), verdict);
    assert_eq!(shown(&probed), "main: running last=- ready=false started=true restarts=0");
    probed.memory.verdicts.insert("main-id".into(), Verdict { readiness: Some(true), ..verdict });
    assert_eq!(shown(&probed), "main: running last=- ready=true started=true restarts=0");
}

#[test]
fn readiness_gates_hold_the_pod_back() {
    let spec = r#"{"readinessGates":[{"conditionType":"example.com/gate"}],"containers":[{"name":"main"}]}"#;
    case(spec, observed(vec![instance("main", InstanceState::Running, 0)])).check(expect![[r#"
        Running 10.244.0.7
        main: running last=- ready=true started=true restarts=0
        PodReadyToStartContainers=True
        Initialized=True
        Ready=False ReadinessGatesNotReady corresponding condition of pod readiness gate "example.com/gate" does not exist.
        ContainersReady=True
        PodScheduled=True
    "#]]);
}

#[test]
fn a_crash_loop_shows_the_crash_as_the_last_state() {
    let mut case =
        case(ONE, observed(vec![Instance { restart_count: 3, ..instance("main", InstanceState::Exited, 1) }]));
    let waiting = Waiting { reason: "CrashLoopBackOff".into(), message: "back-off 40s".into() };
    case.waiting.insert("main".into(), waiting);
    case.check(expect![[r#"
        Running 10.244.0.7
        main: waiting:CrashLoopBackOff last=terminated:1:Error ready=false started=false restarts=3
        PodReadyToStartContainers=True
        Initialized=True
        Ready=False ContainersNotReady containers with unready status: [main]
        ContainersReady=False ContainersNotReady containers with unready status: [main]
        PodScheduled=True
    "#]]);
}

#[test]
fn ended_pods_succeed_or_fail() {
    for (policy, code, phase) in [
        ("Never", 0, "Succeeded"),
        ("Never", 2, "Failed"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 2, "Running"),
        ("Always", 0, "Running"),
    ] {
        let spec = format!(r#"{{"restartPolicy":"{policy}","containers":[{{"name":"main"}}]}}"#);
        let case = case(&spec, observed(vec![instance("main", InstanceState::Exited, code)]));
        assert_eq!(case.status().phase.as_deref(), Some(phase), "{policy} {code}");
    }
    case(
        r#"{"restartPolicy":"Never","containers":[{"name":"main"}]}"#,
        observed(vec![instance("main", InstanceState::Exited, 0)]),
    )
    .check(expect![[r#"
            Succeeded 10.244.0.7
            main: terminated:0:Completed last=- ready=false started=false restarts=0
            PodReadyToStartContainers=True
            Initialized=True PodCompleted
            Ready=False PodCompleted
            ContainersReady=False PodCompleted
            PodScheduled=True
        "#]]);
}

#[test]
fn init_containers_hold_the_phase_at_pending() {
    let spec = r#"{"initContainers":[{"name":"init"}],"containers":[{"name":"main"}]}"#;
    case(spec, observed(vec![instance("init", InstanceState::Running, 0)])).check(expect![[r#"
        Pending 10.244.0.7
        init: running last=- ready=false started=true restarts=0
        main: waiting:PodInitializing last=- ready=false started=false restarts=0
        PodReadyToStartContainers=True
        Initialized=False ContainersNotInitialized containers with incomplete status: [init]
        Ready=False ContainersNotReady containers with unready status: [main]
        ContainersReady=False ContainersNotReady containers with unready status: [main]
        PodScheduled=True
    "#]]);
    let done = vec![instance("init", InstanceState::Exited, 0), instance("main", InstanceState::Running, 0)];
    assert_eq!(case(spec, observed(done)).status().phase.as_deref(), Some("Running"));
}

#[test]
fn a_deadline_fails_the_pod_with_its_reason() {
    for (state, phase, reason) in
        [(InstanceState::Running, "Running", None), (InstanceState::Exited, "Failed", Some("DeadlineExceeded"))]
    {
        let mut case = case(ONE, observed(vec![instance("main", state, 0)]));
        let failed = Some(("DeadlineExceeded".to_owned(), "too long".to_owned()));
        case.memory.termination = Some(Termination { since: now(), grace: 30, failed, ..Termination::default() });
        let status = case.status();
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some(phase), reason));
    }
}

#[test]
fn a_deleted_pod_that_never_ran_has_failed() {
    let mut case = case(ONE, Observed::default());
    case.memory.termination = Some(Termination { since: now(), grace: 30, ..Termination::default() });
    case.ended = true;
    assert_eq!(case.status().phase.as_deref(), Some("Failed"));
}

#[test]
fn terminal_phases_are_never_left() {
    let mut case = case(ONE, observed(vec![instance("main", InstanceState::Running, 0)]));
    case.pod.status =
        Some(PodStatus { phase: Some("Failed".into()), reason: Some("Evicted".into()), ..PodStatus::default() });
    let status = case.status();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Evicted")));
}

#[test]
fn times_of_unchanged_conditions_stay() {
    let mut case = case(ONE, observed(vec![instance("main", InstanceState::Running, 0)]));
    let mut first = case.status();
    for condition in first.conditions.iter_mut().flatten() {
        condition.last_transition_time =
            Some(corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(5).unwrap()));
    }
    case.pod.status = Some(first.clone());
    assert_eq!(case.status().conditions, first.conditions);
}

#[test]
fn a_previous_attempt_is_the_last_state() {
    let older = Instance { id: "old".into(), created_at: 1, ..instance("main", InstanceState::Exited, 3) };
    let newer = Instance { created_at: 2, restart_count: 1, ..instance("main", InstanceState::Running, 0) };
    let status = case(ONE, observed(vec![older, newer])).status();
    let container = &status.container_statuses.unwrap()[0];
    let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.container_id.as_deref(), container.restart_count), (3, Some("corten://old"), 1));
}
