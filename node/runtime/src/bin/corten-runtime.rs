//! The standalone runtime: a CRI server that any kubelet can use.
//!
//! `corten-runtime serve <state dir> <run dir> <socket> [<handler>=<program> …]` serves the CRI; each handler selects
//! another OCI runtime. `corten-runtime purge …` removes all sandboxes, containers and files. Pods get a loopback
//! device and no other network. `--seccomp-profiles=<folder>` among the handlers is the kubelet's folder of seccomp
//! profiles; the default is `/var/lib/kubelet/seccomp`.

use std::sync::Arc;

use corten_runtime::{Config, Error, LoopbackNetwork};
use tokio_util::sync::CancellationToken;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(code) = corten_runtime::reexec(&args) {
        std::process::exit(code);
    }
    let [_, command, state, run, socket, handlers @ ..] = args.as_slice() else {
        eprintln!("usage: corten-runtime serve|purge <state dir> <run dir> <socket> [<handler>=<program> …]");
        std::process::exit(2);
    };
    let profiles = handlers.iter().find_map(|handler| handler.strip_prefix("--seccomp-profiles="));
    let mut config = Config {
        state_dir: state.into(),
        run_dir: run.into(),
        images_dir: std::path::Path::new(state).join("images"),
        socket: socket.into(),
        runtime_handlers: handlers
            .iter()
            .filter(|handler| !handler.starts_with("--"))
            .filter_map(|handler| handler.split_once('='))
            .map(|(name, program)| (name.to_owned(), program.into()))
            .collect(),
        ..Config::default()
    };
    if let Some(profiles) = profiles {
        config.seccomp_profiles = profiles.into();
    }
    if let Err(error) = run_command(command, config) {
        eprintln!("corten-runtime: {error}");
        std::process::exit(1);
    }
}

fn run_command(command: &str, config: Config) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Runtime::new().map_err(|source| Error::System { action: "start the executor", source })?;
    runtime.block_on(async {
        match command {
            "serve" => {
                let shutdown = CancellationToken::new();
                tokio::spawn(cancel_on_interrupt(shutdown.clone()));
                corten_runtime::serve(config, Arc::new(LoopbackNetwork), shutdown).await
            }
            "purge" => corten_runtime::purge(&config, Arc::new(LoopbackNetwork)).await,
            other => Err(Error::Invalid(format!("unknown command {other:?}"))),
        }
    })
}

async fn cancel_on_interrupt(shutdown: CancellationToken) {
    if tokio::signal::ctrl_c().await.is_ok() {
        shutdown.cancel();
    }
}
