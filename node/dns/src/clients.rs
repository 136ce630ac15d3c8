//! The clients that are answered: pods and this node itself, each with a bound on its concurrent queries.
//!
//! A host outside gets no answer at all, by DNS or for metrics: it must neither learn the cluster's names nor make the
//! server send its answers to a third host. The address of a datagram's sender may be forged, but only by a host whose
//! packets the network lets in with an address of a pod.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time for which the addresses of this node are cached.
const FRESH: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The decision which clients are answered.
pub(crate) struct Clients {
    /// The pod CIDRs.
    ranges: Vec<(IpAddr, u8)>,
    own: Mutex<Own>,
}

/// The addresses of this node.
#[derive(Default)]
struct Own {
    addresses: BTreeSet<IpAddr>,
    read: Option<Instant>,
}

impl Clients {
    pub fn new(ranges: Vec<(IpAddr, u8)>) -> Clients {
        Clients { ranges, own: Mutex::default() }
    }

    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let in_range = |(first, length): &(IpAddr, u8)| contains(*first, *length, client);
        client.is_loopback() || self.ranges.iter().any(in_range) || self.is_own(client)
    }

    /// Reports whether an address is this node's. Links change, so the addresses are read again, but not for every
    /// unknown client.
    fn is_own(&self, address: IpAddr) -> bool {
        let mut own = lock(&self.own);
        let now = Instant::now();
        if own.read.is_none_or(|read| now.duration_since(read) >= FRESH) {
            own.addresses = own_addresses();
            own.read = Some(now);
        }
        own.addresses.contains(&address)
    }
}

fn own_addresses() -> BTreeSet<IpAddr> {
    let links = nix::ifaddrs::getifaddrs().into_iter().flatten();
    links
        .filter_map(|link| {
            let address = link.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect()
}

fn contains(first: IpAddr, length: u8, address: IpAddr) -> bool {
    let length = u32::from(length);
    match (first, address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => {
            let differing = first.to_bits() ^ address.to_bits();
            differing.leading_zeros() >= length
        }
        (IpAddr::V6(first), IpAddr::V6(address)) => {
            let differing = first.to_bits() ^ address.to_bits();
            differing.leading_zeros() >= length
        }
        _ => false,
    }
}

/// A bound on concurrent queries: of all clients, and of each, so that one client cannot take the permits of the
/// others.
pub(crate) struct Permits {
    all: usize,
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// A permit of a client, until it is dropped.
pub(crate) struct Permit {
    permits: Arc<Permits>,
    client: IpAddr,
}

impl Permits {
    pub fn new(all: usize, each: usize) -> Arc<Permits> {
        Arc::new(Permits { all, each, taken: Mutex::default() })
    }

    /// Takes a permit; returns `None` if there are too many.
    pub fn take(self: &Arc<Permits>, client: IpAddr) -> Option<Permit> {
        let mut taken = lock(&self.taken);
        let own = taken.by_client.get(&client).copied().unwrap_or(0);
        if taken.all >= self.all || own >= self.each {
            return None;
        }
        taken.all += 1;
        taken.by_client.insert(client, own + 1);
        Some(Permit { permits: self.clone(), client })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = lock(&self.permits.taken);
        taken.all -= 1;
        match taken.by_client.get_mut(&self.client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.by_client.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_the_node_are_answered_and_no_other_host() {
        let clients = Clients::new(vec![([10, 244, 0, 0].into(), 16), ("fd00:244::".parse().unwrap(), 48)]);
        let admits = |address: &str| clients.admits(address.parse().unwrap());
        for inside in
            ["10.244.0.1", "10.244.255.255", "fd00:244::7", "127.0.0.1", "127.9.9.9", "::1", "::ffff:10.244.1.1"]
        {
            assert!(admits(inside), "{inside}");
        }
        for outside in ["10.245.0.1", "192.0.2.77", "fd00:245::1", "2001:db8::77", "::ffff:192.0.2.77", "0.0.0.0"] {
            assert!(!admits(outside), "{outside}");
        }
        assert!(Clients::new(vec![(IpAddr::from([0; 4]), 0)]).admits([192, 0, 2, 1].into()));
        let own = own_addresses();
        assert!(own.iter().all(|address| clients.admits(*address)), "{own:?}");
    }

    #[test]
    fn permits_are_bounded_for_all_and_for_each() {
        let permits = Permits::new(3, 2);
        let client = |last: u8| IpAddr::from([10, 244, 0, last]);
        let first = permits.take(client(1)).unwrap();
        let second = permits.take(client(1)).unwrap();
        assert!(permits.take(client(1)).is_none(), "one client too often");
        let third = permits.take(client(2)).unwrap();
        assert!(permits.take(client(3)).is_none(), "all together too many");
        drop(first);
        let fourth = permits.take(client(1)).unwrap();
        drop((second, third, fourth));
        let taken = lock(&permits.taken);
        assert_eq!((taken.all, taken.by_client.len()), (0, 0), "no state is kept of clients without permits");
    }
}
