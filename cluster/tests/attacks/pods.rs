//! Pods: a user who may create a pod in one namespace, and the processes that run in it.

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn pods_gain_nothing_beyond_their_own() {
    if !tools::is_root() {
        return eprintln!("skipped: a cluster needs root");
    }
    let cluster = Cluster::up(CORTEN, &[]);
    let server = cluster.server_pid();
    profiles_come_from_their_folder(&cluster);
    numbers_are_users(&cluster);
    non_root_is_not_root(&cluster);
    kernel_places_are_not_mounted_over(&cluster);
    a_false_null_device_is_refused(&cluster);
    processes_hold_nothing_of_the_node(&cluster);
    a_shared_pid_namespace_does_not_lead_to_the_node(&cluster);
    assert_eq!(cluster.server_pid(), server, "the server did not end on the way");
}

#[test]
fn pods_cannot_block_the_node() {
    if !tools::is_root() {
        return eprintln!("skipped: a cluster needs root");
    }
    let cluster = Cluster::up(CORTEN, &[]);
    let server = cluster.server_pid();
    a_pipe_for_accounts_blocks_nobody(&cluster);
    a_tree_deeper_than_the_stack_is_removed(&cluster);
    a_line_without_end_is_logged_in_pieces(&cluster);
    a_grace_period_beyond_all_time_is_a_number(&cluster);
    stopped_shims_do_not_keep_pods(&cluster);
    assert_eq!(cluster.server_pid(), server, "the server did not end on the way");
}

/// Creates a pod of this spec, which is YAML in one line.
fn create(cluster: &Cluster, name: &str, spec: &str) {
    cluster.apply(&format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"));
}

/// Returns a container that runs a script, with more fields if there are any.
fn container(script: &str, more: &str) -> String {
    format!("{{name: c, image: {IMAGE}, command: [sh, -c, '{script}']{more}}}")
}

/// Waits until the pod's container is refused, and checks the message.
fn refused(cluster: &Cluster, name: &str, expected: &str) {
    let states = "jsonpath={.status.containerStatuses[0].state}{.status.containerStatuses[0].lastState}";
    cluster.kubectl_until(&["get", "pod", name, "-o", states], |states| states.contains(expected));
    let ran = cluster.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].started}"]);
    assert_ne!(ran, "true", "{name} runs");
    cluster.kubectl(&["delete", "pod", name, "--grace-period=0", "--wait=false", "--force"]);
}

/// Runs a pod until it exits and returns its log.
fn log_of(cluster: &Cluster, name: &str, spec: &str) -> String {
    create(cluster, name, &format!("restartPolicy: Never, {spec}"));
    let phase = ["get", "pod", name, "-o", "jsonpath={.status.phase}"];
    cluster.kubectl_until(&phase, |phase| phase == "Succeeded" || phase == "Failed");
    cluster.kubectl(&["logs", name])
}

fn profiles_come_from_their_folder(cluster: &Cluster) {
    // The endless file, a file that a pod brings along, and one that only the directory's own name leads to.
    for (name, profile) in [("endless", "dev/zero"), ("brought", "proc/self/root/x.json"), ("absent", "x.json")] {
        let profile = format!("securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: {profile}}}}}");
        create(cluster, name, &format!("{profile}, containers: [{}]", container("sleep 1000", "")));
        refused(cluster, name, "seccomp profile");
    }
    let folder = cluster.data_dir().join("kubelet/seccomp/team");
    std::fs::create_dir_all(&folder).expect("the node's folder");
    let text =
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    std::fs::write(folder.join("own.json"), text).expect("a profile");
    let profile = "securityContext: {seccompProfile: {type: Localhost, localhostProfile: team/own.json}}";
    let spec = format!("{profile}, containers: [{}]", container("mkdir /made; true", ""));
    let log = log_of(cluster, "confined", &spec);
    assert!(log.contains("Operation not permitted"), "a profile of the node is in force: {log}");
}

/// Checks an account that is named like the pod's numeric user, and is root.
fn numbers_are_users(cluster: &Cluster) {
    let write = r#"echo "1000:x:0:0:x:/:/bin/sh" > /shaped/passwd; echo "2000:x:0:" > /shaped/group"#;
    let init = format!(
        "{{name: i, image: {IMAGE}, command: [sh, -c, '{write}'], volumeMounts: [{{name: v, mountPath: /shaped}}]}}"
    );
    let mounts = ", volumeMounts: [{name: v, mountPath: /etc/passwd, subPath: passwd}, \
                   {name: v, mountPath: /etc/group, subPath: group}]";
    let user = ", securityContext: {runAsUser: 1000, runAsGroup: 2000, runAsNonRoot: true}";
    let main = container("id -u; id -g", &format!("{mounts}{user}"));
    let spec = format!("initContainers: [{init}], volumes: [{{name: v, emptyDir: {{}}}}], containers: [{main}]");
    assert_eq!(log_of(cluster, "numbers", &spec), "1000\n2000\n");
}

/// The test image has no user, which is root.
fn non_root_is_not_root(cluster: &Cluster) {
    let main = container("sleep 1000", ", securityContext: {runAsNonRoot: true}");
    create(cluster, "root", &format!("containers: [{main}]"));
    refused(cluster, "root", "image will run as root");
}

fn kernel_places_are_not_mounted_over(cluster: &Cluster) {
    for (name, place) in [("proc", "/proc"), ("attr", "/proc/self/attr"), ("sys", "/sys"), ("groups", "/sys/fs/cgroup")]
    {
        let main = container("sleep 1000", &format!(", volumeMounts: [{{name: v, mountPath: {place}}}]"));
        create(cluster, name, &format!("volumes: [{{name: v, emptyDir: {{}}}}], containers: [{main}]"));
        refused(cluster, name, "cannot be mounted over");
    }
    let main = container("sleep 1000", ", terminationMessagePath: /proc/sys/kernel/core_pattern");
    create(cluster, "message", &format!("containers: [{main}]"));
    refused(cluster, "message", "cannot be mounted over");
}

/// Masks are made of `/dev/null`: a link in its place would open its target under a masked name.
fn a_false_null_device_is_refused(cluster: &Cluster) {
    let before = std::fs::read("/proc/sys/kernel/core_pattern").expect("the kernel's setting");
    let init = format!(
        "{{name: i, image: {IMAGE}, command: [sh, -c, 'busybox ln -s /proc/sys/kernel/core_pattern /shaped/null'], \
         volumeMounts: [{{name: v, mountPath: /shaped}}]}}"
    );
    let write = "echo broken > /proc/kcore; echo broken > /proc/keys; sleep 1000";
    let main = container(write, ", volumeMounts: [{name: v, mountPath: /dev}]");
    let spec = format!("initContainers: [{init}], volumes: [{{name: v, emptyDir: {{}}}}], containers: [{main}]");
    create(cluster, "mask", &spec);
    refused(cluster, "mask", "something else is in its place");
    assert_eq!(std::fs::read("/proc/sys/kernel/core_pattern").expect("the kernel's setting"), before);
}

/// Asserts that neither the first process nor one of exec has a descriptor, a keyring or a program of the node.
fn processes_hold_nothing_of_the_node(cluster: &Cluster) {
    create(cluster, "plain", &format!("containers: [{}]", container("ls -l /proc/self/fd; sleep 1000", "")));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/plain"]);
    let descriptors = |text: &str| {
        let names = text.lines().filter_map(|line| line.split_once(" -> "));
        names.map(|(_, target)| target.to_owned()).collect::<Vec<_>>()
    };
    let first = cluster.kubectl_until(&["logs", "plain"], |log| log.contains(" 2 -> "));
    let second = cluster.kubectl(&["exec", "plain", "--", "ls", "-l", "/proc/self/fd"]);
    for list in [descriptors(&first), descriptors(&second)] {
        let foreign = |target: &String| !target.starts_with("pipe:") && target != "/dev/null";
        assert_eq!(list.len(), 3, "{list:?}");
        assert!(!list.iter().any(foreign), "{list:?}");
    }
    let unshared = cluster.kubectl_fails(&["exec", "plain", "--", "busybox", "unshare", "-U", "true"]);
    assert!(unshared.contains("Operation not permitted"), "{unshared}");
    let settings = cluster.kubectl_fails(&["exec", "plain", "--", "sh", "-c", "echo 1 > /proc/sys/kernel/panic"]);
    assert!(settings.contains("Read-only file system"), "{settings}");
}

/// A container that may trace the pod's first process finds an empty root there, and a program that it cannot write.
fn a_shared_pid_namespace_does_not_lead_to_the_node(cluster: &Cluster) {
    let power = ", securityContext: {capabilities: {add: [SYS_PTRACE]}}";
    let main = container("sleep 1000", power);
    create(cluster, "tracer", &format!("shareProcessNamespace: true, containers: [{main}]"));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/tracer"]);
    let run = |script: &str| {
        let command = ["exec", "tracer", "--", "sh", "-c", script];
        let output = cluster.kubectl_command(&command).output().expect("kubectl runs");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (_, found) = run("cat /proc/1/comm; ls -A /proc/1/root/ /proc/1/cwd/");
    assert!(found.starts_with("pause\n"), "{found}");
    assert!(!found.contains("etc"), "the node's root is seen: {found}");
    let (written, printed) = run("echo broken > /proc/1/exe");
    assert!(!written, "the node's program was written: {printed}");
    let (dropped, printed) = run("grep -q 'CapEff:.0000000000000000' /proc/1/status");
    assert!(dropped, "{printed}");
}

/// The next exec and the probes of a container must not read its replaced account files.
fn a_pipe_for_accounts_blocks_nobody(cluster: &Cluster) {
    let probe = ", readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1}";
    let script = "rm /etc/passwd /etc/group; busybox mkfifo /etc/passwd /etc/group; sleep 1000";
    create(cluster, "pipe", &format!("terminationGracePeriodSeconds: 1, containers: [{}]", container(script, probe)));
    let look = "test -p /etc/passwd && echo pipe";
    cluster.kubectl_until(&["exec", "pipe", "--", "sh", "-c", look], |found| found == "pipe\n");
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/pipe"]);
    cluster.kubectl(&["delete", "pod", "pipe"]);

    // A volume may bring the pipe along before the container starts.
    let init = format!(
        "{{name: i, image: {IMAGE}, command: [sh, -c, 'busybox mkfifo /shaped/passwd'], \
         volumeMounts: [{{name: v, mountPath: /shaped}}]}}"
    );
    let mounts = ", volumeMounts: [{name: v, mountPath: /etc/passwd, subPath: passwd}]";
    let main = container("sleep 1000", mounts);
    let spec = format!("initContainers: [{init}], volumes: [{{name: v, emptyDir: {{}}}}], containers: [{main}]");
    create(cluster, "piped", &spec);
    refused(cluster, "piped", "read /etc/passwd: not a regular file");
}

/// Directories nested deeper than a recursive removal has stack for, in a volume and in the container's own layer.
fn a_tree_deeper_than_the_stack_is_removed(cluster: &Cluster) {
    let nest = "p=$(printf \"d/%.0s\" $(seq 1900)); for top in /shaped /var; do cd $top; \
                for i in 1 2 3 4 5 6 7 8 9 10; do mkdir -p $p; cd -P $p; done; done; echo nested";
    let main = container(nest, ", volumeMounts: [{name: v, mountPath: /shaped}]");
    let spec = format!("volumes: [{{name: v, emptyDir: {{}}}}], containers: [{main}]");
    assert_eq!(log_of(cluster, "deep", &spec), "nested\n");
    let uid = cluster.kubectl(&["get", "pod", "deep", "-o", "jsonpath={.metadata.uid}"]);
    cluster.kubectl(&["delete", "pod", "deep"]);
    let directory = cluster.data_dir().join("kubelet/pods").join(uid);
    wait::until("the removal of the pod's directory", wait::BOUND, || match directory.exists() {
        true => Err("it is there".into()),
        false => Ok(()),
    });
    cluster.kubectl(&["get", "nodes"]);
}

fn a_line_without_end_is_logged_in_pieces(cluster: &Cluster) {
    let flood = "busybox yes x | tr -d \"\\n\" | head -c 40000000; echo; echo last";
    let spec = format!("containers: [{}]", container(&flood.replace("tr -d", "busybox tr -d"), ""));
    create(cluster, "flood", &format!("restartPolicy: Never, {spec}"));
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/flood"]);
    assert_eq!(cluster.kubectl(&["logs", "flood", "--tail=1"]), "last\n");
}

fn a_grace_period_beyond_all_time_is_a_number(cluster: &Cluster) {
    let script = "trap \"exit 0\" TERM; while true; do sleep 1; done";
    let forever = "terminationGracePeriodSeconds: 9223372036854775807";
    create(cluster, "forever", &format!("{forever}, containers: [{}]", container(script, "")));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/forever"]);
    cluster.kubectl(&["delete", "pod", "forever"]);
}

/// A pod that sees the node's processes stops every shim, also its own: pods terminate nevertheless.
fn stopped_shims_do_not_keep_pods(cluster: &Cluster) {
    create(
        cluster,
        "victim",
        &format!("terminationGracePeriodSeconds: 1, containers: [{}]", container("sleep 1000", "")),
    );
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/victim"]);
    let stop =
        "for p in /proc/[0-9]*; do grep -q corten-shim $p/comm && busybox kill -STOP ${p#/proc/}; done; sleep 1000";
    let spec = format!("hostPID: true, terminationGracePeriodSeconds: 1, containers: [{}]", container(stop, ""));
    create(cluster, "stopper", &spec);
    let state = "jsonpath={.status.containerStatuses[0].state.running.startedAt}";
    cluster.kubectl_until(&["get", "pod", "stopper", "-o", state], |started| !started.is_empty());
    wait::until("stopped shims", wait::BOUND, || match stopped_shims(cluster) {
        0 => Err("none is stopped".into()),
        _ => Ok(()),
    });
    cluster.kubectl(&["delete", "pod", "victim", "stopper"]);
    wait::until("the end of the stopped shims", wait::BOUND, || match stopped_shims(cluster) {
        0 => Ok(()),
        left => Err(format!("{left} are left")),
    });
}

/// Returns the number of stopped shims of the machine.
fn stopped_shims(cluster: &Cluster) -> usize {
    let list = cluster.machine.command(&tools::busybox()).args(["ps", "-o", "stat,comm"]).output().expect("ps runs");
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    text.lines().filter(|line| line.starts_with('T') && line.contains("corten-shim")).count()
}
