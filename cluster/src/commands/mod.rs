//! The commands: one file each. Those that run components set up logging and the asynchronous runtime here.

pub mod audit;
mod backup;
pub mod certificate;
pub mod cni;
mod conditions;
mod console;
mod down;
mod etcd_check;
mod image;
mod ingress;
mod logs;
mod member_table;
mod migrate;
mod node;
mod recover;
mod restore;
mod rotate;
mod simulate;
mod status;
mod store;
mod support;
mod token;
mod top;
mod trace;
mod up;
mod upgrade;
mod why;
mod why_questions;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use anyhow::{Context, Result, ensure};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backup_cli::Keep;
use crate::bench_cli::Bench;
use crate::cli::{self, Cli, Command, Config, Join};
use crate::config::{Cluster, Node};
use crate::directories::Directories;
use crate::log_file::LogOptions;
use crate::progress::Progress;
use crate::store_cli::{Etcd, Store};
use crate::user_cli::Ingress;
use crate::{
    addresses, bench, broken_output, components, config_file, instance, join, log_file, membership, preflight,
    restored, secrets, supervision,
};

/// Runs one command until it is done.
pub fn run(cli: Cli) -> Result<()> {
    // One provider for all of TLS, chosen in one place.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if matches!(
        cli.command,
        Command::Up(_)
            | Command::Down(_)
            | Command::Status(_)
            | Command::Audit(_)
            | Command::Logs(_)
            | Command::Image(_)
            | Command::Token(_)
            | Command::Why(_)
            | Command::Top(_)
            | Command::Trace(_)
            | Command::Ingress(_)
            | Command::Console(_)
            | Command::Etcd(_)
            | Command::Store(_)
            | Command::Keep(_)
            | Command::Config(_)
            | Command::Support(_)
            | Command::Certificate(_)
            | Command::Ca(_)
            | Command::ServiceAccountKey(_)
            | Command::EncryptionKey(_)
            | Command::Node(_)
    ) {
        broken_output::end_with_the_reader();
    }
    match cli.command {
        Command::Up(flags) => up::run(&flags, &cli.log),
        Command::Down(flags) => down::run(&flags),
        Command::Status(directories) => block_on(status::run(&directories)),
        Command::Audit(flags) => block_on(audit::run(&flags)),
        Command::Logs(flags) => logs::run(&flags),
        Command::Image(command) => block_on(image::run(command)),
        Command::Top(flags) => block_on(top::run(&flags)),
        Command::Why(flags) => block_on(why::run(&flags)),
        Command::Trace(flags) => block_on(trace::run(&flags)),
        Command::Ingress(Ingress::Import(flags)) => block_on(ingress::run(&flags)),
        Command::Support(flags) => block_on(support::run(&flags, &cli.config_file)),
        Command::Console(flags) => block_on(console::run(&flags)),
        Command::Token(command) => block_on(token::run(command)),
        Command::Etcd(Etcd::Check(flags)) => block_on(etcd_check::run(&flags)),
        Command::Store(Store::Migrate(flags)) => block_on(migrate::run(&flags)),
        Command::Store(Store::Verify { directories }) => store::verify(&directories),
        Command::Store(Store::Repair { directories }) => store::repair(&directories),
        Command::Keep(Keep::Backup(flags)) => block_on(backup::run(&flags)),
        Command::Keep(Keep::Restore(flags)) => block_on(restore::run(&flags)),
        Command::Config(Config::Check) => {
            let count = config_file::check(&cli.config_file)?;
            println!("{} is valid: {count} settings", cli.config_file.display());
            Ok(())
        }
        Command::Certificate(command) => certificate::run(&command),
        Command::Ca(command) => block_on(rotate::ca(command)),
        Command::ServiceAccountKey(command) => block_on(rotate::service_account_key(command)),
        Command::EncryptionKey(command) => block_on(rotate::encryption_key(command)),
        Command::Node(command) => block_on(node::run(command)),
        Command::Keep(Keep::Upgrade(flags)) => block_on(upgrade::run(&flags)),
        Command::Keep(Keep::Recover(flags)) => block_on(recover::run(&flags)),
        Command::Bench(Bench::Api(flags)) => {
            raise_open_files();
            block_on(bench::run(&flags))
        }
        Command::Simulate(flags) => {
            start_log(&cli.log)?;
            raise_open_files();
            until_signal(|shutdown| simulate::run(flags, shutdown))
        }
        Command::ControlPlane(flags) => {
            start_log(&cli.log)?;
            raise_open_files();
            let cluster = Cluster::from_flags(&flags)?;
            preflight::data_directory(&cluster.node.directories)?;
            let _lock = instance::acquire(&cluster.node.directories)?;
            until_signal(|shutdown| components::control_plane::run(cluster, shutdown))
        }
        Command::Server(flags) => {
            start_log(&cli.log)?;
            let progress = Progress::new(flags.progress_fd);
            server(flags, &progress).inspect_err(|error| progress.failed(&format!("{error:#}")))
        }
        Command::Agent(mut flags) => {
            start_log(&cli.log)?;
            take_token(&mut flags.join)?;
            let directories = Directories::of(&flags.directories);
            preflight::node(&directories)?;
            let lock = instance::acquire(&directories)?;
            let outcome = until_moved(agent_addresses(&flags), |shutdown| components::agent(flags.clone(), shutdown))?;
            drop(lock);
            outcome.begin_again()
        }
        Command::Apiserver(mut flags) => {
            start_log(&cli.log)?;
            raise_open_files();
            let options = &flags.membership;
            ensure!(
                !options.cluster_init && options.join.is_none(),
                "several servers are `corten server`s; an API server alone takes --etcd-servers"
            );
            restored::adopt(&mut flags)?;
            let cluster = Cluster::from_flags(&flags)?;
            preflight::data_directory(&cluster.node.directories)?;
            let _lock = instance::acquire(&cluster.node.directories)?;
            let directories = cluster.node.directories.clone();
            until_signal(|shutdown| components::apiserver::alone(cluster, shutdown))
                .inspect_err(|error| instance::record_failure(&directories, &format!("{error:#}")))
        }
        Command::ControllerManager(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::alone::controller_manager(flags, shutdown))
        }
        Command::CloudControllerManager(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::cloud::alone(flags, shutdown))
        }
        Command::EbsDriver(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::ebs::alone(flags, shutdown))
        }
        Command::Scheduler(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::alone::scheduler(flags, shutdown))
        }
        Command::Kubelet(mut flags) => {
            start_log(&cli.log)?;
            take_token(&mut flags.agent.join)?;
            until_signal(|shutdown| components::alone::kubelet(flags, shutdown))
        }
        Command::Proxy(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::alone::proxy(flags, shutdown))
        }
        Command::Runtime(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::alone::runtime(flags, shutdown))
        }
        Command::Dns(flags) => {
            start_log(&cli.log)?;
            until_signal(|shutdown| components::alone::dns(flags, shutdown))
        }
        Command::Edge(flags) => {
            start_log(&cli.log)?;
            raise_open_files();
            until_signal(|shutdown| components::edge::alone(flags, shutdown))
        }
    }
}

/// Takes the join token from the arguments, or from standard input.
fn take_token(join: &mut Join) -> Result<()> {
    if let Some(token) = &mut join.token {
        *token = secrets::one(token).context("--token")?;
    }
    Ok(())
}

fn server(mut flags: cli::Server, progress: &Progress) -> Result<()> {
    if let Some(token) = &mut flags.membership.token {
        *token = secrets::one(token).context("--token")?;
    }
    restored::adopt(&mut flags)?;
    // Flags that no cluster could have are refused before anything else.
    Cluster::from_flags(&flags)?;
    preflight::root()?;
    raise_open_files();
    let directories = Directories::of(&flags.directories);
    let lock = instance::acquire(&directories)?;
    let run = || {
        let entered = block_on(membership::enter(flags))?;
        let mut cluster = Cluster::from_flags(&entered.flags)?;
        cluster.several_servers |= entered.membership.is_some();
        preflight::server(&cluster)?;
        let own = match entered.flags.node_ip.is_empty() {
            true => cluster.node.addresses.clone(),
            // An address of a flag is the user's.
            false => Vec::new(),
        };
        let flags = entered.flags;
        let found = move || Ok(Cluster::from_flags(&flags)?.node.addresses);
        let watched = Watched { own, found: Box::new(found) };
        until_moved(watched, |shutdown| components::server(cluster, entered.membership, progress.clone(), shutdown))
    };
    let outcome = run().inspect_err(|error| instance::record_failure(&directories, &format!("{error:#}")))?;
    drop(lock);
    outcome.begin_again()
}

/// The addresses of a node that may change while it runs.
struct Watched {
    /// The node's addresses; none that are watched.
    own: Vec<IpAddr>,
    found: Box<dyn Fn() -> Result<Vec<IpAddr>>>,
}

/// Returns the addresses of an agent, unless a flag names them.
fn agent_addresses(flags: &cli::Agent) -> Watched {
    let settings = join::settings::remembered(&Directories::of(&flags.directories));
    let is_given = !flags.node_ip.is_empty();
    let flags = flags.clone();
    let found = move || Ok(Node::from_flags(&flags, &settings)?.addresses);
    let own = if is_given { Vec::new() } else { found().unwrap_or_default() };
    Watched { own, found: Box::new(found) }
}

/// How components ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Stopped,
    /// The machine has other addresses.
    Moved,
}

impl Outcome {
    /// Begins again if the addresses have changed.
    fn begin_again(self) -> Result<()> {
        match self {
            Outcome::Stopped => Ok(()),
            Outcome::Moved => addresses::begin_again(),
        }
    }
}

/// Runs components until they end, a signal ends them, or the machine's addresses change.
fn until_moved<F>(watched: Watched, start: impl FnOnce(CancellationToken) -> F) -> Result<Outcome>
where
    F: Future<Output = Result<()>>,
{
    until_signal(|shutdown| async move {
        let round = shutdown.child_token();
        let running = start(round.clone());
        tokio::pin!(running);
        let Watched { own, found } = watched;
        tokio::select! {
            outcome = &mut running => outcome.map(|()| Outcome::Stopped),
            () = addresses::lost(&own, found), if !own.is_empty() => {
                round.cancel();
                running.await?;
                Ok(if shutdown.is_cancelled() { Outcome::Stopped } else { Outcome::Moved })
            }
        }
    })
}

/// Raises the limit of open files to the maximum: a thousand watches are a thousand connections.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| match soft < hard {
        true => setrlimit(Resource::RLIMIT_NOFILE, hard, hard),
        false => Ok(()),
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Runs components until they end, or until a signal ends them.
fn until_signal<F, T>(start: impl FnOnce(CancellationToken) -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    block_on(async {
        let shutdown = CancellationToken::new();
        let signalled = shutdown.clone();
        let listening = tokio::spawn(async move {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut terminate), Ok(mut interrupt)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                return;
            };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            supervision::stop();
            signalled.cancel();
        });
        let _listening = AbortOnDropHandle::new(listening);
        let _watched = AbortOnDropHandle::new(tokio::spawn(supervision::watch(shutdown.clone())));
        start(shutdown).await
    })
}

/// Runs a future, boxed first: the runtime would otherwise be compiled again around each command's future.
fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let future: Pin<Box<dyn Future<Output = Result<T>> + '_>> = Box::pin(future);
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .context("the asynchronous runtime cannot start")?
        .block_on(future)
}

/// Begins the log: on standard error, which systemd's journal takes, or in a file of bounded size.
fn start_log(options: &LogOptions) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&options.log).context("--log")?;
    // A line that cannot be written, as on a full disk, is lost. Saying so on a standard error that cannot be written either
    // would panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    match &options.log_file {
        Some(path) => log.with_writer(log_file::LogFile::open(path, options.bytes())?).with_ansi(false).init(),
        None => {
            let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
            log.with_writer(std::io::stderr).with_ansi(is_terminal).init();
        }
    }
    Ok(())
}

/// Prints rows as kubectl does: columns as wide as their widest cell, three spaces apart.
fn print_table<const N: usize>(rows: &[[String; N]]) {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", cells.join("   ").trim_end());
    }
}
