//! The flags of the certificates that the cluster signs.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::flag_values::duration;

/// The shortest lifetime of certificates: shorter ones would be renewed all the time.
const SHORTEST: Duration = Duration::from_secs(10);

/// The flags.
#[derive(Debug, Clone, Args)]
pub struct CertificateOptions {
    /// The lifetime of the certificates that the cluster signs. They are renewed after 80 % of it.
    #[arg(long, default_value = "8760h", value_name = "DURATION", value_parser = lifetime)]
    pub cluster_signing_duration: Duration,
}

impl CertificateOptions {
    /// Returns the flags as arguments of another process.
    pub fn arguments(&self) -> Vec<OsString> {
        let seconds = self.cluster_signing_duration.as_secs();
        vec!["--cluster-signing-duration".into(), format!("{seconds}s").into()]
    }
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = duration(text)?;
    match lifetime >= SHORTEST {
        true => Ok(lifetime),
        false => Err(format!("it is shorter than {} seconds", SHORTEST.as_secs())),
    }
}
