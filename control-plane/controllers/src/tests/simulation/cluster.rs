//! A run of one world: managers start, stop and crash on a faulty API while users and kubelets act; then the faults
//! end, the cluster converges, and the final state is checked.
//!
//! The managers are the real ones, with their caches, queues and clients. A failed run is reduced as long as it still
//! fails, and prints how to repeat it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corten_meta::Value;
use http::Method;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Random;
use super::server::{Faults, Invariant, Server};
use crate::runtime::memory::tests::WRONG;
use crate::{Config, Error, KubeletServing, LoadBalancerAddresses, SigningAuthorities, SigningAuthority};

/// The scenario of a simulation.
pub struct World {
    /// The controllers that run, by name.
    pub controllers: &'static [&'static str],
    /// The number of managers; with more than one they use leader election.
    pub managers: usize,
    /// Returns the initial objects.
    pub objects: fn(&mut Random) -> Vec<Value>,
    /// Sets up further initial state.
    pub begins: fn(&Server, &mut Random),
    /// Performs one action of users, or one failure.
    pub happens: fn(&Server, &mut Random),
    /// Performs the work that controllers wait for: kubelets and other components.
    pub goes_on: fn(&Server, &mut Random),
    /// Checks every write.
    pub invariant: fn() -> Invariant,
    /// Checks the state at the end, when no controller writes any more.
    pub at_rest: fn(&Server) -> Result<(), String>,
    pub faults: Faults,
    /// The longest time between two actions.
    pub pace: Duration,
    /// The duration of a round of waiting for the end: controllers that requeue after hours need long ones.
    pub round: Duration,
    /// The number of actions before the faults end.
    pub steps: usize,
    /// The number of seeds of a usual run.
    pub seeds: u64,
}

impl World {
    /// The defaults of most worlds: one manager on a faulty network, and no other component.
    pub const USUAL: World = World {
        controllers: &[],
        managers: 1,
        objects: |_| Vec::new(),
        begins: |_, _| {},
        happens: |_, _| {},
        goes_on: |_, _| {},
        invariant: || Box::new(|_| Ok(())),
        at_rest: |_| Ok(()),
        faults: Faults::MANY,
        pace: Duration::from_millis(500),
        round: Duration::from_secs(10),
        steps: 250,
        seeds: 3,
    };
}

/// The number of rounds without a write after which the cluster has converged; retries back off exponentially.
const QUIET_ROUNDS: usize = 30;
const MOST_ROUNDS: usize = 250;
/// The number of steps with faults for each one without.
const QUIET_LIFE: usize = 4;
/// The number of writes that are printed of a failed run.
const LAST: usize = 60;

/// Runs the world for every seed: `CORTEN_SIMULATION_SEEDS` of them if that is set, from `CORTEN_SIMULATION_FIRST` on.
pub fn play(world: &World) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("CORTEN_SIMULATION_FIRST").unwrap_or(1);
    let seeds = number("CORTEN_SIMULATION_SEEDS").unwrap_or(world.seeds);
    for seed in first..first + seeds {
        if let Err(wrong) = run(world, seed, world.steps, world.faults) {
            eprintln!("seed {seed} failed and is made smaller now: {wrong}");
            let (steps, faults, wrong) = shrink(world, seed, wrong);
            panic!("seed {seed}, {steps} steps, {faults:?}: {wrong}");
        }
    }
}

/// Reduces a failed run to fewer steps and fewer kinds of faults, as long as it fails.
fn shrink(world: &World, seed: u64, wrong: String) -> (usize, Faults, String) {
    let (mut steps, mut faults, mut wrong) = (world.steps, world.faults, wrong);
    let without: [fn(&mut Faults); 5] =
        [|all| all.refused = 0, |all| all.lost = 0, |all| all.slow = 0, |all| all.late = 0, |all| all.broken = 0];
    for remove in without {
        let mut fewer = faults;
        remove(&mut fewer);
        if let Err(still) = run(world, seed, steps, fewer) {
            (faults, wrong) = (fewer, still);
        }
    }
    while steps > 0 {
        match run(world, seed, steps * 2 / 3, faults) {
            Err(still) => (steps, wrong) = (steps * 2 / 3, still),
            Ok(_) => break,
        }
    }
    (steps, faults, wrong)
}

/// Runs one seed; returns the trace of its writes.
pub fn run(world: &World, seed: u64, steps: usize, faults: Faults) -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let began = std::time::Instant::now();
    let outcome = runtime.block_on(async {
        super::start_clock();
        corten_client::replay(seed);
        let mut run = Run::begin(world, seed, faults);
        let outcome = run.whole(steps).await;
        run.managers.iter_mut().for_each(Manager::crash);
        let trace = std::mem::take(&mut run.server.state().trace);
        let last = &trace[trace.len().saturating_sub(LAST)..];
        let wrong = outcome.err().map(|wrong| format!("{wrong}\nlast writes:\n  {}", last.join("\n  ")));
        wrong.map_or(Ok(trace), Err)
    });
    super::stop_clock();
    if std::env::var_os("CORTEN_SIMULATION_TIMES").is_some() {
        let mut hash = std::hash::DefaultHasher::new();
        outcome.hash(&mut hash);
        eprintln!("seed {seed}: {:?}, a history of {:016x}", began.elapsed(), hash.finish());
    }
    outcome
}

struct Run<'a> {
    world: &'a World,
    server: Server,
    random: Random,
    managers: Vec<Manager>,
    started: usize,
}

impl Run<'_> {
    fn begin(world: &World, seed: u64, faults: Faults) -> Run<'_> {
        let mut random = Random::new(seed.wrapping_mul(31) + 7);
        let server = Server::new(seed, faults, (world.invariant)());
        let home = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
        put(&server, &home);
        for object in (world.objects)(&mut random) {
            put(&server, &object);
        }
        (world.begins)(&server, &mut random);
        Run { world, server, random, managers: Vec::new(), started: 0 }
    }

    async fn whole(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..self.world.managers {
            let manager = self.start();
            self.managers.push(manager);
        }
        for _ in 0..steps {
            self.pause().await;
            self.step().await;
            self.nothing_broke()?;
        }
        self.server.state().faults = Faults::NONE;
        // Actions continue for a while: without faults and new leaders, only changes enqueue keys.
        for _ in 0..steps / QUIET_LIFE {
            self.pause().await;
            match self.random.chance(50) {
                true => (self.world.happens)(&self.server, &mut self.random),
                false => (self.world.goes_on)(&self.server, &mut self.random),
            }
            self.nothing_broke()?;
        }
        self.settle().await?;
        (self.world.at_rest)(&self.server)
    }

    async fn pause(&mut self) {
        let most = self.world.pace.as_millis() as usize;
        sleep(Duration::from_millis(self.random.next(most) as u64)).await;
    }

    fn start(&mut self) -> Manager {
        self.started += 1;
        Manager::start(&self.server, self.world, self.started)
    }

    async fn step(&mut self) {
        let who = self.random.next(self.managers.len());
        match self.random.next(60) {
            0 => {
                self.managers[who].crash();
                self.managers[who] = self.start();
            }
            1 => {
                self.managers[who].stop().await;
                self.managers[who] = self.start();
            }
            2..30 => (self.world.happens)(&self.server, &mut self.random),
            _ => (self.world.goes_on)(&self.server, &mut self.random),
        }
        self.replace_ended();
    }

    /// Restarts a manager that lost the lease, as a supervisor does.
    fn replace_ended(&mut self) {
        for who in 0..self.managers.len() {
            if self.managers[who].task.is_finished() {
                self.managers[who].crash();
                self.managers[who] = self.start();
            }
        }
    }

    fn nothing_broke(&self) -> Result<(), String> {
        if let Some(wrong) = WRONG.take() {
            return Err(wrong);
        }
        let state = self.server.state();
        state.broken.first().map_or(Ok(()), |broken| Err(broken.clone()))
    }

    async fn settle(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..MOST_ROUNDS {
            let before = self.revision();
            for _ in 0..6 {
                sleep(self.world.round / 6).await;
                (self.world.goes_on)(&self.server, &mut self.random);
                self.replace_ended();
            }
            self.nothing_broke()?;
            quiet = if self.revision() == before { quiet + 1 } else { 0 };
            if quiet == QUIET_ROUNDS {
                return Ok(());
            }
        }
        Err("it does not come to rest".to_owned())
    }

    /// Returns the number of writes, without those of leases.
    fn revision(&self) -> u64 {
        let state = self.server.state();
        state.api.model.revision - state.leases
    }
}

/// Creates an object as a user does, with its status.
pub fn put(server: &Server, object: &Value) {
    let path = collection(object);
    if let Err(refused) = server.ask("user", Method::POST, &path, object) {
        panic!("{path}: {}", refused.message);
    }
}

/// Returns the path of the collection of an object.
pub fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
    let kind = super::custom::by_gvk(group, short, object["kind"].as_str().unwrap_or_default());
    let kind = kind.unwrap_or_else(|| panic!("no kind {version} {}", object["kind"]));
    let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
    match kind.namespaced {
        true => format!("{root}/{short}/namespaces/{}/{}", corten_meta::namespace(object), kind.plural),
        false => format!("{root}/{short}/{}", kind.plural),
    }
}

pub fn path_of(object: &Value) -> String {
    format!("{}/{}", collection(object), corten_meta::name(object))
}

/// One manager process.
struct Manager {
    task: JoinHandle<Result<(), Error>>,
    shutdown: CancellationToken,
    cut: Arc<AtomicBool>,
}

impl Manager {
    fn start(server: &Server, world: &World, number: usize) -> Manager {
        let (cut, shutdown) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let (line, wire) = (server.clone(), cut.clone());
        let clients: crate::Clients = Arc::new(move |who: &str| line.client(who, &wire));
        let config = Config {
            identity: format!("manager-{number}"),
            leader_elect: world.managers > 1,
            root_ca: "PEM".to_owned(),
            local_volumes: true,
            load_balancer: Some(LoadBalancerAddresses::Nodes { kept_ports: [22].into() }),
            signing_authorities: SigningAuthorities::all(super::authority()),
            kubelet_serving: Some(KubeletServing::default()),
            controllers: world.controllers.iter().map(|name| (*name).to_owned()).collect(),
            ..Config::default()
        };
        let task = tokio::spawn(crate::run(config, clients, shutdown.clone()));
        Manager { task, shutdown, cut }
    }

    /// Stops at once: requests it has sent may still arrive, but it sends and receives nothing more.
    fn crash(&mut self) {
        self.cut.store(true, Ordering::SeqCst);
        self.task.abort();
        self.shutdown.cancel();
    }

    /// Stops gracefully.
    async fn stop(&mut self) {
        self.shutdown.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(60), &mut self.task).await;
        self.crash();
    }
}

/// Returns the authority of all runs: generated once, because keys take time.
pub fn authority() -> SigningAuthority {
    static AUTHORITY: std::sync::LazyLock<SigningAuthority> = std::sync::LazyLock::new(|| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        SigningAuthority { certificate, key: key.serialize_pem() }
    });
    AUTHORITY.clone()
}
