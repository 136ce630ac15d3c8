//! `corten simulate`: simulated nodes against any API server, or against a control plane of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use corten_client::https::Https;
use corten_client::{Client, Kubeconfig, Transport};
use corten_simulate::{Environment, Usage};
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bench::measure::Processes;
use crate::kubeconfig;
use crate::simulate_cli::{Simulate, SimulatedWatch};

/// The time that a control plane has to start.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// The time that a control plane has to end by itself.
const FAREWELL: Duration = Duration::from_secs(20);
/// The watches of one connection: servers take 100 streams, and requests need some of them.
const WATCHES_OF_CONNECTION: u32 = 50;
/// The pod CIDRs of a control plane of its own: 16384 nodes with 256 addresses each.
const CLUSTER_CIDR: &str = "100.64.0.0/10";

pub async fn run(flags: Simulate, shutdown: CancellationToken) -> Result<()> {
    let config = flags.config();
    config.validate()?;
    let own = match &flags.kubeconfig {
        Some(_) => None,
        None => Some(ControlPlane::start(&shutdown).await?),
    };
    let outcome = simulate(&flags, config, own.as_ref(), shutdown).await;
    let ended = match own {
        Some(own) => own.end().await,
        None => Ok(()),
    };
    outcome.and(ended)
}

async fn simulate(
    flags: &Simulate,
    config: corten_simulate::Config,
    own: Option<&ControlPlane>,
    shutdown: CancellationToken,
) -> Result<()> {
    let path = match own {
        Some(own) => own.kubeconfig(),
        None => {
            kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?
        }
    };
    let pids: Vec<u32> = flags.server_pid.iter().copied().chain(own.and_then(|own| own.process.id())).collect();
    let processes = Processes::new(&pids)?;
    let store = flags.store_dir.clone().or_else(|| own.map(|own| own.directory.join("data/store")));
    let environment = Environment {
        transports: transports(flags, &path)?,
        usage: Box::new(move || usage(&processes, store.as_deref())),
        progress: Box::new(|line| eprintln!("{line}")),
        shutdown,
    };
    let report = corten_simulate::run(config, environment).await?;
    print!("{}", report.table());
    if let Some(file) = &flags.report {
        let json = serde_json::to_vec_pretty(&report.json())?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Returns the transports, each with a connection of its own.
fn transports(flags: &Simulate, path: &Path) -> Result<Vec<Arc<dyn Transport>>> {
    let unusable = || format!("{} cannot be used", path.display());
    let config = Kubeconfig::load(path).and_then(|config| config.https_config(None)).with_context(unusable)?;
    let for_watches = match flags.watch {
        SimulatedWatch::Shared => 0,
        SimulatedWatch::Node => flags.nodes.div_ceil(WATCHES_OF_CONNECTION),
    };
    let connections = u32::from(flags.connections).max(for_watches);
    let connect = |_| Ok(Arc::new(Https::new(config.clone()).with_context(unusable)?) as Arc<dyn Transport>);
    (0..connections).map(connect).collect()
}

fn usage(processes: &Processes, store: Option<&Path>) -> Option<Usage> {
    let load_average = std::fs::read_to_string("/proc/loadavg").ok();
    let load_average = load_average.as_deref().and_then(|line| line.split(' ').next()?.parse().ok());
    processes.are_known().then(|| Usage {
        cpu: processes.cpu_time(),
        resident_bytes: (processes.resident() * f64::from(1 << 20)) as u64,
        store_bytes: store.map_or(0, size),
        load_average: load_average.unwrap_or_default(),
    })
}

/// Returns the size of the files of a directory.
fn size(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).filter(|found| found.is_file()).map(|file| file.len()).sum()
}

/// A control plane of the simulation's own: a process, so that its cost is not mixed with that of the nodes.
struct ControlPlane {
    process: Child,
    directory: PathBuf,
}

impl ControlPlane {
    async fn start(shutdown: &CancellationToken) -> Result<ControlPlane> {
        let directory = std::env::temp_dir().join(format!("corten-simulate-{}", std::process::id()));
        crate::private::directory(&directory)?;
        // Another process may take the port before the server does; the server then ends with a sentence.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?.port();
        let log = std::fs::File::create(directory.join("log"))?;
        let process = Command::new(std::env::current_exe()?)
            .args(["control-plane", "--bind-address", "127.0.0.1", "--cluster-cidr", CLUSTER_CIDR])
            .args(["--node-name", "control-plane", "--node-ip", "127.0.0.1", "--load-balancer", "off"])
            .args(["--port", &port.to_string()])
            .arg("--data-dir")
            .arg(directory.join("data"))
            .arg("--run-dir")
            .arg(directory.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C of a terminal reaches all processes of a group: the server must outlive the simulation.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("the control plane cannot be started")?;
        let mut own = ControlPlane { process, directory };
        let ready = shutdown.run_until_cancelled(own.ready()).await.unwrap_or_else(|| bail!("interrupted"));
        match ready {
            Ok(()) => Ok(own),
            Err(error) => {
                own.end().await?;
                Err(error)
            }
        }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.join("data/kubeconfig/admin.conf")
    }

    /// Waits until the API server is ready.
    async fn ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let log = self.directory.join("log");
        loop {
            if let Some(status) = self.process.try_wait()? {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("the control plane ended with {status}: {}", log.lines().last().unwrap_or_default());
            }
            let path = self.kubeconfig();
            if path.exists() && Client::from_kubeconfig(&path, None)?.get_raw("/readyz").await.is_ok() {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the control plane is not ready after {PATIENCE:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends the process and removes its directory.
    async fn end(mut self) -> Result<()> {
        if let Some(pid) = self.process.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
        if tokio::time::timeout(FAREWELL, self.process.wait()).await.is_err() {
            self.process.kill().await.context("the control plane does not end")?;
        }
        std::fs::remove_dir_all(&self.directory).with_context(|| format!("cannot remove {}", self.directory.display()))
    }
}
