//! A complete cluster on its own machine, driven as users do: by `corten` and kubectl.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::machine::Machine;
use crate::{image, tools, wait};

/// The image that tests run.
pub const IMAGE: &str = "test.local/busybox:1";

pub struct Cluster {
    pub machine: Machine,
    corten: PathBuf,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Boots a machine and starts nothing on it.
    pub fn machine(corten: &str) -> Cluster {
        let dir = tempfile::Builder::new().prefix("corten-test").tempdir().expect("a temporary directory");
        Cluster { machine: Machine::boot(), corten: corten.into(), dir }
    }

    /// Boots a machine, starts a cluster with `flags` and imports the test image.
    pub fn up(corten: &str, flags: &[&str]) -> Cluster {
        let cluster = Cluster::machine(corten);
        cluster.start(flags);
        cluster.import_image();
        cluster
    }

    /// Imports the test image.
    pub fn import_image(&self) {
        let archive = image::busybox_archive(self.dir.path(), IMAGE);
        self.corten(&["image", "import", &archive.to_string_lossy()]);
    }

    /// Runs `corten up`.
    pub fn start(&self, flags: &[&str]) -> String {
        let mut arguments = vec!["up", "--timeout", "600"];
        arguments.extend(flags);
        self.corten(&arguments)
    }

    /// Returns the data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("corten")
    }

    /// Returns a directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of the log of an agent on the machine.
    pub fn agent_log(&self) -> PathBuf {
        self.scratch().join("agent.log")
    }

    /// Returns a `corten` command for this cluster.
    pub fn corten_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(&self.corten);
        command
            .args(arguments)
            .arg("--data-dir")
            .arg(self.data_dir())
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    /// Runs `corten` and returns its output; the test fails if it fails.
    #[track_caller]
    pub fn corten(&self, arguments: &[&str]) -> String {
        let output = self.corten_command(arguments).output().expect("corten runs");
        if !output.status.success() {
            self.print_log();
        }
        stdout_of(&format!("corten {}", arguments.join(" ")), output)
    }

    /// Returns a kubectl command.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(&tools::kubectl());
        command.args(arguments).env("HOME", self.dir.path()).env_remove("KUBECONFIG").stdin(Stdio::null());
        command
    }

    /// Runs kubectl and returns its output; the test fails if it fails.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.kubectl_command(arguments).output().expect("kubectl runs");
        if !output.status.success() {
            self.print_log();
        }
        stdout_of(&format!("kubectl {}", arguments.join(" ")), output)
    }

    /// Runs kubectl, which must fail, and returns its error output.
    #[track_caller]
    pub fn kubectl_fails(&self, arguments: &[&str]) -> String {
        let output = self.kubectl_command(arguments).output().expect("kubectl runs");
        assert!(!output.status.success(), "kubectl {} did not fail", arguments.join(" "));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Applies a manifest.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        let path = self.dir.path().join(format!("manifest-{:x}.yaml", manifest.len()));
        std::fs::write(&path, manifest).expect("the test's directory is writable");
        self.kubectl(&["apply", "-f", &path.to_string_lossy()])
    }

    /// Waits until the objects that `arguments` name are in the condition that they name.
    #[track_caller]
    pub fn kubectl_wait(&self, arguments: &[&str]) -> String {
        let timeout = format!("--timeout={}s", wait::BOUND.as_secs());
        self.kubectl(&[arguments, &[&timeout]].concat())
    }

    /// Fetches a page over plain HTTP from within a pod, until it is served: a container is ready before its program
    /// listens, and rules and names of Services follow their endpoints a moment later.
    #[track_caller]
    pub fn fetch_in(&self, pod: &str, host: &str, port: &str) -> String {
        // Uses nc: a static busybox cannot resolve the service name that its wget looks up.
        let script = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {host} {port}");
        let answer = self.kubectl_until(&["exec", pod, "--", "sh", "-c", &script], |text| text.contains(" 200 "));
        answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned()
    }

    /// Runs kubectl until its output satisfies a condition.
    #[track_caller]
    pub fn kubectl_until(&self, arguments: &[&str], pleases: impl Fn(&str) -> bool) -> String {
        wait::until(&format!("kubectl {}", arguments.join(" ")), wait::BOUND, || {
            let output = self.kubectl_command(arguments).output().map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() && pleases(&text) {
                return Ok(text);
            }
            Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
        })
    }

    /// Returns the server's process id, as the machine's processes see it.
    pub fn server_pid(&self) -> String {
        let output = self.machine.command(&tools::busybox()).args(["cat", "/run/corten/corten.pid"]).output();
        String::from_utf8_lossy(&output.expect("cat runs").stdout).trim().to_owned()
    }

    /// Kills the cluster's own processes as a power cut would: without a signal that they can handle, and without the
    /// containers.
    pub fn kill_hard(&self) {
        self.end_server("-9");
    }

    /// Stops the server as a service manager does, and starts another file of the same program on its data.
    pub fn exchange_binary(&self) {
        self.end_server("-TERM");
        let other = self.dir.path().join("corten-of-another-build");
        std::fs::copy(&self.corten, &other).expect("the program can be copied");
        let mut up = self.machine.command(&other);
        up.args(["up", "--timeout", "600", "--data-dir"]).arg(self.data_dir());
        up.env("HOME", self.dir.path()).env_remove("KUBECONFIG");
        let started = up.output().expect("the program runs");
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    }

    /// Sends a signal to the server, and waits for its end.
    fn end_server(&self, signal: &str) {
        let pid = self.server_pid();
        let kill = |signal: &str| {
            let output = self.machine.command(&tools::busybox()).args(["kill", signal, &pid]).output();
            output.expect("kill runs").status.success()
        };
        assert!(kill(signal), "the server runs");
        wait::until("the server's end", wait::BOUND, || if kill("-0") { Err("alive".into()) } else { Ok(()) });
    }

    /// Returns the proxies of Gateways: their process ids and arguments.
    pub fn proxies(&self) -> BTreeMap<String, String> {
        let processes = self.machine.command(&tools::busybox()).args(["ps", "-o", "pid,args"]).output();
        let processes = String::from_utf8_lossy(&processes.expect("ps runs").stdout).into_owned();
        let proxies = processes.lines().filter(|line| line.contains("edge --controller=false"));
        let fields = proxies.filter_map(|line| line.trim().split_once(' '));
        fields.map(|(pid, arguments)| (pid.to_owned(), arguments.to_owned())).collect()
    }

    /// Prints the last lines of the logs of the server and of an agent beside it.
    pub fn print_log(&self) {
        print_last_lines(&self.data_dir().join("corten.log"));
        print_last_lines(&self.agent_log());
    }
}

/// Prints the last lines of a log; one that does not exist is left out.
fn print_last_lines(log: &Path) {
    let Ok(text) = std::fs::read_to_string(log) else { return };
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("--- the last lines of {} ---", log.display());
    for line in &lines[lines.len().saturating_sub(60)..] {
        eprintln!("{line}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_log();
        }
        // Processes end with the machine; cgroups are the host's, and the purge removes them.
        let _ = self.corten_command(&["down", "--purge"]).output();
    }
}

#[track_caller]
fn stdout_of(what: &str, output: Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what} failed ({}):\n{stdout}{stderr}", output.status);
    stdout
}
