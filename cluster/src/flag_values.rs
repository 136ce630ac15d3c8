//! Flags and forms of flags that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// The data directory when no flag names one.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/corten";

/// The configuration file when no flag names one.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/corten/config.yaml";

/// Where a cluster lives on this machine.
#[derive(Debug, Clone, Args)]
pub struct DirectoryFlags {
    /// The directory of everything that must survive a reboot: store, certificates, images, volumes.
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The directory of sockets, pid file and namespaces, which a reboot may lose.
    #[arg(long, default_value = "/run/corten", value_name = "DIR")]
    pub run_dir: PathBuf,
}

/// A duration as upstream's flags write it: `50s`, `8760h0m0s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    parsed.try_into().map_err(|_| format!("{text} is negative"))
}
