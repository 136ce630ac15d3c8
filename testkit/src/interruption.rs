//! Commands that end at a random moment, by a kill or because the power of their machine is cut.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::power::Disk;
use crate::random::Random;
use crate::{tools, wait};

/// Returns a number of the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a command to its end, and returns the time that it took.
#[track_caller]
pub fn measured(mut command: Command) -> Duration {
    let began = Instant::now();
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    began.elapsed()
}

/// Starts a command and kills it, with the program on the machine, at a random moment within a time.
pub fn kill(command: Command, within: Duration, random: &mut Random) {
    drop(Running::until_a_moment(command, within, random));
}

/// A command that is killed, with the program on the machine, when this is dropped.
pub struct Running(pub std::process::Child);

impl Running {
    /// Starts a command.
    pub fn start(mut command: Command) -> Running {
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(silent.spawn().expect("the command runs"))
    }

    /// Starts a command, and returns at a random moment within a time.
    fn until_a_moment(command: Command, within: Duration, random: &mut Random) -> Running {
        let running = Running::start(command);
        std::thread::sleep(Duration::from_micros(random.below(within.as_micros() as u64)));
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let id = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let _ = Command::new(tools::busybox()).args(["kill", "-9", child]).status();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Interrupts the commands of a cluster.
pub struct Interruption<'a> {
    pub cluster: &'a Cluster,
    /// The number of times that each command is interrupted.
    pub rounds: u64,
    pub random: Random,
    /// The disk of the data directory, of which the power is cut; without one, commands are killed.
    pub disk: Option<Disk<'a>>,
}

impl Interruption<'_> {
    /// Starts a command of `corten`, and interrupts it at a random moment within a time. A server that ran runs again, if
    /// the power was cut.
    pub fn interrupt(&mut self, words: &[&str], within: Duration) {
        let command = self.cluster.corten_command(words);
        let running = Running::until_a_moment(command, within, &mut self.random);
        if let Some(disk) = &self.disk {
            cut_power(self.cluster, disk);
        }
        drop(running);
    }
}

/// Cuts the power of a machine and its disk: every process ends, `/run` is empty, and the disk has what was synced. Starts
/// the server again if one ran.
pub fn cut_power(cluster: &Cluster, disk: &Disk<'_>) {
    let image = disk.image().expect("the disk has reflinks");
    let had_server = cluster.machine.processes().iter().any(|line| line.contains(" server"));
    wait::until("the end of all processes", wait::BOUND, || {
        let left = cluster.machine.processes();
        for line in &left {
            if let Some(pid) = line.split_whitespace().next() {
                let _ = on_machine(cluster, &["kill", "-9", pid]);
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    });
    let script = "for m in $(awk '$2 ~ \"^/run/corten\" {print $2}' /proc/mounts | sort -r); do umount -l $m; done; \
                  rm -rf /run/corten";
    assert!(on_machine(cluster, &["sh", "-c", script]), "/run is empty after a power cut");
    disk.restore(&image);
    if had_server {
        cluster.start(&["--node-name", "one"]);
    }
}

fn on_machine(cluster: &Cluster, words: &[&str]) -> bool {
    let mut command = cluster.machine.command(Path::new(&tools::busybox()));
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
