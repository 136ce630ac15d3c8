//! The machine: CPUs, memory, disk, kernel, identity. It is read once at start; values that can change are read on
//! demand.

use std::fs;
use std::path::Path;

use crate::config::Config;

#[derive(Clone, Debug, Default)]
pub struct Host {
    pub cpus: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// The number of processes and threads that the kernel allows.
    pub most_processes: u64,
    /// The size in bytes of a huge page, and the number of pages.
    pub huge_pages: Vec<(u64, u64)>,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    pub architecture: String,
    /// Whether the kernel supports AppArmor profiles.
    pub apparmor: bool,
}

impl Host {
    pub fn read(config: &Config) -> Host {
        let kernel = rustix::system::uname();
        Host {
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
            memory_bytes: memory_total().unwrap_or(0),
            disk_bytes: disk_size(&config.root_dir),
            most_processes: most_processes(),
            huge_pages: huge_pages(),
            machine_id: line("/etc/machine-id"),
            system_uuid: first_of(&["/sys/class/dmi/id/product_uuid", "/etc/machine-id"]),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            kernel_version: kernel.release().to_string_lossy().into_owned(),
            os_image: os_image(),
            apparmor: line("/sys/module/apparmor/parameters/enabled").starts_with('Y'),
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64".into(),
                "aarch64" => "arm64".into(),
                other => other.into(),
            },
        }
    }
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn first_of(paths: &[&str]) -> String {
    paths.iter().map(|path| line(path)).find(|text| !text.is_empty()).unwrap_or_default()
}

fn memory_total() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kibibytes.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

fn most_processes() -> u64 {
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    limits.iter().filter_map(|path| line(path).parse().ok()).min().unwrap_or(32_768)
}

/// Returns the size of the file system of the directory, which need not exist yet.
fn disk_size(path: &Path) -> u64 {
    path.ancestors()
        .find_map(|path| rustix::fs::statvfs(path).ok())
        .map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize))
}

fn huge_pages() -> Vec<(u64, u64)> {
    let entries = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut pages: Vec<(u64, u64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kibibytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            Some((kibibytes * 1024, count))
        })
        .collect();
    pages.sort_unstable();
    pages
}

fn os_image() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches('"').to_owned())
}
