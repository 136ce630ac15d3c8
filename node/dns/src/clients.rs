//! The clients that are answered: pods and this node itself, each with a bound on what it has under way.
//!
//! A host outside gets no answer at all, by DNS or for metrics: it must neither learn the cluster's names nor have the
//! server send its answers to a third. The address of a datagram's sender may be forged, but only by a host whose packets
//! the network lets in with an address of a pod.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the addresses of this node are believed to be the same.
const FRESH: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Decides who is answered.
pub(crate) struct Clients {
    /// The ranges of pods.
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
        let in_range = |range: &(IpAddr, u8)| contains(*range, client);
        client.is_loopback() || self.ranges.iter().any(in_range) || self.is_own(client)
    }

    /// Links come and go, so the addresses are read again, but not for every stranger.
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

fn contains((first, length): (IpAddr, u8), address: IpAddr) -> bool {
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

/// Bounds what is under way: of all clients, and of each, so that one cannot take the turns of the others.
pub(crate) struct Turns {
    all: usize,
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// A turn of a client, until it is dropped.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    client: IpAddr,
}

impl Turns {
    pub fn new(all: usize, each: usize) -> Arc<Turns> {
        Arc::new(Turns { all, each, taken: Mutex::default() })
    }

    /// Takes a turn; none if there are too many.
    pub fn take(self: &Arc<Turns>, client: IpAddr) -> Option<Turn> {
        let mut taken = lock(&self.taken);
        let own = taken.by_client.get(&client).copied().unwrap_or(0);
        if taken.all >= self.all || own >= self.each {
            return None;
        }
        taken.all += 1;
        taken.by_client.insert(client, own + 1);
        Some(Turn { turns: self.clone(), client })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = lock(&self.turns.taken);
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
        let admits = |text: &str| clients.admits(text.parse().unwrap());
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
    fn turns_are_bounded_for_all_and_for_each() {
        let turns = Turns::new(3, 2);
        let client = |last: u8| IpAddr::from([10, 244, 0, last]);
        let first = turns.take(client(1)).unwrap();
        let second = turns.take(client(1)).unwrap();
        assert!(turns.take(client(1)).is_none(), "one client too often");
        let third = turns.take(client(2)).unwrap();
        assert!(turns.take(client(3)).is_none(), "all together too many");
        drop(first);
        let fourth = turns.take(client(1)).unwrap();
        drop((second, third, fourth));
        let taken = lock(&turns.taken);
        assert_eq!((taken.all, taken.by_client.len()), (0, 0), "nothing is kept of those who left");
    }
}
