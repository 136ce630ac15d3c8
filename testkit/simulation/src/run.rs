//! The course of one seed: users and faults for some minutes, then no more faults, then rest.

use std::time::Duration;

use testkit_machine::random::Random;
use tokio::task::JoinHandle;

use crate::network::Line;
use crate::promises::Promises;
use crate::users::Users;
use crate::watcher::Watcher;
use crate::world::World;
use crate::{host, rest};

/// The time of users and faults, in simulated seconds.
const TURMOIL_SECONDS: f64 = 600.0;
/// The time in which the cluster comes to rest: pods of a lost node are deleted after five minutes.
const REST_SECONDS: f64 = 1200.0;
const OBSERVE: Duration = Duration::from_secs(5);
/// The longest pause between two acts of users, and between two faults.
const ACT_MILLISECONDS: u64 = 3_000;
const FAULT_MILLISECONDS: u64 = 40_000;
/// The longest time for which a process is gone, a line is cut or the clock is wrong.
const OUTAGE_SECONDS: u64 = 90;
/// The most seconds by which the clock is wrong.
const CLOCK_SECONDS: i64 = 3_600;

/// The outcome of a seed.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A digest of everything that the store ever held.
    pub digest: u64,
    /// The number of changes.
    pub revision: u64,
    /// The promises that were broken; none in a correct program.
    pub broken: Vec<String>,
    /// The acts and faults, with their times.
    pub journal: Vec<String>,
}

/// Runs a seed, with the store in the current directory. A process runs one seed: some libraries count in static variables.
pub fn run(seed: u64) -> Outcome {
    // In a thread of its own, which has drawn no random number before.
    let simulated = std::thread::spawn(move || {
        host::begin(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let outcome = runtime.expect("a runtime").block_on(course(seed));
        host::end();
        outcome
    });
    simulated.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn course(seed: u64) -> Outcome {
    let mut simulation = Simulation::start(seed).await;
    simulation.turmoil().await;
    simulation.heal().await;
    simulation.come_to_rest().await;
    simulation.end().await
}

struct Simulation {
    world: World,
    promises: Promises,
    following: Option<JoinHandle<()>>,
    watcher: Watcher,
    watching: JoinHandle<()>,
    users: Users,
    /// A line without faults of its own.
    line: Line,
    random: Random,
    /// The repairs that are due, and the times.
    repairs: Vec<Due>,
    journal: Vec<String>,
    broken: Vec<String>,
}

/// A repair, and its time in seconds.
struct Due {
    at: f64,
    repair: Repair,
}

#[derive(Clone, Copy, Debug)]
enum Repair {
    StartServer,
    StartControllers,
    StartScheduler,
    MendLine(usize),
    SetClock,
}

impl Simulation {
    async fn start(seed: u64) -> Simulation {
        let world = World::start(seed ^ 1).await;
        let promises = Promises::default();
        let following = Some(promises.follow(&world.store().expect("the server runs")).await);
        let line = world.network.line();
        let users = Users::new(world.admin(&world.network.line()), seed ^ 2);
        let watcher = Watcher::default();
        let watching = watcher.start(&world.admin(&world.network.line()));
        users.prepare().await.expect("no fault has happened yet");
        Simulation {
            world,
            promises,
            following,
            watcher,
            watching,
            users,
            line,
            random: Random::new(seed ^ 3),
            repairs: Vec::new(),
            journal: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// Lets users act and faults happen.
    async fn turmoil(&mut self) {
        self.world.network.set_faulty(true);
        let mut next_fault = self.in_at_most(FAULT_MILLISECONDS);
        while host::seconds() < TURMOIL_SECONDS {
            let pause = Duration::from_millis(self.random.below(ACT_MILLISECONDS));
            tokio::time::sleep(pause).await;
            self.users.act().await;
            self.repair_due().await;
            if self.world.is_store_broken() {
                self.note("the disk failed, and the server starts again".to_owned());
                self.promises.forgive_owners();
                self.restart_server().await;
            }
            if host::seconds() >= next_fault {
                self.fault().await;
                next_fault = self.in_at_most(FAULT_MILLISECONDS);
            }
        }
    }

    fn in_at_most(&mut self, milliseconds: u64) -> f64 {
        host::seconds() + self.random.below(milliseconds) as f64 / 1000.0
    }

    async fn fault(&mut self) {
        let node = self.random.below(self.world.nodes.len() as u64) as usize;
        let repair = match self.random.below(6) {
            0 => {
                self.kill_server().await;
                Repair::StartServer
            }
            1 => {
                self.world.kill_controllers();
                Repair::StartControllers
            }
            2 => {
                self.world.kill_scheduler();
                Repair::StartScheduler
            }
            3 => {
                self.world.nodes[node].set_cut(true);
                Repair::MendLine(node)
            }
            4 => {
                host::fail_sync_after(self.random.below(50));
                return self.note("a sync will fail".to_owned());
            }
            _ => {
                let seconds = self.random.below(2 * CLOCK_SECONDS as u64) as i64 - CLOCK_SECONDS;
                host::set_clock_wrong_by(seconds);
                Repair::SetClock
            }
        };
        let at = self.in_at_most(OUTAGE_SECONDS * 1000);
        self.note(format!("a fault that ends at {at:.3} with {repair:?}"));
        self.repairs.push(Due { at, repair });
    }

    async fn repair_due(&mut self) {
        let now = host::seconds();
        let (due, later) = std::mem::take(&mut self.repairs).into_iter().partition(|one: &Due| one.at <= now);
        self.repairs = later;
        for Due { repair, .. } in due {
            self.repair(repair).await;
        }
    }

    async fn repair(&mut self, repair: Repair) {
        self.note(format!("{repair:?}"));
        match repair {
            Repair::StartServer => self.start_server().await,
            Repair::StartControllers => self.world.start_controllers(),
            Repair::StartScheduler => self.world.start_scheduler(),
            Repair::MendLine(node) => self.world.nodes[node].set_cut(false),
            Repair::SetClock => host::set_clock_wrong_by(0),
        }
    }

    async fn kill_server(&mut self) {
        self.world.kill_server().await;
        // Everything that the store wrote is seen before the next one opens.
        if let Some(following) = self.following.take() {
            following.await.expect("the promises are followed to the end");
        }
    }

    async fn start_server(&mut self) {
        if self.world.store().is_some() {
            return;
        }
        host::heal_disk();
        self.world.start_server().await;
        self.following = Some(self.promises.follow(&self.world.store().expect("the server runs")).await);
    }

    async fn restart_server(&mut self) {
        self.kill_server().await;
        self.start_server().await;
    }

    /// Ends all faults.
    async fn heal(&mut self) {
        self.note("all faults end".to_owned());
        self.world.network.set_faulty(false);
        host::heal_disk();
        host::set_clock_wrong_by(0);
        if self.world.is_store_broken() {
            self.promises.forgive_owners();
            self.kill_server().await;
        }
        self.start_server().await;
        self.world.start_controllers();
        self.world.start_scheduler();
        self.world.nodes.iter().for_each(|line| line.set_cut(false));
    }

    /// Waits until the cluster has done what its users want.
    async fn come_to_rest(&mut self) {
        if let Err(error) = self.users.settle().await {
            return self.broken.push(format!("a request fails without a fault: {error}"));
        }
        let client = self.world.admin(&self.line);
        let deadline = host::seconds() + REST_SECONDS;
        loop {
            tokio::time::sleep(OBSERVE).await;
            let unrest = match rest::unrest(&client, &self.users.written).await {
                Ok(unrest) => unrest,
                Err(error) => vec![format!("a request fails without a fault: {error}")],
            };
            if unrest.is_empty() {
                return self.note("the cluster is at rest".to_owned());
            }
            if host::seconds() > deadline {
                return self.broken.extend(unrest.into_iter().map(|one| format!("no rest: {one}")));
            }
        }
    }

    /// Compares what the watch showed, and ends the world.
    async fn end(mut self) -> Outcome {
        let changes = self.promises.pod_changes();
        let last = changes.last().map_or(0, |change| change.revision);
        let deadline = host::seconds() + REST_SECONDS;
        while self.watcher.revision() < last && host::seconds() < deadline {
            tokio::time::sleep(OBSERVE).await;
        }
        if self.watcher.revision() < last {
            self.broken.push(format!("a watch is at {} and never reaches {last}", self.watcher.revision()));
        }
        self.watching.abort();
        self.broken.extend(self.watcher.difference(&changes));
        self.broken.extend(self.promises.broken());
        let mut journal = self.journal;
        journal.extend(self.users.journal);
        journal.sort();
        let outcome = Outcome {
            digest: self.promises.digest(),
            revision: self.promises.revision(),
            broken: self.broken,
            journal,
        };
        self.world.stop().await;
        outcome
    }

    fn note(&mut self, what: String) {
        self.journal.push(format!("{:>9.3} {what}", host::seconds()));
    }
}
