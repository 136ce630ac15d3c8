//! The addresses of a node's pods, kept on disk.
//!
//! One file per address, named after it, holding the lease as JSON. Invariant: an address is allocated only after its
//! file is durable, and the file appears complete or not at all (written to a temporary file, then hard-linked into
//! place, which fails if the name is taken). So no crash makes an address be allocated twice, and the leases that a
//! crash leaves behind are found by their sandbox id and collected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::cidr::Hosts;
use crate::error::Error;

const TEMPORARY_PREFIX: &str = ".new-";

/// The transport protocol of a host port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A host port that leads to a port of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub protocol: Protocol,
    /// The node's address that it is bound to; `None` for all of them.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

/// The addresses of a pod, named by the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lease {
    pub address: IpAddr,
    /// The address of the other IP family, where pods have both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<IpAddr>,
    pub sandbox_id: String,
    pub namespace: String,
    pub name: String,
    #[serde(default)]
    pub uid: String,
    /// The pod's labels at its start, which decide its policies where the API has no object of it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub static_pod: bool,
    #[serde(default)]
    pub port_mappings: Vec<PortMapping>,
}

impl Lease {
    pub fn addresses(&self) -> Vec<IpAddr> {
        [self.address].into_iter().chain(self.second).collect()
    }
}

/// The addresses of a node's pods.
pub(crate) struct Allocator {
    directory: PathBuf,
    hosts: Hosts,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    leases: BTreeMap<IpAddr, Lease>,
    last: Option<u32>,
}

impl Allocator {
    /// Reads the leases of earlier runs.
    pub fn open(directory: &Path, hosts: Hosts) -> Result<Allocator, Error> {
        fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
        let mut leases = BTreeMap::new();
        for entry in fs::read_dir(directory).map_err(Error::file("read", directory))? {
            let path = entry.map_err(Error::file("read", directory))?.path();
            match read_lease(&path)? {
                Some(lease) => drop(leases.insert(lease.address, lease)),
                None => fs::remove_file(&path).map_err(Error::file("remove", &path))?,
            }
        }
        let last = leases.keys().filter_map(|address| hosts.number(*address)).max();
        Ok(Allocator { directory: directory.to_owned(), hosts, state: Mutex::new(State { leases, last }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates addresses for the sandbox: those it holds already, else free ones.
    pub fn allocate(&self, wanted: Lease) -> Result<Lease, Error> {
        let mut state = self.state();
        if let Some(held) = state.leases.values().find(|lease| lease.sandbox_id == wanted.sandbox_id) {
            return Ok(held.clone());
        }
        for number in self.hosts.after(state.last) {
            let addresses = self.hosts.addresses(number);
            let Some(address) = addresses.first().copied().filter(|address| !state.leases.contains_key(address)) else {
                continue;
            };
            let lease = Lease { address, second: addresses.get(1).copied(), ..wanted.clone() };
            if !self.write(&lease)? {
                continue;
            }
            state.last = Some(number);
            state.leases.insert(address, lease.clone());
            return Ok(lease);
        }
        Err(Error::AddressesExhausted(self.hosts.to_string()))
    }

    /// Writes the lease's file; returns false when the address is taken on disk.
    fn write(&self, lease: &Lease) -> Result<bool, Error> {
        let path = self.directory.join(lease.address.to_string());
        let aside = self.directory.join(format!("{TEMPORARY_PREFIX}{}", lease.address));
        let bytes = serde_json::to_vec(lease).expect("a lease has string keys only");
        let written = File::create(&aside).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written.map_err(Error::file("write", &aside))?;
        let linked = fs::hard_link(&aside, &path);
        fs::remove_file(&aside).map_err(Error::file("remove", &aside))?;
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(Error::file("create", path)(error)),
        }
        self.sync_directory()?;
        Ok(true)
    }

    fn sync_directory(&self) -> Result<(), Error> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(Error::file("sync", &self.directory))
    }

    pub fn find(&self, sandbox_id: &str) -> Option<Lease> {
        self.state().leases.values().find(|lease| lease.sandbox_id == sandbox_id).cloned()
    }

    pub fn leases(&self) -> Vec<Lease> {
        self.state().leases.values().cloned().collect()
    }

    /// Returns the leases of sandboxes that no longer exist.
    pub fn orphans(&self, live: &BTreeSet<String>) -> Vec<Lease> {
        self.state().leases.values().filter(|lease| !live.contains(&lease.sandbox_id)).cloned().collect()
    }

    /// Frees an address; a free one is no error.
    pub fn release(&self, address: IpAddr) -> Result<(), Error> {
        let path = self.directory.join(address.to_string());
        let mut state = self.state();
        match fs::remove_file(&path) {
            Ok(()) => self.sync_directory()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::file("remove", path)(error)),
        }
        state.leases.remove(&address);
        Ok(())
    }
}

/// Reads the lease of a file; returns `None` for the leftover of an interrupted write.
fn read_lease(path: &Path) -> Result<Option<Lease>, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(TEMPORARY_PREFIX) {
        return Ok(None);
    }
    let bytes = fs::read(path).map_err(Error::file("read", path))?;
    let lease: Option<Lease> = serde_json::from_slice(&bytes).ok();
    Ok(lease.filter(|lease| lease.address.to_string() == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(sandbox: &str) -> Lease {
        Lease {
            address: IpAddr::from([0; 4]),
            second: None,
            sandbox_id: sandbox.to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: "uid".to_owned(),
            labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
            static_pod: false,
            port_mappings: Vec::new(),
        }
    }

    fn open(directory: &Path) -> Allocator {
        let ranges = ["10.244.0.0/29", "fd00::/64"].map(|range| range.parse().unwrap());
        Allocator::open(directory, Hosts::of(&ranges).unwrap()).unwrap()
    }

    fn last(lease: &Lease) -> u16 {
        let Some(IpAddr::V6(second)) = lease.second else { panic!("{lease:?}") };
        second.segments()[7]
    }

    #[test]
    fn addresses_survive_a_restart_and_are_not_allocated_twice() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(directory.path()).allocate(lease("a")).unwrap();
        let again = open(directory.path());
        assert_eq!(again.allocate(lease("a")).unwrap(), first);
        assert_ne!(again.allocate(lease("b")).unwrap().address, first.address);
        assert_eq!(open(directory.path()).leases().len(), 2);
    }

    #[test]
    fn exhaustion_is_an_error_and_release_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let allocator = open(directory.path());
        let held: Vec<_> = (0..5).map(|n| last(&allocator.allocate(lease(&n.to_string())).unwrap())).collect();
        assert_eq!(held, [2, 3, 4, 5, 6]);
        assert!(matches!(allocator.allocate(lease("more")), Err(Error::AddressesExhausted(_))));
        for _ in 0..2 {
            allocator.release(IpAddr::from([10, 244, 0, 4])).unwrap();
        }
        assert_eq!(last(&allocator.allocate(lease("more")).unwrap()), 4);
    }

    #[test]
    fn a_freed_address_is_reused_last() {
        let directory = tempfile::tempdir().unwrap();
        let allocator = open(directory.path());
        let first = allocator.allocate(lease("a")).unwrap().address;
        allocator.release(first).unwrap();
        assert_ne!(allocator.allocate(lease("b")).unwrap().address, first);
    }

    #[test]
    fn leftovers_of_a_crash_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(".new-10.244.0.2"), b"{").unwrap();
        fs::write(directory.path().join("10.244.0.3"), b"").unwrap();
        let allocator = open(directory.path());
        assert_eq!(allocator.leases(), []);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_address_taken_by_another_process_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let one = open(directory.path());
        let other = open(directory.path());
        let first = one.allocate(lease("a")).unwrap().address;
        assert_ne!(other.allocate(lease("b")).unwrap().address, first);
    }

    #[test]
    fn orphans_are_the_leases_of_dead_sandboxes() {
        let directory = tempfile::tempdir().unwrap();
        let allocator = open(directory.path());
        allocator.allocate(lease("a")).unwrap();
        allocator.allocate(lease("b")).unwrap();
        let orphans = allocator.orphans(&BTreeSet::from(["a".to_owned()]));
        assert_eq!(orphans.iter().map(|lease| lease.sandbox_id.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
