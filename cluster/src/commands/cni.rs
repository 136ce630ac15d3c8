//! `corten-cni`: this binary under another name is our pod network as a CNI plugin.

use std::io::{Read, Write};
use std::process::ExitCode;

/// Answers the one call that the process was started for.
pub fn run() -> ExitCode {
    let mut input = Vec::new();
    let mut answered = || -> std::io::Result<(String, bool)> {
        std::io::stdin().read_to_end(&mut input)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(corten_network::cni::plugin::call(|name| std::env::var(name).ok(), &input)))
    };
    match answered() {
        Ok((printed, succeeded)) => {
            let is_printed = std::io::stdout().write_all(printed.as_bytes()).is_ok();
            if succeeded && is_printed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("corten-cni: {error}");
            ExitCode::FAILURE
        }
    }
}
