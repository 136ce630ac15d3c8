//! The flags of the node's own volumes: of the server, of agents, and of the agents that a server starts.

use std::ffi::OsString;

use clap::Args;

#[derive(Debug, Clone, Default, Args)]
pub struct StorageOptions {
    /// Promise volumes this many times the space that the node's storage pool has; without it a volume that would not
    /// fit when all volumes are full is refused.
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub storage_overcommit: Option<f64>,
}

impl StorageOptions {
    /// Returns the flags as arguments of an agent or server.
    pub fn arguments(&self) -> Vec<OsString> {
        self.storage_overcommit.iter().map(|ratio| format!("--storage-overcommit={ratio}").into()).collect()
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let parsed: Option<f64> = text.parse().ok();
    let valid = parsed.filter(|ratio| (1.0..=100.0).contains(ratio));
    valid.ok_or_else(|| format!("{text:?} is not a ratio between 1 and 100"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_at_least_one() {
        assert_eq!(ratio("1.5"), Ok(1.5));
        for text in ["0.5", "101", "-1", "NaN", "much"] {
            assert!(ratio(text).is_err(), "{text}");
        }
        let options = StorageOptions { storage_overcommit: Some(2.5) };
        assert_eq!(options.arguments(), ["--storage-overcommit=2.5"]);
    }
}
