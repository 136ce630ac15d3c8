//! A machine made of namespaces: its own network, mounts and processes on the host's kernel.
//!
//! A cluster under test lives in one, so it cannot touch the host's network, and when the machine is dropped, or the
//! test is killed, the kernel ends every process in it and removes links, nft tables and mounts. Only cgroups are
//! shared with the host: they are removed by name.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use corten_nftables::{
    Batch, Chain, ChainType, Family, Field, Hook, InterfaceName, Policy, Rule, Socket, Table, priority,
};
use nix::sched::CloneFlags;

use crate::{tools, wait};

/// The table of a machine that is cut off.
const CUT_OFF: &str = "cut-off";
/// The machine's own address on its only link.
pub const ADDRESS: &str = "10.88.0.2";

pub struct Machine {
    holder: Child,
    init: u32,
}

impl Machine {
    /// Boots a machine: an init process, a loopback and a link `eth0` with a default route that leads nowhere. Its `/run` is
    /// its own: what a cluster of the host has mounted below it is not seen here.
    pub fn boot() -> Machine {
        let busybox = tools::busybox();
        let b = busybox.display();
        let script = format!(
            "set -e
            {b} ip link set lo up
            {b} ip link add eth0 type bridge
            {b} ip addr add {ADDRESS}/24 dev eth0
            {b} ip link set eth0 up
            {b} ip route add default via 10.88.0.1
            {b} awk '$2 ~ \"^/run/\" {{print $2}}' /proc/mounts | {b} sort -r | while read -r m; do {b} umount -l $m; done
            {b} mount -t tmpfs tmpfs /run
            trap : TERM
            {b} touch /run/booted
            {b} cat"
        );
        let holder = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"])
            .args(["--propagation", "private"])
            .arg(&busybox)
            .args(["sh", "-c", &script])
            // The machine's init reads until the test that holds the other end has ended.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A Ctrl-C is for the holder of the machine, which may still clean up in it.
            .process_group(0)
            .spawn()
            .expect("util-linux has unshare");
        let init = wait::until("the machine's init", wait::BOUND, || only_child(holder.id()));
        let machine = Machine { holder, init };
        wait::until("the machine's boot", wait::BOUND, || {
            let output = machine.command(&busybox).args(["test", "-e", "/run/booted"]).output();
            if output.is_ok_and(|output| output.status.success()) { Ok(()) } else { Err("not booted".into()) }
        });
        machine
    }

    /// Returns a command that will run on the machine.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--mount", "--pid", "--uts", "--target", &self.init.to_string(), "--"]).arg(program);
        command
    }

    /// Connects another machine to this one's link, and gives it another address.
    pub fn connect(&self, other: &Machine, address: &str) {
        self.cable(other);
        other.renumber(ADDRESS, address);
    }

    /// Gives the machine another address in place of its own, as a lease that expired does.
    pub fn renumber(&self, before: &str, after: &str) {
        self.ip(&format!("addr del {before}/24 dev eth0"));
        self.ip(&format!("addr add {after}/24 dev eth0"));
        self.ip("route add default via 10.88.0.1");
    }

    /// Joins the links of two machines.
    pub fn cable(&self, other: &Machine) {
        // Named by the other side, so that a machine may have several.
        let near = format!("to-{}", other.init);
        let far = format!("to-{}", self.init);
        // The kernel names the other end: busybox cannot.
        self.ip(&format!("link add {near} type veth"));
        let links = self.ip("-o link");
        let mark = format!("@{near}:");
        // A link to a third machine may be shown with the same mark: its peer has the same number there.
        let mut ends = links.split_whitespace().filter_map(|word| word.strip_suffix(&mark));
        let end = ends.find(|name| name.starts_with("veth")).expect("the other end");
        self.ip(&format!("link set {end} name {far}"));
        self.ip(&format!("link set {far} netns {}", other.init));
        self.ip(&format!("link set {near} master eth0"));
        self.ip(&format!("link set {near} up"));
        other.ip(&format!("link set {far} master eth0"));
        other.ip(&format!("link set {far} up"));
    }

    /// Runs busybox's `ip` in the machine's network, and returns its output.
    #[track_caller]
    pub fn ip(&self, arguments: &str) -> String {
        // Only the network namespace: processes of the other machine are not visible from within this one.
        let output = Command::new("nsenter")
            .args(["--net", "--target", &self.init.to_string(), "--"])
            .arg(tools::busybox())
            .arg("ip")
            .args(arguments.split(' '))
            .output()
            .expect("util-linux has nsenter");
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the path of a file of the machine for this process.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }

    /// Fetches a page over plain HTTP from the machine itself; `Err` has any other output.
    ///
    /// Uses `nc`: a static busybox cannot resolve the service name that its wget looks up.
    pub fn fetch(&self, address: &str, port: &str) -> Result<String, String> {
        let mut nc = self
            .command(&tools::busybox())
            .args(["nc", "-w", "5", address, port])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        if let Some(mut stdin) = nc.stdin.take() {
            let _ = stdin.write_all(b"GET / HTTP/1.0\r\n\r\n");
        }
        let output = nc.wait_with_output().map_err(|error| error.to_string())?;
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
            _ => Err(format!("{answer}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Returns the names of the nft tables in the machine's network namespace.
    ///
    /// Lists them over netlink from a thread that enters the namespace and ends: Debian's `nft` crashes on sets of
    /// concatenated keys that it did not make.
    pub fn nft_tables(&self) -> Vec<String> {
        let tables = self.in_network(|| {
            let mut socket = corten_nftables::Socket::open().expect("the kernel has nf_tables");
            socket.tables().expect("tables can be listed")
        });
        tables.into_iter().map(|table| table.name).collect()
    }

    /// Runs a function in the machine's network, in a thread that enters it and ends.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.init)).expect("the machine runs");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                nix::sched::setns(&namespace, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
                work()
            });
            thread.join().expect("the thread ends")
        })
    }

    /// Drops every packet between the machine and others, without an answer, until [`Machine::reconnect`].
    pub fn cut_off(&self) {
        self.in_network(|| {
            let table = Table::new(Family::Inet, CUT_OFF);
            let loopback = || InterfaceName("lo".to_owned());
            let mut batch = Batch::new();
            batch.add_table(&table);
            for (chain, hook, field) in
                [("input", Hook::Input, Field::Iifname), ("output", Hook::Output, Field::Oifname)]
            {
                let base = Chain::base(chain, ChainType::Filter, hook, priority::RAW);
                batch.add_chain(&table, &base.policy(Policy::Drop));
                batch.add_rule(&table, chain, &Rule::new().eq(field, loopback()).accept());
            }
            apply(batch);
        });
    }

    /// Ends [`Machine::cut_off`]; a machine that is not cut off stays as it is.
    pub fn reconnect(&self) {
        self.in_network(|| {
            let mut batch = Batch::new();
            batch.destroy_table(&Table::new(Family::Inet, CUT_OFF));
            apply(batch);
        });
    }

    /// Returns the number of processes on the machine, without its init and this query.
    pub fn processes(&self) -> Vec<String> {
        let output = self.command(&tools::busybox()).args(["ps", "-o", "pid,args"]).output().expect("ps runs");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .skip(1)
            .filter(|line| !line.contains("busybox"))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The holder kills its child, the machine's init, when it dies; the kernel ends the rest.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn apply(batch: Batch) {
    let mut socket = Socket::open().expect("the kernel has nf_tables");
    socket.apply(batch).expect("the kernel takes the table");
}

fn only_child(pid: u32) -> Result<u32, String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    children.split_whitespace().next().and_then(|child| child.parse().ok()).ok_or_else(|| "no child".into())
}

#[cfg(test)]
mod tests {
    use nix::mount::{MsFlags, mount};

    use super::*;

    /// Mounts of a cluster that runs on the host, in a copy of its mounts that ends with the thread.
    fn host_with_a_cluster() {
        nix::sched::unshare(CloneFlags::CLONE_NEWNS).expect("root may have mounts of its own");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("private");
        let memory = |path: &str| mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), None::<&str>);
        memory("/run").expect("a tmpfs");
        std::fs::create_dir_all("/run/corten/sandboxes/a").expect("a directory");
        memory("/run/corten").expect("a tmpfs");
        std::fs::create_dir_all("/run/corten/sandboxes/a").expect("a directory");
        memory("/run/corten/sandboxes/a").expect("a tmpfs");
    }

    #[test]
    fn a_cluster_of_the_host_is_not_seen() {
        if !tools::is_root() {
            eprintln!("skipped: a machine needs root");
            return;
        }
        let test = std::thread::spawn(|| {
            host_with_a_cluster();
            let machine = Machine::boot();
            let output = machine.command(&tools::busybox()).args(["cat", "/proc/mounts"]).output().expect("cat runs");
            let mounts = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(mounts.contains(" /run ") && !mounts.contains(" /run/corten"), "{mounts}");
            let host = std::fs::read_to_string("/proc/thread-self/mounts").expect("procfs");
            assert!(host.contains(" /run/corten/sandboxes/a "), "the host keeps its own: {host}");
        });
        test.join().expect("the test ends well");
    }
}
