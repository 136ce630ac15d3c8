//! Containers of other OCI runtimes: runc and crun run them as our own runtime does, and a container is followed again
//! after every process around it has died.

mod support;

use corten_cri::v1;
use support::{Node, cannot_run, container, secured, shell};

const LASTING: &str = "trap 'echo bye; exit 7' TERM; echo out; echo err >&2; hostname; while true; do sleep 0.05; done";

#[tokio::test(flavor = "multi_thread")]
async fn other_runtimes_run_containers_as_ours_does() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start_with_others().await;
    for handler in ["runc", "crun"] {
        let sandbox = node.run_sandbox_by(handler, &node.sandbox_config(handler)).await;
        let id = node.run(&sandbox, &shell("main", LASTING)).await;
        node.wait_for_log(&id, handler).await;
        assert!(is_known(&node, &id), "{handler} runs it");

        let answer = node.exec(&id, &["sh", "-c", "echo $FROM_IMAGE; pwd; echo oops >&2; exit 3"]).await.expect("exec");
        assert_eq!((answer.exit_code, answer.stdout.as_slice()), (3, b"yes\n/place\n".as_slice()), "{handler}");
        assert_eq!(answer.stderr, b"oops\n");
        let failed = node.exec(&id, &["no-such-program"]).await.expect_err("nothing to run");
        assert!(failed.message().contains("no-such-program"), "{handler}: {failed}");

        node.kill();
        node.resume().await;
        let answer = node.exec(&id, &["cat", "/proc/1/comm"]).await.expect("exec after a restart");
        assert_eq!(answer.stdout, b"sh\n", "{handler}: a pid namespace of its own");
        let stop = v1::StopContainerRequest { container_id: id.clone(), timeout: 300 };
        node.runtime.stop_container(stop).await.expect("stop");
        let status = node.status(&id).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"), "{handler}");
        assert!(node.log(&id).await.ends_with("bye\n"));
        assert!(!is_known(&node, &id), "{handler} has forgotten it");
        assert!(!is_mounted(&node, &id));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_runtimes_enforce_the_pods_settings() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start_with_others().await;
    for handler in ["runc", "crun"] {
        let sandbox = node.run_sandbox_by(handler, &node.sandbox_config(handler)).await;
        let user = secured(
            shell("user", "id; cat /proc/self/status; echo x > /root-file; echo y > /declared/in && cat /declared/in"),
            |security| {
                security.run_as_user = Some(v1::Int64Value { value: 0 });
                security.supplemental_groups = vec![77];
                security.readonly_rootfs = true;
                security.no_new_privs = true;
                security.capabilities =
                    Some(v1::Capability { drop_capabilities: vec!["ALL".into()], ..Default::default() });
                security.seccomp = Some(v1::SecurityProfile::default());
            },
        );
        let (status, output) = node.run_to_end(&sandbox, &user).await;
        for expected in [
            "uid=0(root)",
            ",77",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
            "Read-only file system",
            "y\n",
        ] {
            assert!(output.contains(expected), "{handler}: {expected:?} is not in {output}");
        }
        assert_eq!(status.exit_code, 0, "{handler}: {output}");

        let named = secured(shell("named", "id -u; id -g"), |security| security.run_as_username = "web".into());
        assert_eq!(node.run_to_end(&sandbox, &named).await.1, "33\n34\n", "{handler}");

        let mut terminal = container("terminal", &["tty"]);
        terminal.tty = true;
        let (_, output) = node.run_to_end(&sandbox, &terminal).await;
        assert!(output.starts_with("/dev/"), "{handler}: {output}");

        let mut greedy = shell("greedy", "tail /dev/zero");
        greedy.linux.get_or_insert_default().resources = Some(v1::LinuxContainerResources {
            memory_limit_in_bytes: 16 << 20,
            oom_score_adj: -500,
            ..Default::default()
        });
        let (status, _) = node.run_to_end(&sandbox, &greedy).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"), "{handler}");

        let id = node.create(&sandbox, &container("missing", &["no-such-program"])).await;
        let started = node.runtime.start_container(v1::StartContainerRequest { container_id: id.clone() }).await;
        let message = started.expect_err("nothing to run").message().to_string();
        assert!(message.contains("no-such-program"), "{handler}: {message}");
        assert_eq!(node.status(&id).await.reason, "StartError");
        assert!(!is_mounted(&node, &id) && !is_known(&node, &id), "{handler}: nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_shim_was_killed_is_cleaned_up() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start_with_others().await;
    let sandbox = node.run_sandbox_by("runc", &node.sandbox_config("orphan")).await;
    let id = node.run(&sandbox, &shell("main", LASTING)).await;
    node.wait_for_log(&id, "orphan").await;
    let init = state(&node, &id)["init_process_pid"].as_i64().expect("a pid");
    let status = std::fs::read_to_string(format!("/proc/{init}/status")).expect("a status");
    let shim =
        status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent").trim().parse().expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::Signal::SIGKILL).expect("kill the shim");
    let ended = node.wait(&id).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (255, "Unknown"));
    assert!(!is_mounted(&node, &id) && !is_known(&node, &id));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_handler_is_refused() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start_with_others().await;
    let config = Some(node.sandbox_config("unknown"));
    let request = v1::RunPodSandboxRequest { config, runtime_handler: "kata".into() };
    let refused = node.runtime.run_pod_sandbox(request).await.expect_err("no such handler");
    assert!(refused.message().contains("no runtime for \"kata\" is configured"), "{refused}");
    let status = node.runtime.status(v1::StatusRequest::default()).await.expect("a status").into_inner();
    let names: Vec<&str> = status.runtime_handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "corten", "crun", "runc"]);
}

fn is_known(node: &Node, id: &str) -> bool {
    node.path().join("run/oci").join(id).exists()
}

fn state(node: &Node, id: &str) -> serde_json::Value {
    let bytes = std::fs::read(node.path().join("run/oci").join(id).join("state.json")).expect("runc's state");
    serde_json::from_slice(&bytes).expect("runc's state")
}

fn is_mounted(node: &Node, id: &str) -> bool {
    let rootfs = node.path().join("state/containers").join(id).join("rootfs");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|place| place == rootfs.to_string_lossy()))
}
