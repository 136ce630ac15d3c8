//! The binary `corten` without its `main`: a library, so that the fuzzer reaches the decoders in it.
//!
//! Nothing below the command line reads flags, files or the environment. The binary is the only part that knows every
//! component: it makes their configuration, gives each its identity, and connects those that must call each other.

mod access_options;
mod addresses;
mod answers;
mod api_servers;
mod backup;
mod backup_cli;
mod bench;
mod bench_cli;
mod broken_output;
mod certificate_cli;
mod certificate_options;
mod certificates;
mod cli;
mod cloud_options;
mod commands;
mod components;
mod config;
mod config_file;
mod control_plane_endpoint;
mod descriptors;
mod directories;
mod edge_options;
mod files;
mod flag_values;
#[doc(hidden)]
pub mod fuzz;
mod instance;
mod join;
mod key_hash;
mod kubeconfig;
mod kubelet_options;
mod listeners;
mod log_file;
mod membership;
mod membership_options;
mod network_options;
mod node_object;
mod pki;
mod preflight;
mod private;
mod progress;
#[doc(hidden)]
pub mod reference;
mod registries;
mod restored;
mod secrets;
mod sentence;
mod serving_options;
mod settings;
mod signing_options;
mod simulate_cli;
mod storage_options;
mod store_cli;
mod store_options;
mod supervision;
mod tasks;
mod user_cli;
mod version;

use std::process::ExitCode;

/// Runs the program that this process was started as, if that is not `corten` itself.
pub fn run_as_another() -> Option<ExitCode> {
    private::set_umask();
    // Shims and container processes are re-executions of this binary: they must run before any thread exists.
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(code) = corten_runtime::reexec(&arguments) {
        return Some(ExitCode::from(u8::try_from(code).unwrap_or(1)));
    }
    // Under this name the binary is our pod network as a CNI plugin of other runtimes.
    let is_plugin = arguments.first().is_some_and(|name| name.rsplit('/').next() == Some("corten-cni"));
    is_plugin.then(commands::cni::run)
}

/// Runs the command of the command line.
pub fn run() -> ExitCode {
    supervision::adopt();
    let cli = match config_file::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => error.exit(),
            Err(error) => {
                eprintln!("corten: {}", sentence::of(&error));
                return ExitCode::FAILURE;
            }
        },
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corten: {}", sentence::of(&error));
            ExitCode::FAILURE
        }
    }
}
