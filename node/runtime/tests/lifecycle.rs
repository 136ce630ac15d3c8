//! The life of containers on a real kernel: from an imported image to a purged node.

mod support;

use corten_cri::v1;
use support::{IMAGE, Node, cannot_run, container, namespaces, secured, shell};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_logs_answers_exec_and_stops() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("web")).await;
    let script = "trap 'echo bye; exit 7' TERM; echo out; echo err >&2; hostname; while true; do sleep 0.05; done";
    let id = node.run(&sandbox, &shell("main", script)).await;
    // The two outputs are read side by side: either may be logged first.
    for line in ["web", "err"] {
        node.wait_for_log(&id, line).await;
    }
    assert_eq!(node.status(&id).await.state(), v1::ContainerState::ContainerRunning);

    let log = std::fs::read_to_string(node.status(&id).await.log_path).expect("a log");
    assert!(log.lines().any(|line| line.ends_with(" stderr F err")), "{log}");

    let answer = node.exec(&id, &["sh", "-c", "echo $FROM_IMAGE; pwd; echo oops >&2; exit 3"]).await.expect("exec");
    assert_eq!((answer.exit_code, answer.stdout.as_slice()), (3, b"yes\n/place\n".as_slice()));
    assert_eq!(answer.stderr, b"oops\n");

    let stop = v1::StopContainerRequest { container_id: id.clone(), timeout: 300 };
    node.runtime.stop_container(stop).await.expect("stop");
    let status = node.status(&id).await;
    assert_eq!((status.state(), status.exit_code), (v1::ContainerState::ContainerExited, 7));
    assert!(node.log(&id).await.ends_with("bye\n"));

    let stop = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() };
    node.runtime.stop_pod_sandbox(stop).await.expect("stop the sandbox");
    let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox };
    node.runtime.remove_pod_sandbox(remove).await.expect("remove the sandbox");
    let left = node.runtime.list_containers(v1::ListContainersRequest::default()).await.expect("list");
    assert!(left.into_inner().containers.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_and_start_errors_are_reported() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("codes")).await;
    for (script, code, reason) in
        [("exit 0", 0, "Completed"), ("exit 42", 42, "Error"), ("sh -c 'kill -9 $$'; exit $?", 137, "Error")]
    {
        let (status, _) = node.shell(&sandbox, script).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (code, reason), "{script}");
    }
    let id = node.create(&sandbox, &container("missing", &["no-such-program"])).await;
    let started = node.runtime.start_container(v1::StartContainerRequest { container_id: id.clone() }).await;
    let message = started.expect_err("nothing to run").message().to_string();
    assert!(message.contains("exec: \"no-such-program\": executable file not found in $PATH"), "{message}");
    let status = node.status(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_survive_the_daemon_and_exits_are_found() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("restart")).await;
    let lasting = node.run(&sandbox, &shell("lasting", "while true; do sleep 0.05; done")).await;
    let pid = node.exec(&lasting, &["sh", "-c", "echo alive > /mark"]).await.expect("exec");
    assert_eq!(pid.exit_code, 0);
    let short = shell("short", "while ! test -e /dev/shm/go; do sleep 0.02; done; echo done; exit 5");
    let short = node.run(&sandbox, &short).await;

    node.kill();
    let unfinished = node.path().join("state/containers/unfinished/upper");
    std::fs::create_dir_all(&unfinished).expect("the folder of an unfinished creation");
    let shared = node.path().join("run/sandboxes").join(&sandbox).join("shm/go");
    std::fs::write(shared, "").expect("let the short one go");
    let exit = node.path().join("state/containers").join(&short).join("exit.json");
    let deadline = std::time::Instant::now() + support::BOUND;
    while !exit.exists() {
        assert!(std::time::Instant::now() < deadline, "the shim did not record the exit");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    node.resume().await;

    assert!(!unfinished.exists(), "a folder without a record was never a container");
    let status = node.wait(&short).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (5, "Error"));
    assert_eq!(node.status(&lasting).await.state(), v1::ContainerState::ContainerRunning);
    let answer = node.exec(&lasting, &["cat", "/mark"]).await.expect("exec after the restart");
    assert_eq!(answer.stdout, b"alive\n");
    let sandboxes = node.runtime.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.expect("list");
    assert_eq!(sandboxes.into_inner().items[0].state(), v1::PodSandboxState::SandboxReady);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_users_and_namespaces_hold() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("limits")).await;

    let mut hungry = container("hungry", &["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]);
    let resources =
        v1::LinuxContainerResources { memory_limit_in_bytes: 20 << 20, cpu_shares: 2, ..Default::default() };
    hungry.linux.get_or_insert_default().resources = Some(resources);
    let (status, _) = node.run_to_end(&sandbox, &hungry).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));

    let user =
        |name: &str| secured(shell("user", "id; echo $HOME"), |security| security.run_as_username = name.to_string());
    let (_, output) = node.run_to_end(&sandbox, &user("web")).await;
    assert_eq!(output, "uid=33(web) gid=34(www) groups=34(www),50(logs)\n/srv\n");
    let numeric = secured(shell("user", "id -u; id -g; id -G"), |security| {
        security.run_as_user = Some(v1::Int64Value { value: 1000 });
        security.run_as_group = Some(v1::Int64Value { value: 2000 });
        security.supplemental_groups = vec![3000];
    });
    let (_, output) = node.run_to_end(&sandbox, &numeric).await;
    assert_eq!(output, "1000\n2000\n2000 3000\n");

    let (_, output) = node.shell(&sandbox, "echo $$; grep -c . /proc/net/dev; readlink /dev/ptmx").await;
    assert_eq!(output, "1\n3\npts/ptmx\n", "the first process, and loopback alone");
    let (status, _) = node.shell(&sandbox, "mknod /disk b 254 0 && head -c 1 /disk").await;
    assert_ne!(status.exit_code, 0, "a device that is not allowed must not open");
    let sealed = secured(shell("sealed", "touch /file"), |security| security.readonly_rootfs = true);
    let (status, output) = node.run_to_end(&sandbox, &sealed).await;
    assert_eq!((status.exit_code, output.contains("Read-only file system")), (1, true), "{output}");
    let declared = secured(shell("declared", "touch /declared/file"), |security| security.readonly_rootfs = true);
    let (status, output) = node.run_to_end(&sandbox, &declared).await;
    assert_eq!(status.exit_code, 0, "a volume of the image stays writable: {output}");
    let mut reader = shell("reader", "cat /volume/etc/group && touch /volume/file");
    let image = Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() });
    reader.mounts = vec![v1::Mount { container_path: "/volume".into(), image, ..Default::default() }];
    let (status, output) = node.run_to_end(&sandbox, &reader).await;
    assert_eq!((status.exit_code, output.starts_with("root:x:0:\n")), (1, true), "an image of one layer: {output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_stays_within_the_limit_of_its_pod() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("bomb")).await;
    // The kubelet sets the pod's limit; here, the test does.
    let unified = std::path::Path::new("/sys/fs/cgroup");
    let old = std::path::Path::new("/sys/fs/cgroup/pids");
    let hierarchy = if old.is_dir() { old } else { unified };
    let group = hierarchy.join(node.cgroup_parent.trim_start_matches('/'));
    std::fs::create_dir_all(&group).expect("the pod's group");
    std::fs::write(group.join("pids.max"), "40").expect("a limit");
    // The first shell goes on until it cannot fork itself, prints an error and exits.
    let script = "f() { f | f & }; while :; do f; done";
    let (_, output) = node.shell(&sandbox, script).await;
    assert!(output.contains("can't fork"), "{output}");
    let (status, output) = node.shell(&sandbox, "echo well").await;
    assert_eq!((status.exit_code, output.as_str()), (0, "well\n"), "the bomb ended with its container");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_an_image_brings_along_opens_nothing() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("devices")).await;
    let (status, output) = node.shell(&sandbox, "ls -l /evil-memory; head -c 1 /evil-memory").await;
    assert!(output.contains("crw-rw-rw-"), "the image has the device: {output}");
    assert_ne!(status.exit_code, 0, "{output}");
    assert!(output.contains("Operation not permitted"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn seccomp_and_capabilities_are_enforced() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("secure")).await;
    let profile = |kind: v1::security_profile::ProfileType, path: &str| {
        Some(v1::SecurityProfile { profile_type: kind.into(), localhost_ref: path.into() })
    };
    let all = |security: &mut v1::LinuxContainerSecurityContext| {
        security.capabilities =
            Some(v1::Capability { add_capabilities: vec!["SYS_RESOURCE".into()], ..Default::default() });
    };
    let script = "grep Seccomp: /proc/self/status; unshare -m true";
    let confined = secured(shell("confined", script), |security| {
        all(security);
        security.seccomp = profile(v1::security_profile::ProfileType::RuntimeDefault, "");
    });
    let (status, output) = node.run_to_end(&sandbox, &confined).await;
    assert!(status.exit_code != 0 && output.starts_with("Seccomp:\t2\n"), "{output}");

    let file = node.path().join("seccomp/profile.json");
    std::fs::create_dir(node.path().join("seccomp")).expect("the folder of profiles");
    let json =
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    std::fs::write(&file, json).expect("a profile");
    for no_new_privs in [false, true] {
        let local = secured(shell("local", "mkdir /made"), |security| {
            security.no_new_privs = no_new_privs;
            security.seccomp = profile(v1::security_profile::ProfileType::Localhost, file.to_str().expect("a path"));
        });
        let (status, output) = node.run_to_end(&sandbox, &local).await;
        assert_eq!((status.exit_code, output.contains("Operation not permitted")), (1, true), "{output}");
    }
    let dropped = secured(shell("dropped", "grep CapEff /proc/self/status"), |security| {
        security.capabilities = Some(v1::Capability { drop_capabilities: vec!["ALL".into()], ..Default::default() });
    });
    let (_, output) = node.run_to_end(&sandbox, &dropped).await;
    assert_eq!(output, "CapEff:\t0000000000000000\n");
    let privileged = secured(shell("privileged", "mount -t tmpfs none /place && ls /dev/ | wc -l"), |security| {
        security.privileged = true;
    });
    let (status, output) = node.run_to_end(&sandbox, &privileged).await;
    assert_eq!(status.exit_code, 0, "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_share_the_namespaces_that_their_pod_shares() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let mut config = node.sandbox_config("shared");
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
    let sandbox = node.run_sandbox(&config).await;
    let join = |config: v1::ContainerConfig| {
        secured(config, |security| security.namespace_options = Some(namespaces(v1::NamespaceMode::Pod)))
    };
    let first = node.run(&sandbox, &join(shell("first", "while true; do sleep 0.06; done"))).await;
    let (_, output) = node.run_to_end(&sandbox, &join(shell("second", "ps"))).await;
    assert!(
        output.contains("sleep 0.06") && output.lines().nth(1).is_some_and(|line| line.contains(" 1 ")),
        "{output}"
    );

    let target = secured(shell("debug", "ps; ls /proc/1/root/bin/busybox"), |security| {
        security.namespace_options = Some(v1::NamespaceOption {
            pid: v1::NamespaceMode::Target.into(),
            target_id: first.clone(),
            ..Default::default()
        });
    });
    let (_, output) = node.run_to_end(&sandbox, &target).await;
    assert!(output.contains("sleep 0.06"), "{output}");

    let volume = node.path().join("volume");
    std::fs::create_dir(&volume).expect("a volume");
    let mut writer = shell("volumes", "echo x > /data/file; touch /sealed/no; cat /etc/resolv.conf");
    let mount = |path: &str, readonly| v1::Mount {
        container_path: path.into(),
        host_path: volume.display().to_string(),
        readonly,
        ..Default::default()
    };
    writer.mounts = vec![mount("/data", false), mount("/sealed", true)];
    let (_, output) = node.run_to_end(&sandbox, &join(writer)).await;
    assert!(output.contains("Read-only file system"), "{output}");
    assert_eq!(std::fs::read_to_string(volume.join("file")).expect("a file"), "x\n");
    assert!(!volume.join("no").exists());
}

/// A file system whose mount is private, unmounted when the test ends.
struct PrivateMount(std::path::PathBuf);

impl PrivateMount {
    fn new(path: std::path::PathBuf) -> Self {
        use nix::mount::{MsFlags, mount};
        std::fs::create_dir(&path).expect("a folder");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mount");
        mount(None::<&str>, &path, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).expect("private");
        Self(path)
    }
}

impl Drop for PrivateMount {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_propagate_as_requested() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let volume = PrivateMount::new(node.path().join("shared"));
    let sandbox = node.run_sandbox(&node.sandbox_config("mounts")).await;
    let script = "mkdir /both/inner && mount -t tmpfs none /both/inner && touch /both/inner/made; \
        mkdir /down/own && mount -t tmpfs none /down/own && touch /down/own/hidden; \
        while ! test -e /down/later/file; do sleep 0.02; done; test -e /private/later/file; echo $?";
    let mut config = secured(shell("main", script), |security| security.privileged = true);
    let mount = |path: &str, propagation: v1::MountPropagation| v1::Mount {
        container_path: path.into(),
        host_path: volume.0.display().to_string(),
        propagation: propagation.into(),
        ..Default::default()
    };
    config.mounts = vec![
        mount("/both", v1::MountPropagation::PropagationBidirectional),
        mount("/down", v1::MountPropagation::PropagationHostToContainer),
        mount("/private", v1::MountPropagation::PropagationPrivate),
    ];
    let id = node.run(&sandbox, &config).await;
    let deadline = std::time::Instant::now() + support::BOUND;
    while !volume.0.join("inner/made").exists() {
        assert!(
            std::time::Instant::now() < deadline,
            "a mount of the container does not appear: {}",
            node.log(&id).await
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let later = PrivateMount::new(volume.0.join("later"));
    std::fs::write(later.0.join("file"), "").expect("a file");
    let status = node.wait(&id).await;
    assert_eq!((status.exit_code, node.log(&id).await.as_str()), (0, "1\n"), "seen below, not in the private copy");
    assert!(!volume.0.join("own/hidden").exists(), "the container's mounts do not propagate upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_may_use_the_nodes_network_and_set_sysctls_in_their_own() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let host = v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        ipc: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Node.into(),
        ..Default::default()
    };
    let mut config = node.sandbox_config("node-network");
    let linux = config.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().namespace_options = Some(host.clone());
    let sandbox = node.run_sandbox(&config).await;
    let script = secured(shell("main", "readlink /proc/self/ns/net; readlink /proc/self/ns/pid"), |security| {
        security.namespace_options = Some(host.clone());
    });
    let (_, output) = node.run_to_end(&sandbox, &script).await;
    let own = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).expect("a namespace");
    assert_eq!(output, format!("{}\n{}\n", own("net").display(), own("pid").display()));
    // The network and IPC are the sandbox's, also for a container that says nothing of them.
    let silent = secured(shell("silent", "readlink /proc/self/ns/net; readlink /proc/self/ns/ipc"), |security| {
        security.namespace_options = Some(v1::NamespaceOption { pid: host.pid, ..Default::default() });
    });
    let (_, output) = node.run_to_end(&sandbox, &silent).await;
    assert_eq!(output, format!("{}\n{}\n", own("net").display(), own("ipc").display()));

    let lasting = secured(shell("lasting", "sleep 3600 & sleep 3600"), |security| {
        security.namespace_options = Some(host);
    });
    let id = node.run(&sandbox, &lasting).await;
    let stop = v1::StopContainerRequest { container_id: id.clone(), timeout: 0 };
    node.runtime.stop_container(stop).await.expect("stop a container without a pid namespace");
    assert_eq!(node.status(&id).await.exit_code, 137);

    let mut config = node.sandbox_config("sysctls");
    let sysctls = [("net.ipv4.ip_unprivileged_port_start", "42"), ("kernel.shm_rmid_forced", "1")];
    config.linux.get_or_insert_default().sysctls =
        sysctls.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    let sandbox = node.run_sandbox(&config).await;
    let script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(node.shell(&sandbox, script).await.1, "42\n1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_a_user_namespace_are_unprivileged_on_the_node() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let features = node.runtime.status(v1::StatusRequest::default()).await.expect("status").into_inner();
    let handlers = features.runtime_handlers.iter().filter_map(|handler| handler.features);
    if !handlers.into_iter().any(|features| features.user_namespaces) {
        eprintln!("skipped: this kernel or file system cannot map ids");
        return;
    }
    let ids = vec![v1::IdMapping { container_id: 0, host_id: 131_072, length: 65_536 }];
    let users = v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: ids.clone(), gids: ids.clone() };
    let options =
        v1::NamespaceOption { userns_options: Some(users), ..support::namespaces(v1::NamespaceMode::Container) };
    let mut config = node.sandbox_config("users");
    let linux = config.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().namespace_options = Some(options.clone());
    let sandbox = node.run_sandbox(&config).await;
    let volume = node.path().join("volume");
    std::fs::create_dir(&volume).expect("a volume");
    std::fs::write(volume.join("before"), "").expect("a file");
    std::os::unix::fs::chown(volume.join("before"), Some(33), Some(34)).expect("an owner");

    let script = "cat /proc/self/uid_map; id -u; stat -c %u /bin/busybox /volume/before /dev/null /; \
        touch /volume/made /own && stat -c %u /volume/made /own; echo ready; \
        while ! test -e /volume/done; do sleep 0.02; done";
    let mut main = secured(shell("main", script), |security| security.namespace_options = Some(options.clone()));
    main.mounts = vec![v1::Mount {
        container_path: "/volume".into(),
        host_path: volume.display().to_string(),
        uid_mappings: ids.clone(),
        gid_mappings: ids.clone(),
        ..Default::default()
    }];
    let id = node.run(&sandbox, &main).await;
    node.wait_for_log(&id, "ready").await;
    let output: Vec<String> = node.log(&id).await.split_whitespace().map(str::to_owned).collect();
    assert_eq!(output, ["0", "131072", "65536", "0", "0", "33", "0", "0", "0", "0", "ready"]);
    let owner = |path: &std::path::Path| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).expect("a file"));
    assert_eq!(owner(&volume.join("made")), 0, "on the disk, the volume's ids are the pod's");
    let pid = std::fs::read_dir("/proc").expect("processes").flatten().any(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("Uid:\t131072\t"))
    });
    assert!(pid, "on the node, the pod's root is another user");
    let inside = node.exec(&id, &["sh", "-c", "id -u; cat /proc/self/uid_map"]).await.expect("exec");
    let inside = String::from_utf8_lossy(&inside.stdout).into_owned();
    assert_eq!(inside.split_whitespace().collect::<Vec<_>>(), ["0", "0", "131072", "65536"]);
    std::fs::write(volume.join("done"), "").expect("a file");
    assert_eq!(node.wait(&id).await.exit_code, 0);
}
