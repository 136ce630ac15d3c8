//! Rate limits on this node: for each client or for all together; and limits of the requests in flight.
//!
//! A limit stores one number a client: the time at which its requests so far would have come at the exact rate (GCRA). The
//! number of clients is bounded; beyond the bound new clients share one number.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corten_routing::{ConcurrencyLimit, RateLimit};

use crate::clock;

/// The most clients of one limit.
const MAX_CLIENTS: usize = 100_000;

/// The limits by name. A limit that does not change keeps its counts across configurations.
#[derive(Debug, Default)]
pub(crate) struct Limiters {
    rates: Mutex<HashMap<Arc<str>, Arc<Limiter>>>,
    concurrency: Mutex<HashMap<Arc<str>, Arc<Concurrency>>>,
}

/// A limit of requests in flight, with the number of each client.
#[derive(Debug)]
pub(crate) struct Concurrency {
    limit: ConcurrencyLimit,
    counts: Mutex<HashMap<IpAddr, u32>>,
}

/// A request that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    of: Arc<Concurrency>,
    client: IpAddr,
}

#[derive(Debug)]
pub(crate) struct Limiter {
    limit: RateLimit,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The arrival time, in microseconds, of each client.
    clients: HashMap<IpAddr, u64>,
    shared: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Limiters {
    pub(crate) fn get(&self, limit: &RateLimit) -> Arc<Limiter> {
        let mut limiters = lock(&self.rates);
        if let Some(known) = limiters.get(&limit.name)
            && known.limit == *limit
        {
            return Arc::clone(known);
        }
        let made = Arc::new(Limiter { limit: limit.clone(), state: Mutex::default() });
        limiters.insert(Arc::clone(&limit.name), Arc::clone(&made));
        made
    }

    pub(crate) fn concurrency(&self, limit: &ConcurrencyLimit) -> Arc<Concurrency> {
        let mut limiters = lock(&self.concurrency);
        if let Some(known) = limiters.get(&limit.name)
            && known.limit == *limit
        {
            return Arc::clone(known);
        }
        let made = Arc::new(Concurrency { limit: limit.clone(), counts: Mutex::default() });
        limiters.insert(Arc::clone(&limit.name), Arc::clone(&made));
        made
    }

    /// Forgets limits that no table has.
    pub(crate) fn forget_unused(&self) {
        lock(&self.rates).retain(|_, limiter| Arc::strong_count(limiter) > 1);
        lock(&self.concurrency).retain(|_, limiter| Arc::strong_count(limiter) > 1);
    }
}

impl Concurrency {
    /// Counts a request of a client; the error is that of one too many. A client that is exempt has no permit.
    pub(crate) fn begin(self: &Arc<Self>, client: IpAddr) -> Result<Option<Permit>, ()> {
        if self.limit.exempt.iter().any(|exempt| exempt.contains(client)) {
            return Ok(None);
        }
        let client = network(client);
        let mut counts = lock(&self.counts);
        let count = counts.entry(client).or_insert(0);
        if *count >= self.limit.requests {
            return Err(());
        }
        *count += 1;
        Ok(Some(Permit { of: Arc::clone(self), client }))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = lock(&self.of.counts);
        if let Some(count) = counts.get_mut(&self.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

impl Limiter {
    /// Counts a request of a client now. Returns the time to wait if it is one too many.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), Duration> {
        if self.limit.exempt.iter().any(|exempt| exempt.contains(client)) {
            return Ok(());
        }
        self.check_at(client, clock::milliseconds().saturating_mul(1000))
    }

    fn check_at(&self, client: IpAddr, now: u64) -> Result<(), Duration> {
        let period = u64::try_from(self.limit.period.as_micros()).unwrap_or(u64::MAX);
        let interval = period / u64::from(self.limit.requests.max(1));
        let tolerance = interval.saturating_mul(u64::from(self.limit.burst));
        let mut state = lock(&self.state);
        let arrival = state.arrival(self.limit.per_client.then_some(network(client)), now);
        let begun = (*arrival).max(now);
        if begun - now > tolerance {
            return Err(Duration::from_micros(begun - now - tolerance));
        }
        *arrival = begun.saturating_add(interval);
        Ok(())
    }
}

impl State {
    fn arrival(&mut self, client: Option<IpAddr>, now: u64) -> &mut u64 {
        let Some(client) = client else {
            return &mut self.shared;
        };
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&client) {
            self.clients.retain(|_, arrival| *arrival > now);
            if self.clients.len() >= MAX_CLIENTS {
                return &mut self.shared;
            }
        }
        self.clients.entry(client).or_insert(0)
    }
}

/// Returns the address that stands for a client: one of IPv6 has a whole network of 64 bits to itself.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(requests: u32, burst: u32, per_client: bool) -> Limiter {
        let period = Duration::from_secs(1);
        let limit = RateLimit { name: "limit".into(), requests, period, burst, per_client, exempt: Vec::new() };
        Limiter { limit, state: Mutex::default() }
    }

    const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_client_has_its_rate_and_its_burst() {
        let limiter = limiter(10, 2, true);
        let now = 1_000_000;
        assert_eq!([(); 4].map(|()| limiter.check_at(FIRST, now).is_ok()), [true, true, true, false]);
        assert_eq!(limiter.check_at(FIRST, now), Err(Duration::from_millis(100)));
        assert!(limiter.check_at(SECOND, now).is_ok(), "another client has its own");
        assert!(limiter.check_at(FIRST, now + 100_000).is_ok());
        assert!(limiter.check_at(FIRST, now + 100_000).is_err());
        let later = now + 60_000_000;
        assert_eq!([(); 4].map(|()| limiter.check_at(FIRST, later).is_ok()), [true, true, true, false]);
    }

    #[test]
    fn a_limit_of_all_clients_is_shared() {
        let limiter = limiter(1, 0, false);
        assert!(limiter.check_at(FIRST, 1_000_000).is_ok());
        assert!(limiter.check_at(SECOND, 1_000_000).is_err());
    }

    #[test]
    fn an_unchanged_limit_keeps_its_counts() {
        let limiters = Limiters::default();
        let limit = limiter(1, 0, true).limit;
        let first = limiters.get(&limit);
        assert!(Arc::ptr_eq(&first, &limiters.get(&limit)));
        assert!(!Arc::ptr_eq(&first, &limiters.get(&RateLimit { burst: 7, ..limit.clone() })));
        drop(first);
        limiters.forget_unused();
        assert!(lock(&limiters.rates).is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_client() {
        let limiter = limiter(1, 0, true);
        assert!(limiter.check_at("2001:db8::1".parse().unwrap(), 1_000_000).is_ok());
        assert!(limiter.check_at("2001:db8::2".parse().unwrap(), 1_000_000).is_err());
        assert!(limiter.check_at("2001:db8:0:1::1".parse().unwrap(), 1_000_000).is_ok());
    }

    #[test]
    fn a_client_has_a_number_of_requests_in_flight() {
        let exempt = vec!["192.0.2.2".parse().unwrap()];
        let limit = ConcurrencyLimit { name: "limit".into(), requests: 2, exempt };
        let limiter = Limiters::default().concurrency(&limit);
        let first = limiter.begin(FIRST).unwrap();
        let _second = limiter.begin(FIRST).unwrap();
        assert!(limiter.begin(FIRST).is_err());
        assert!(limiter.begin(SECOND).unwrap().is_none(), "an exempt client");
        drop(first);
        assert!(limiter.begin(FIRST).is_ok());
    }
}
