//! The timeouts of TCP connections in conntrack. By default the kernel forgets a half-closed one after a minute, and a
//! program behind a Service that answers later is cut off; upstream's proxy therefore sets an hour.
//!
//! A refusal of the kernel is logged and ignored: Services work without.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tracing::warn;

/// The directory of the timeouts of the network namespace that reads them.
pub(crate) const SETTINGS: &str = "/proc/sys/net/netfilter";

/// The timeouts of connections.
#[derive(Clone, Copy, Debug)]
pub struct TcpTimeouts {
    pub established: Duration,
    /// The timeout after one side has closed the connection.
    pub close_wait: Duration,
}

impl Default for TcpTimeouts {
    /// Returns upstream's: a day and an hour.
    fn default() -> TcpTimeouts {
        TcpTimeouts { established: Duration::from_secs(24 * 3600), close_wait: Duration::from_secs(3600) }
    }
}

/// Sets the timeouts that differ.
pub(crate) fn set(settings: &Path, timeouts: TcpTimeouts) {
    for (name, value) in [
        ("nf_conntrack_tcp_timeout_established", timeouts.established),
        ("nf_conntrack_tcp_timeout_close_wait", timeouts.close_wait),
    ] {
        let path = settings.join(name);
        let wanted = value.as_secs().to_string();
        let is_set = fs::read_to_string(&path).is_ok_and(|text| text.trim() == wanted);
        if is_set {
            continue;
        }
        if let Err(error) = fs::write(&path, &wanted) {
            warn!(path = %path.display(), wanted, "cannot set a connection timeout: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_written_where_they_differ() {
        let settings = tempfile::tempdir().unwrap();
        let path = |name: &str| settings.path().join(format!("nf_conntrack_tcp_timeout_{name}"));
        fs::write(path("established"), "86400\n").unwrap();
        fs::write(path("close_wait"), "60\n").unwrap();
        set(settings.path(), TcpTimeouts::default());
        assert_eq!(fs::read_to_string(path("established")).unwrap(), "86400\n", "left as it was");
        assert_eq!(fs::read_to_string(path("close_wait")).unwrap(), "3600");
    }
}
