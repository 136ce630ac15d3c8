//! Runs of faults: servers with their etcd members, a load of requests, and one fault after the other. At the end a checker
//! proves from all answers that no acknowledged write was lost and no client saw a wrong state.
//!
//! `cargo xtask faults` makes a long run; the tests make a short one.

mod check;
mod churn;
mod history;
mod load;
mod plan;

pub use churn::churn;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Namespace;
use corten_client::{Client, HttpsConfig, Kubeconfig};
use corten_members::Members;
use testkit::agent::Agent;
use testkit::cluster::Cluster;
use testkit::{tools, wait};
use tokio::task::JoinSet;

use super::machines::{CORTEN, credentials, etcd_pid, join, members, signal_etcd, words};
use load::{Caller, Failure, Load, NAMESPACE};
use plan::{Fault, Step};

/// The addresses of the servers.
const ADDRESSES: [&str; 7] =
    ["10.88.0.2", "10.88.0.3", "10.88.0.4", "10.88.0.6", "10.88.0.7", "10.88.0.8", "10.88.0.9"];
const NAMES: [&str; 7] = ["one", "two", "three", "four", "five", "six", "seven"];
/// The servers of a world when its load begins.
const FIRST: usize = 3;
/// The most requests a second of one client: more need further connections.
const RATE_OF_CLIENT: u64 = 40;
/// The address of the agent's balancer.
const BALANCER: &str = "https://127.0.0.1:6444";
/// The longest time without an acknowledged write after a single fault, and after the healing of a double one: generous, as
/// the machine may be slow.
const MOST_SILENCE: Duration = Duration::from_secs(60);
/// The pause before each fault, in which all is well.
const CALM: Duration = Duration::from_secs(3);

/// The settings of a run.
pub struct Run {
    pub seed: u64,
    /// The requests a second, of all clients together.
    pub rate: u64,
    pub length: Length,
}

/// The end of a run: after so many faults, or at the first fault after a time.
pub enum Length {
    Faults(usize),
    Time(Duration),
}

/// Three servers and an agent, each on a machine of its own, and machines that may become servers.
pub struct World {
    /// The machines, the first three of which are servers.
    pub servers: Vec<Cluster>,
    agent: Cluster,
    _process: Agent,
    /// Flags of every start of a server.
    flags: Vec<String>,
    etcd: String,
    /// The tracers that slow down the disks of members.
    tracers: Mutex<BTreeMap<usize, Child>>,
}

/// The tasks of the load. Watches end last: they must see the last write.
#[derive(Default)]
struct Clients {
    requests: JoinSet<()>,
    watches: JoinSet<()>,
}

/// A fault that took place, with times since the start of the load.
struct Suffered {
    step: Step,
    began: u64,
    healed: u64,
    recovered: u64,
}

impl World {
    pub fn new(etcd: &Path, flags: &[&str]) -> World {
        World::with(etcd, flags, FIRST)
    }

    /// Makes a world of so many machines.
    pub fn with(etcd: &Path, flags: &[&str], machines: usize) -> World {
        World::of(etcd, flags, &vec![CORTEN; machines])
    }

    /// Makes a world of machines with these binaries.
    pub fn of(etcd: &Path, flags: &[&str], binaries: &[&str]) -> World {
        let etcd = etcd.to_str().unwrap();
        let machines = binaries.len();
        let servers: Vec<Cluster> = binaries.iter().map(|binary| Cluster::machine(binary)).collect();
        for index in 1..servers.len() {
            servers[index - 1].machine.connect(&servers[index].machine, ADDRESSES[index]);
        }
        let first = ["--cluster-init", "--node-name", NAMES[0], "--etcd-binary", etcd];
        servers[0].start(&[&first, flags].concat());
        for index in 1..FIRST {
            join(&servers[index], &servers[0], NAMES[index], etcd, flags);
        }
        members(&servers[0], &["one", "three", "two"]);
        let agent = Cluster::machine(binaries[0]);
        servers[machines - 1].machine.connect(&agent.machine, "10.88.0.5");
        let command = servers[0].corten(&["token", "create", "--print-join-command"]);
        let process = Agent::start(&agent, &[&words(&command)[..], &["--node-name", "agent"]].concat());
        super::machines::known_servers(
            &agent.data_dir().join("servers.json"),
            &ADDRESSES[..FIRST].iter().map(|address| format!("{address}:6443")).collect::<Vec<_>>(),
        );
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let tracers = Mutex::default();
        World { servers, agent, _process: process, flags, etcd: etcd.to_owned(), tracers }
    }

    /// Returns a client of the administrator that connects to a server, or to the agent's balancer.
    fn client(&self, server: &str) -> Client {
        let path = self.servers[0].data_dir().join("kubeconfig/admin.conf");
        let config = Kubeconfig::load(path).unwrap().https_config(None).unwrap();
        let tls_server_name = Some("kubernetes".to_owned());
        Client::https(HttpsConfig { server: server.to_owned(), tls_server_name, ..config }).unwrap()
    }

    fn balanced(&self, name: &str) -> Caller {
        Caller { name: name.to_owned(), client: self.client(BALANCER), is_balanced: true }
    }

    fn direct(&self, index: usize) -> Caller {
        let client = self.client(&format!("https://{}:6443", ADDRESSES[index]));
        Caller { name: format!("at-{}", NAMES[index]), client, is_balanced: false }
    }

    /// Runs work in the network of the agent, with a load of requests beside it; returns the load when its watches have seen
    /// the last write.
    fn under_load(&self, seed: u64, rate: u64, work: impl FnOnce(&Load) + Send) -> Arc<Load> {
        self.agent.machine.in_network(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let load = Load::new();
            runtime.block_on(self.prepare());
            let Clients { requests, watches } = self.start(&runtime, &load, seed, rate);
            work(&load);
            runtime.block_on(async {
                load.stop.cancel();
                requests.join_all().await;
                let version = load.finish(&self.balanced("last")).await;
                let all_seen = async {
                    while load.reached().values().any(|reached| *reached < version) {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                let seen = tokio::time::timeout(wait::BOUND, all_seen).await;
                assert!(seen.is_ok(), "watches did not reach version {version}: {:?}", load.reached());
                load.end.cancel();
                watches.join_all().await;
            });
            load
        })
    }

    async fn prepare(&self) {
        let namespace = serde_json::json!({"metadata": {"name": NAMESPACE}});
        let namespace = Namespace::from_value(namespace).unwrap();
        match self.client(BALANCER).create(&namespace).await {
            Err(error) if !error.is_already_exists() => panic!("the namespace: {error}"),
            _ => {}
        }
    }

    /// Starts the clients: half of the requests are writes.
    fn start(&self, runtime: &tokio::runtime::Runtime, load: &Arc<Load>, seed: u64, rate: u64) -> Clients {
        let mut clients = Clients::default();
        let balanced = (rate / RATE_OF_CLIENT).max(3) as usize;
        let mut callers: Vec<Caller> = (0..balanced).map(|number| self.balanced(&format!("client-{number}"))).collect();
        // A server that leaves takes its own clients with it.
        if self.servers.len() == FIRST {
            callers.extend((0..FIRST).map(|index| self.direct(index)));
        }
        let pause = Duration::from_nanos(2_000_000_000 * callers.len() as u64 / rate.max(1));
        for (number, caller) in callers.into_iter().enumerate() {
            let own = seed.wrapping_add(number as u64 * 2);
            clients.requests.spawn_on(Arc::clone(load).write(caller.clone(), own, pause), runtime.handle());
            clients.requests.spawn_on(Arc::clone(load).read_on(caller.clone(), own + 1, pause), runtime.handle());
            if number < 2 || !caller.is_balanced {
                clients.watches.spawn_on(Arc::clone(load).watch(caller), runtime.handle());
            }
        }
        clients
    }

    fn suffer(&self, load: &Load, step: Step) -> Suffered {
        std::thread::sleep(CALM);
        let began = load.now();
        for target in &step.targets {
            self.hit(step.fault, *target);
        }
        std::thread::sleep(step.hold);
        for target in &step.targets {
            self.heal(step.fault, *target);
        }
        let healed = load.now();
        self.recovered();
        Suffered { step, began, healed, recovered: load.now() }
    }

    fn hit(&self, fault: Fault, target: usize) {
        let server = &self.servers[target];
        match fault {
            Fault::KillServer => server.kill_hard(),
            Fault::PauseServer => signal_server(server, "-STOP"),
            Fault::KillMember => signal_etcd(server, "-KILL"),
            Fault::PauseMember => signal_etcd(server, "-STOP"),
            Fault::CutOff => server.machine.cut_off(),
            Fault::SlowDisk => self.slow_down(target),
        }
    }

    /// Delays the writes of a member's log, where strace is installed; elsewhere nothing happens.
    fn slow_down(&self, target: usize) {
        let server = &self.servers[target];
        let mut command = server.machine.command(Path::new("strace"));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]);
        command.args(["-e", "inject=fdatasync:delay_exit=500000", "-p", &etcd_pid(server)]);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut tracers = self.tracers.lock().unwrap_or_else(PoisonError::into_inner);
        tracers.insert(target, started.expect("util-linux has nsenter"));
    }

    /// Ends the delays of a member.
    fn speed_up(&self, target: usize) {
        let tracer = self.tracers.lock().unwrap_or_else(PoisonError::into_inner).remove(&target);
        let Some(mut tracer) = tracer else { return };
        let id = tracer.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            // A tracer that is asked to end lets its process go on.
            let _ = std::process::Command::new(tools::busybox()).args(["kill", "-TERM", child]).status();
        }
        let _ = tracer.wait();
    }

    fn heal(&self, fault: Fault, target: usize) {
        let server = &self.servers[target];
        match fault {
            Fault::KillServer => self.spawn(target),
            Fault::PauseServer => signal_server(server, "-CONT"),
            Fault::KillMember => {}
            Fault::PauseMember => signal_etcd(server, "-CONT"),
            Fault::CutOff => server.machine.reconnect(),
            Fault::SlowDisk => self.speed_up(target),
        }
    }

    /// Starts a server without waiting for it: it may need another one for its quorum.
    fn spawn(&self, target: usize) {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let arguments = [&["up", "--timeout", "600", "--node-name", NAMES[target]], &flags[..]].concat();
        let mut command = self.servers[target].corten_command(&arguments);
        let mut started = command.stdout(std::process::Stdio::null()).spawn().expect("corten runs");
        std::thread::spawn(move || started.wait());
    }

    /// Waits until every server is ready and every member answers. Runs in the network of the agent.
    fn recovered(&self) {
        self.recovered_among(&(0..FIRST).collect::<Vec<_>>());
    }

    /// Waits until these servers are ready and their members answer.
    fn recovered_among(&self, active: &[usize]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let members = Members::new(Vec::new(), &credentials(&self.servers[active[0]])).unwrap();
        let servers: Vec<Client> = active.iter().map(|index| self.direct(*index).client).collect();
        let addresses: Vec<&str> = active.iter().map(|index| ADDRESSES[*index]).collect();
        wait::until("all servers and members", wait::BOUND, || {
            runtime.block_on(async {
                for (server, address) in servers.iter().zip(&addresses) {
                    let member = members.at(vec![format!("https://{address}:2379")]);
                    let asked = async {
                        server.get_raw("/readyz").await.map_err(|error| error.to_string())?;
                        member.status().await.map(drop).map_err(|error| error.to_string())
                    };
                    let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
                    asked.map_err(|_| format!("{address} takes too long"))??;
                }
                Ok(())
            })
        });
    }

    /// Ends a server as a supervisor would, and starts it again when it has ended.
    pub fn restart(&self, target: usize) {
        let server = &self.servers[target];
        let pid = server.server_pid();
        let kill = |signal: &str| {
            let output = server.machine.command(&tools::busybox()).args(["kill", signal, &pid]).output();
            output.expect("kill runs").status.success()
        };
        assert!(kill("-TERM"), "the server runs");
        wait::until("the server's end", wait::BOUND, || if kill("-0") { Err("alive".into()) } else { Ok(()) });
        self.spawn(target);
    }
}

fn signal_server(on: &Cluster, signal: &str) {
    let pid = on.server_pid();
    let sent = on.machine.command(&tools::busybox()).args(["kill", signal, &pid]).status();
    assert!(sent.expect("kill runs").success(), "kill {signal} {pid}");
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Returns the longest time between two acknowledged writes that overlaps with a span.
fn longest_silence(acknowledged: &[u64], began: u64, ended: u64) -> u64 {
    let mut last = acknowledged.iter().copied().filter(|at| *at <= began).max().unwrap_or(began);
    let mut longest = 0;
    for at in acknowledged.iter().copied().filter(|at| *at > began) {
        longest = longest.max(at - last);
        last = at;
        if at > ended {
            break;
        }
    }
    longest
}

/// Makes a run, prints its summary, and panics if the checker finds a violation.
pub fn run(world: &World, run: &Run) {
    let mut suffered = Vec::new();
    let load = world.under_load(run.seed, run.rate, |load| {
        let start = Instant::now();
        for (number, step) in plan::steps(run.seed, FIRST).enumerate() {
            let is_over = match run.length {
                Length::Faults(count) => number >= count,
                Length::Time(time) => start.elapsed() >= time,
            };
            if is_over {
                break;
            }
            suffered.push(world.suffer(load, step));
        }
        std::thread::sleep(CALM);
    });
    let violations = summarize(run, &load, &suffered);
    let acknowledged = sorted(load.acknowledged());
    for one in suffered.iter().filter(|one| one.step.targets.len() == 1) {
        let silence = longest_silence(&acknowledged, one.began, one.healed);
        assert!(silence < MOST_SILENCE.as_nanos() as u64, "no write for {:.1} s: {:?}", seconds(silence), one.step);
    }
    assert!(violations.is_empty(), "{} violations, with seed {}", violations.len(), run.seed);
}

fn sorted(mut times: Vec<u64>) -> Vec<u64> {
    times.sort_unstable();
    times
}

fn summarize(run: &Run, load: &Load, suffered: &[Suffered]) -> Vec<String> {
    let history = load.history();
    let violations = check::check(&history);
    let acknowledged = sorted(load.acknowledged());
    println!("seed {}: {} faults in {:.0} s", run.seed, suffered.len(), seconds(load.now()));
    for one in suffered {
        let targets: Vec<&str> = one.step.targets.iter().map(|target| NAMES[*target]).collect();
        println!(
            "  {:>6.1} s  {:?} of {}, for {:.1} s: no write for {:.1} s, all well {:.1} s after the healing",
            seconds(one.began),
            one.step.fault,
            targets.join(" and "),
            seconds(one.healed - one.began),
            seconds(longest_silence(&acknowledged, one.began, one.recovered)),
            seconds(one.recovered - one.healed),
        );
    }
    let count =
        |outcome: fn(&history::Outcome) -> bool| history.writes.iter().filter(|write| outcome(&write.outcome)).count();
    println!(
        "{} requests: {} writes acknowledged, {} refused, {} of unknown outcome; {} reads, {} lists",
        load.requests(),
        count(|outcome| matches!(outcome, history::Outcome::Done(_))),
        count(|outcome| *outcome == history::Outcome::Refused),
        count(|outcome| *outcome == history::Outcome::Unknown),
        history.reads.len(),
        history.listings.len(),
    );
    let events: usize = history.watches.iter().map(|watch| watch.events.len()).sum();
    println!("{} watches with {events} events", history.watches.len());
    println!("{} requests went through the balancer", load.balanced());
    print_failures(&load.failures());
    for violation in violations.iter().take(20) {
        println!("VIOLATION: {violation}");
    }
    println!("{} violations", violations.len());
    violations
}

/// Prints how often requests failed, and for which reasons.
fn print_failures(failures: &[Failure]) {
    let mut reasons: std::collections::BTreeMap<(bool, &str), usize> = std::collections::BTreeMap::new();
    for failure in failures {
        let is_direct = failure.caller.starts_with("at-");
        *reasons.entry((is_direct, failure.reason.as_str())).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for ((is_direct, reason), count) in reasons.iter().take(12) {
        let through = if *is_direct { "one server" } else { "the balancer" };
        println!("  {count} failed through {through}: {reason}");
    }
}

/// Restarts every server, one after the other, under load; panics if a request through the balancer failed.
pub fn rolling_restart(world: &World, seed: u64, rate: u64) {
    rolling_exchange(world, seed, rate, &|_| {});
}

/// Restarts every server after `exchange` prepared its machine, as [`rolling_restart`] does.
pub fn rolling_exchange(world: &World, seed: u64, rate: u64, exchange: &(dyn Fn(usize) + Sync)) {
    let load = world.under_load(seed, rate, |load| {
        for (target, name) in NAMES.iter().enumerate().take(FIRST) {
            std::thread::sleep(CALM);
            exchange(target);
            let began = load.now();
            world.restart(target);
            world.recovered();
            println!("{name} was restarted in {:.1} s", seconds(load.now() - began));
        }
        std::thread::sleep(CALM);
    });
    let run = Run { seed, rate, length: Length::Faults(0) };
    let violations = summarize(&run, &load, &[]);
    assert!(violations.is_empty(), "{violations:#?}");
    let failures: Vec<Failure> =
        load.failures().into_iter().filter(|failure| !failure.caller.starts_with("at-")).collect();
    assert!(failures.is_empty(), "{} of {} requests failed: {failures:#?}", failures.len(), load.requests());
}

/// Rotates all authorities and keys under load; panics if a request failed.
pub fn rotation(world: &World, seed: u64, rate: u64) {
    let work = |title: &str, arguments: &[&str], server: usize| {
        let began = Instant::now();
        world.servers[server].corten(arguments);
        println!("{title} took {:.1} s", began.elapsed().as_secs_f64());
    };
    let load = world.under_load(seed, rate, |_| {
        std::thread::sleep(CALM);
        work("the rotation of the authorities", &["ca", "rotate"], 1);
        work("the rotation of the ServiceAccount key", &["service-account-key", "rotate"], 2);
        work("its end", &["service-account-key", "rotate", "--finish"], 0);
        work("the rotation of the encryption key", &["encryption-key", "rotate"], 2);
        std::thread::sleep(CALM);
    });
    nothing_failed(&load, seed, rate);
    // The certificates of the administrator are of the new authority, and every node follows it within a minute.
    let began = Instant::now();
    wait::until("all nodes have followed", wait::BOUND, || {
        let output = world.servers[0].corten_command(&["ca", "rotate", "--finish"]).output().expect("corten runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    });
    println!("the end of the rotation of the authorities took {:.1} s", began.elapsed().as_secs_f64());
}

/// Panics if a history has a violation, or a request of it failed.
fn nothing_failed(load: &Load, seed: u64, rate: u64) {
    let run = Run { seed, rate, length: Length::Faults(0) };
    let violations = summarize(&run, load, &[]);
    assert!(violations.is_empty(), "{violations:#?}");
    let failures = load.failures();
    assert!(failures.is_empty(), "{} of {} requests failed: {failures:#?}", failures.len(), load.requests());
}
