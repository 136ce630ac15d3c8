//! `corten up`: starts the server in the background, shows its progress, and returns when the cluster is ready.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::cli;
use crate::config::Cluster;
use crate::directories::{Directories, absolute};
use crate::log_file::LogOptions;
use crate::progress::STEPS;
use crate::{config_file, instance, kubeconfig, preflight, private, secrets};

pub fn run(flags: &cli::Up, log: &LogOptions) -> Result<()> {
    preflight::root()?;
    let cluster = Cluster::from_flags(&flags.server)?;
    let directories = &cluster.node.directories;
    let start = Instant::now();
    match instance::running(directories)? {
        Some(pid) => {
            same_settings(pid, &flags.server)?;
            println!("corten is already running (pid {pid})");
        }
        None => {
            start_server(&flags.server, directories, log, Duration::from_secs(flags.timeout))?;
            println!("corten is ready after {:.2} s", start.elapsed().as_secs_f64());
        }
    }
    if !flags.no_kubeconfig {
        let admin = directories.kubeconfig("admin");
        match kubeconfig::user_file(flags.kubeconfig.as_deref()) {
            Some(path) => {
                kubeconfig::merge(&path, &kubeconfig::read(&admin)?)?;
                // The server renews the certificate in it.
                let path = absolute(&path);
                private::write(&directories.user_kubeconfig(), path.to_string_lossy().as_bytes())?;
                println!("kubectl uses it through the context {:?} in {}", kubeconfig::NAME, path.display());
            }
            None => println!("there is no home directory to put a kubeconfig into; use {}", admin.display()),
        }
    }
    Ok(())
}

/// Refuses settings that the running server does not have: the command would report settings that are not in force.
fn same_settings(pid: i32, wanted: &cli::Server) -> Result<()> {
    let Some(running) = instance::flags(pid)? else { return Ok(()) };
    match first_difference(wanted, &running) {
        None => Ok(()),
        Some(flag) => bail!(
            "corten is already running (pid {pid}) with another {flag}; stop it by `corten down` and start it again"
        ),
    }
}

/// Returns the first flag of `wanted` that `running` does not have with the same value.
fn first_difference(wanted: &cli::Server, running: &cli::Server) -> Option<String> {
    let wanted = arguments(wanted);
    let running = arguments(running);
    let plain = cli::Cli::parse_from(["corten", "server"]);
    let cli::Command::Server(plain) = plain.command else { return None };
    let plain = arguments(&plain);
    let has = |list: &[OsString], pair: &[OsString]| list.chunks(2).any(|other| other == pair);
    let missing = wanted.chunks(2).find(|pair| !has(&plain, pair) && !has(&running, pair))?;
    Some(missing[0].to_string_lossy().into_owned())
}

fn start_server(flags: &cli::Server, directories: &Directories, log: &LogOptions, patience: Duration) -> Result<()> {
    // The check precedes every write: a directory of another program must not even get a log file.
    preflight::data_directory(directories)?;
    let log_file = private::append(&directories.log())?;
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let server = spawn(flags, log, log_file, writer.into())?;
    let outcome = follow(reader, patience);
    if outcome.is_err() {
        // A failed start leaves nothing behind.
        let _ = instance::stop(server.id() as i32, Duration::from_secs(10));
    }
    outcome.with_context(|| format!("the cluster did not start (its log is {})", directories.log().display()))
}

fn spawn(flags: &cli::Server, log: &LogOptions, log_file: File, progress: OwnedFd) -> Result<Child> {
    let executable = std::env::current_exe().context("this program's own path is unknown")?;
    let descriptor = progress.as_raw_fd();
    let mut command = Command::new(executable);
    command
        .arg("server")
        .args(arguments(flags))
        // Its flags are complete.
        .args(["--config-file", config_file::NONE])
        .args(["--log", &log.log, "--progress-fd", &descriptor.to_string()])
        .arg("--log-file")
        .arg(Directories::of(&flags.directories).log())
        .args(["--log-file-max-size", &log.log_file_max_size.to_string()])
        .stdin(token_input(flags)?)
        .stdout(log_file.try_clone()?)
        .stderr(log_file)
        .current_dir("/");
    // SAFETY: setsid and fcntl are async-signal-safe, and nothing is allocated between fork and exec.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            if libc::fcntl(descriptor, libc::F_SETFD, 0) == -1 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn().context("the server cannot be started")?;
    // Our own end of the writer closes here, so that the server's death closes the pipe.
    drop(progress);
    Ok(child)
}

/// Returns the server's standard input: the token by which it joins others, if it does.
fn token_input(flags: &cli::Server) -> Result<Stdio> {
    match &flags.membership.token {
        None => Ok(Stdio::null()),
        Some(token) => secrets::as_input(&secrets::one(token).context("--token")?),
    }
}

/// Returns the flags as arguments of the server.
fn arguments(flags: &cli::Server) -> Vec<OsString> {
    let mut list: Vec<OsString> = Vec::new();
    let mut flag = |name: &str, value: OsString| list.extend([name.into(), value]);
    // The server has another working directory, so its paths must not depend on ours.
    let directories = Directories::of(&flags.directories);
    flag("--data-dir", directories.data.into());
    flag("--run-dir", directories.run.into());
    if let Some(nodes) = flags.nodes {
        flag("--nodes", nodes.to_string().into());
    }
    if let Some(servers) = flags.servers {
        flag("--servers", servers.to_string().into());
    }
    if let Some(name) = &flags.node_name {
        flag("--node-name", name.into());
    }
    if !flags.node_ip.is_empty() {
        let addresses: Vec<String> = flags.node_ip.iter().map(ToString::to_string).collect();
        flag("--node-ip", addresses.join(",").into());
    }
    flag("--bind-address", flags.bind_address.to_string().into());
    flag("--port", flags.port.to_string().into());
    flag("--kubelet-port", flags.kubelet_port.to_string().into());
    flag("--cluster-cidr", flags.cluster_cidr.clone().into());
    flag("--service-cidr", flags.service_cidr.clone().into());
    flag("--cluster-domain", flags.cluster_domain.clone().into());
    flag("--bridge", flags.bridge.clone().into());
    if flags.load_balancer_pool.is_empty() {
        flag("--load-balancer", flags.load_balancer.name().into());
    } else {
        flag("--load-balancer-pool", flags.load_balancer_pool.join(",").into());
    }
    if let Some(backend) = flags.network_backend {
        flag("--network-backend", backend.name().into());
    }
    flag("--proxy-mode", flags.proxy_mode.name().into());
    for domain in &flags.dns_stub_domain {
        flag("--dns-stub-domain", domain.into());
    }
    for name in &flags.tls_san {
        flag("--tls-san", name.into());
    }
    if let Some(path) = &flags.scheduler_config {
        flag("--scheduler-config", absolute(path).into());
    }
    let audit = &flags.audit;
    for (name, path) in [
        ("--audit-policy-file", &audit.audit_policy_file),
        ("--audit-log-path", &audit.audit_log_path),
        ("--audit-webhook-config-file", &audit.audit_webhook_config_file),
    ] {
        if let Some(path) = path {
            let standard_output = path == std::path::Path::new("-");
            let path = if standard_output { path.clone() } else { std::path::absolute(path).unwrap_or(path.clone()) };
            flag(name, path.into());
        }
    }
    flag("--audit-log-maxsize", audit.audit_log_maxsize.to_string().into());
    flag("--audit-log-maxbackup", audit.audit_log_maxbackup.to_string().into());
    flag("--audit-log-maxage", audit.audit_log_maxage.to_string().into());
    if flags.disable_scheduler {
        list.push("--disable-scheduler".into());
    }
    list.extend(flags.membership.arguments());
    list.extend(flags.network.arguments());
    list.extend(flags.edge.arguments());
    list.extend(flags.store.arguments());
    list.extend(flags.access.arguments());
    list.extend(flags.backup.arguments());
    list.extend(flags.certificates.arguments());
    list.extend(flags.cloud.arguments());
    list.extend(flags.kubelet.arguments());
    // This flag is not among those that further nodes get too: it applies to the first node only.
    if let Some(dir) = &flags.kubelet.root_dir {
        list.extend(["--root-dir".into(), absolute(dir).into()]);
    }
    list
}

/// Shows the milestones, until the last one or the first error.
fn follow(reader: std::io::PipeReader, patience: Duration) -> Result<()> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let bar = bar();
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => {
                if let Some(why) = line.strip_prefix("error ") {
                    bar.finish_and_clear();
                    bail!("{why}");
                }
                bar.inc(1);
                bar.set_message(line.clone());
                if line == "ready" {
                    bar.finish_and_clear();
                    return Ok(());
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("it was not ready within {} s", patience.as_secs()),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the server ended while it was starting"),
        }
    }
}

fn bar() -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(STEPS.len() as u64);
    if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner} [{bar:24}] {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(80));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(words: &[&str]) -> cli::Server {
        match cli::Cli::parse_from([&["corten", "server"], words].concat()).command {
            cli::Command::Server(server) => server,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_that_differ_from_the_running_cluster_are_refused() {
        for (wanted, running, difference) in [
            (&[][..], &[][..], None),
            (&[], &["--nodes", "3"], None),
            (&["--nodes", "3"], &["--nodes", "3", "--port", "7443"], None),
            (&["--nodes", "3"], &[], Some("--nodes")),
            (&["--port", "7443"], &["--nodes", "3"], Some("--port")),
            (&["--tls-san", "a"], &["--tls-san", "b"], Some("--tls-san")),
        ] {
            assert_eq!(first_difference(&server(wanted), &server(running)).as_deref(), difference, "{wanted:?}");
        }
    }

    #[test]
    fn the_servers_command_line_has_the_flags_of_up() {
        let up = cli::Cli::parse_from([
            "corten",
            "up",
            "--nodes",
            "3",
            "--port",
            "7443",
            "--node-ip",
            "10.0.0.1",
            "--tls-san",
            "a",
            "--tls-san",
            "b",
            "--root-dir",
            "/var/lib/kubelet",
        ]);
        let cli::Command::Up(up) = up.command else { panic!("up") };
        let mut words: Vec<OsString> = vec!["corten".into(), "server".into()];
        words.extend(arguments(&up.server));
        let server = cli::Cli::parse_from(words);
        let cli::Command::Server(server) = server.command else { panic!("server") };
        assert_eq!(format!("{server:?}"), format!("{:?}", up.server));
    }
}
