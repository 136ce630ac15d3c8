//! The course of a simulation: register the nodes, fill them, measure, report, remove.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_client::{Caches, Client, Transport};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::{self, Fleet};
use crate::kubelets::{self, Counts, Observers};
use crate::load::Users;
use crate::recorder::Recorder;
use crate::report::{self, Report, ServerUse, Startup};
use crate::startup::StartupTimes;
use crate::{Config, Error};

/// The interval of observations: of the pods that run, and of the server's memory.
const OBSERVE: Duration = Duration::from_secs(1);
/// The observations between two lines of progress.
const PROGRESS: u32 = 10;

/// The surroundings of a simulation, which only the program knows.
pub struct Environment {
    /// The connections to the API server, over which the nodes are spread; at least one.
    pub transports: Vec<Arc<dyn Transport>>,
    /// Returns the cost of the server so far; `None` if its process is not known.
    pub usage: Box<dyn Fn() -> Option<Usage> + Send + Sync>,
    /// Prints a line of progress.
    pub progress: Box<dyn Fn(String) + Send + Sync>,
    /// Ends the simulation early, with a report.
    pub shutdown: CancellationToken,
}

/// The cost of a server at one time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_bytes: u64,
    /// The size of the store's files; zero if it is not known.
    pub store_bytes: u64,
    pub load_average: f64,
}

/// Runs a simulation to its end. What it created is removed, also if it fails, unless the settings keep it.
pub async fn run(config: Config, environment: Environment) -> Result<Report, Error> {
    config.validate()?;
    let config = Arc::new(config);
    let recorder = Recorder::default();
    let transports = environment.transports.iter().map(|transport| recorder.measured(transport.clone()));
    let transports: Vec<Arc<dyn Transport>> = transports.collect();
    let Some(first) = transports.first().cloned() else {
        return Err(Error::Config("a simulation needs a connection".to_owned()));
    };
    let client = fleet::client(first);
    // Kubelets run on until the last object is removed.
    let scope =
        Scope { tasks: TaskTracker::new(), heartbeats: CancellationToken::new(), kubelets: CancellationToken::new() };
    let caches = Caches::new(client.clone(), scope.kubelets.clone());
    let startup = Arc::new(StartupTimes::default());
    let counts = Arc::new(Counts::default());
    let users = Users { config: config.clone(), client: client.clone(), startup: startup.clone() };
    let fleet = Arc::new(Fleet::new(&config, &transports, &caches));
    let simulation = Simulation { config, environment, recorder, startup, counts, users, fleet, client };

    let outcome = simulation.simulate(&scope).await;
    let removed = simulation.remove(&scope).await;
    scope.end().await;
    caches.ended().await;
    let report = outcome?;
    removed?;
    Ok(report)
}

/// Runs nodes alone, without workloads or a report, until the shutdown. Their requests are spread over the transports.
pub async fn run_nodes(
    config: Config,
    transports: &[Arc<dyn Transport>],
    shutdown: CancellationToken,
) -> Result<(), Error> {
    config.validate()?;
    let config = Arc::new(config);
    let Some(first) = transports.first() else {
        return Err(Error::Config("a simulation needs a connection".to_owned()));
    };
    let client = fleet::client(first.clone());
    let caches = Caches::new(client.clone(), shutdown.clone());
    let fleet = Arc::new(Fleet::new(&config, transports, &caches));
    fleet.register().await?;
    let observers = Observers { startup: Arc::default(), counts: Arc::default() };
    let drive = kubelets::drive(config, fleet.clone(), client, observers, shutdown.clone());
    tokio::join!(fleet.beat(shutdown), drive);
    caches.ended().await;
    Ok(())
}

/// The tasks of the nodes, which end in this order: first the heartbeats, then the pods.
struct Scope {
    tasks: TaskTracker,
    heartbeats: CancellationToken,
    kubelets: CancellationToken,
}

impl Scope {
    async fn end(&self) {
        self.heartbeats.cancel();
        self.kubelets.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

struct Simulation {
    config: Arc<Config>,
    environment: Environment,
    recorder: Recorder,
    startup: Arc<StartupTimes>,
    counts: Arc<Counts>,
    users: Users,
    fleet: Arc<Fleet>,
    client: Client,
}

impl Simulation {
    async fn simulate(&self, scope: &Scope) -> Result<Report, Error> {
        match self.environment.shutdown.run_until_cancelled(self.prepare(scope)).await {
            Some(fill) => self.measure(fill?).await,
            None => Err(Error::Late("interrupted before all pods ran".to_owned())),
        }
    }

    /// Starts the nodes and fills them; returns the time until all pods ran.
    async fn prepare(&self, scope: &Scope) -> Result<Duration, Error> {
        let began = Instant::now();
        self.fleet.register().await?;
        self.say(format!("{} nodes are registered after {:.1} s", self.config.nodes, began.elapsed().as_secs_f64()));
        let fleet = self.fleet.clone();
        let heartbeats = scope.heartbeats.clone();
        scope.tasks.spawn(async move { fleet.beat(heartbeats).await });
        let drive = kubelets::drive(
            self.config.clone(),
            self.fleet.clone(),
            self.client.clone(),
            Observers { startup: self.startup.clone(), counts: self.counts.clone() },
            scope.kubelets.clone(),
        );
        scope.tasks.spawn(drive);
        let filling = Instant::now();
        self.users.create().await?;
        self.filled().await?;
        Ok(if self.config.pods_of_deployments() > 0 { filling.elapsed() } else { Duration::ZERO })
    }

    /// Waits until all pods of the Deployments run.
    async fn filled(&self) -> Result<(), Error> {
        let wanted = self.config.pods_of_deployments();
        let began = Instant::now();
        let mut observations = 0;
        while self.counts.ready() < wanted {
            if began.elapsed() > self.config.patience {
                let ready = self.counts.ready();
                return Err(Error::Late(format!("{ready} of {wanted} pods run after {:?}", self.config.patience)));
            }
            tokio::time::sleep(OBSERVE).await;
            observations += 1;
            if observations % PROGRESS == 0 {
                self.say(format!("{} of {wanted} pods run", self.counts.ready()));
            }
        }
        Ok(())
    }

    /// Loads the cluster and measures it for the duration of the settings.
    async fn measure(&self, fill: Duration) -> Result<Report, Error> {
        let ended = self.environment.shutdown.child_token();
        self.recorder.take();
        self.startup.take();
        let began = Instant::now();
        let before = (self.environment.usage)();
        let mut peak = 0;
        let observe = async {
            loop {
                peak = peak.max((self.environment.usage)().map_or(0, |usage| usage.resident_bytes));
                tokio::time::sleep(OBSERVE).await;
                if self.config.duration.is_some_and(|duration| began.elapsed() >= duration) {
                    ended.cancel();
                    return;
                }
            }
        };
        let _ = tokio::join!(self.users.load(&ended), ended.run_until_cancelled(observe));
        let span = began.elapsed();
        let after = (self.environment.usage)();
        let times = self.startup.take();
        let server = before.zip(after).map(|(before, after)| server_use(&before, &after, peak, span));
        Ok(Report {
            nodes: self.config.nodes,
            pods: self.counts.pods(),
            seconds: span.as_secs_f64(),
            fill_seconds: fill.as_secs_f64(),
            calls: report::calls(self.recorder.take()),
            bound: Startup::of(&times.bound),
            running: Startup::of(&times.running),
            server,
        })
    }

    async fn remove(&self, scope: &Scope) -> Result<(), Error> {
        if self.config.keep {
            self.say(format!("the nodes stay, and become NotReady: kubectl delete node -l {}", crate::node::SIMULATED));
            return Ok(());
        }
        self.counts.hurry();
        let removed = self.users.remove(&|line| self.say(line)).await;
        scope.heartbeats.cancel();
        removed.and(self.fleet.remove(&self.client).await)
    }

    fn say(&self, line: String) {
        (self.environment.progress)(line);
    }
}

fn server_use(before: &Usage, after: &Usage, peak: u64, span: Duration) -> ServerUse {
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let hours = span.as_secs_f64() / 3600.0;
    let growth = mebibytes(after.store_bytes) - mebibytes(before.store_bytes);
    ServerUse {
        cores: report::cores(after.cpu.saturating_sub(before.cpu), span),
        resident_mib: mebibytes(after.resident_bytes),
        peak_resident_mib: mebibytes(peak.max(after.resident_bytes)),
        store_mib: mebibytes(after.store_bytes),
        store_mib_per_hour: if hours > 0.0 { growth / hours } else { 0.0 },
        load_average: after.load_average,
    }
}
