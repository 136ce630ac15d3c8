//! `corten`: Kubernetes in one binary.
//!
//! `main` parses the command line, and nothing below it reads flags, files or the environment. The binary is the one
//! place that knows every component: it makes their configuration, gives each its identity, and plugs one into
//! another where they must meet.

mod access_options;
mod bench;
mod cli;
mod commands;
mod components;
mod config;
mod instance;
mod join;
mod kubeconfig;
mod kubelet_options;
mod network_options;
mod pki;
mod preflight;
mod private;
mod progress;
mod registries;
mod signing_options;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of the allocator's option that says how long memory that was freed is kept for who allocates next.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// In milliseconds, instead of a second: long enough for the next piece of a list to take the place of the one before, and
/// little enough that a burst of writes leaves nothing behind.
const PURGE_AFTER: std::ffi::c_long = 3;

fn main() -> std::process::ExitCode {
    private::set_umask();
    // Shims and container processes are re-executions of this binary: they must be served before any thread exists.
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(code) = corten_runtime::reexec(&arguments) {
        return exit_code(code);
    }
    // Under this name it is our pod network as a plugin of other runtimes.
    if arguments.first().is_some_and(|name| name.rsplit('/').next() == Some("corten-cni")) {
        return commands::cni::run();
    }
    // SAFETY: the allocator takes any number for this option at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_AFTER) };
    match commands::run(cli::Cli::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corten: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn exit_code(code: i32) -> std::process::ExitCode {
    std::process::ExitCode::from(u8::try_from(code).unwrap_or(1))
}
