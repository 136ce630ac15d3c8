//! The resource usage of one process: the kubelet's own, and the container runtime's. Reading is separate from parsing.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use jiff::Timestamp;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The kernel's clock ticks in a second, as `/proc/PID/stat` counts.
const TICKS: u64 = 100;
const NANOSECONDS: u64 = 1_000_000_000;

/// The usage of a process since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The time between the boot of the machine and the start of the process, in nanoseconds.
    pub started_nanoseconds: u64,
    pub cpu_nanoseconds: u64,
    pub resident_bytes: u64,
    /// The resident memory that is no file's.
    pub anonymous_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
}

/// Returns the id of the process that listens on a socket, if this machine runs it.
pub fn listener(socket: &str) -> Option<i32> {
    let socket = UnixStream::connect(Path::new(socket.trim_start_matches("unix://"))).ok()?;
    let pid = getsockopt(&socket, PeerCredentials).ok()?.pid();
    (pid > 0).then_some(pid)
}

/// Reads the usage of a process.
pub fn usage(pid: i32) -> Option<Usage> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    parse(&read("stat")?, &read("status")?)
}

/// Parses `/proc/PID/stat` and `/proc/PID/status`.
fn parse(stat: &str, status: &str) -> Option<Usage> {
    // The name of the process, in parentheses, may contain any characters.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let nanoseconds = |ticks: u64| ticks.saturating_mul(NANOSECONDS / TICKS);
    Some(Usage {
        started_nanoseconds: nanoseconds(field(22)?),
        cpu_nanoseconds: nanoseconds(field(14)?.saturating_add(field(15)?)),
        resident_bytes: bytes("VmRSS")?,
        anonymous_bytes: bytes("RssAnon")?,
        page_faults: field(10)?,
        major_page_faults: field(12)?,
    })
}

/// Returns the time of a process' start.
pub fn start_time(usage: &Usage, boot: Timestamp) -> Timestamp {
    let since_boot = jiff::SignedDuration::from_nanos(i64::try_from(usage.started_nanoseconds).unwrap_or(i64::MAX));
    boot.checked_add(since_boot).unwrap_or(boot)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_tables_of_a_process_are_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 500 9000 3 40 150 50 700 800 20 0 12 0 6000 1000000 2000 18446744073709551615";
        let status = "Name:\ta) b\nVmRSS:\t    2048 kB\nRssAnon:\t    1024 kB\nRssFile:\t    1024 kB\n";
        let usage = parse(stat, status).unwrap();
        let expected = Usage {
            started_nanoseconds: 60 * NANOSECONDS,
            cpu_nanoseconds: 2 * NANOSECONDS,
            resident_bytes: 2 << 20,
            anonymous_bytes: 1 << 20,
            page_faults: 500,
            major_page_faults: 3,
        };
        assert_eq!(usage, expected);
        assert_eq!(start_time(&usage, Timestamp::UNIX_EPOCH).as_second(), 60);
        assert_eq!(parse("7 (a) S 1", status), None);
    }

    #[test]
    fn the_process_behind_a_socket_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cri.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let pid = listener(&format!("unix://{}", path.display())).unwrap();
        assert_eq!(pid, i32::try_from(std::process::id()).unwrap());
        assert!(usage(pid).unwrap().resident_bytes > 0);
        assert_eq!(listener("/nowhere/cri.sock"), None);
    }
}
