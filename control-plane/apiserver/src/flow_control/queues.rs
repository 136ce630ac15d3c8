//! The queues of a priority level: they choose the queue of a request, and the queue that is served next. Pure.
//!
//! The hash of a flow deals it a hand of queues, and a request waits in the shortest of them: two flows seldom share
//! their complete hand, so a flood fills its own queues and leaves others free. Queues are served by virtual time: each
//! pays for the seats and seconds of its requests, and the one that paid least is next.

use std::collections::VecDeque;

/// The estimated duration of a request before it is known.
pub const ESTIMATE: f64 = 0.005;

/// A request that waits.
pub struct Waiting<T> {
    pub id: u64,
    pub seats: u32,
    pub ticket: T,
}

struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    /// The virtual time at which its next request begins.
    next_start: f64,
    executing: u32,
}

/// All queues of a level.
pub struct Queues<T> {
    queues: Vec<Queue<T>>,
    hand_size: usize,
    length_limit: usize,
    now: f64,
    waiting: usize,
    waiting_seats: u32,
}

impl<T> Queues<T> {
    pub fn new(queues: usize, hand_size: usize, length_limit: usize) -> Queues<T> {
        let mut this = Queues { queues: Vec::new(), hand_size, length_limit, now: 0.0, waiting: 0, waiting_seats: 0 };
        this.resize(queues, hand_size, length_limit);
        this
    }

    /// Changes the settings; requests in a removed queue move to another.
    pub fn resize(&mut self, queues: usize, hand_size: usize, length_limit: usize) {
        let queues = queues.max(1);
        (self.hand_size, self.length_limit) = (hand_size.clamp(1, queues), length_limit);
        let gone: Vec<Queue<T>> =
            if queues < self.queues.len() { self.queues.drain(queues..).collect() } else { Vec::new() };
        let now = self.now;
        let new = || Queue { waiting: VecDeque::new(), next_start: now, executing: 0 };
        self.queues.resize_with(queues, new);
        for (at, queue) in gone.into_iter().enumerate() {
            self.queues[at % queues].waiting.extend(queue.waiting);
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns each queue: the virtual time of its next request, its seats in use, and its waiting requests.
    pub fn each(&self) -> impl Iterator<Item = (f64, u32, impl Iterator<Item = &Waiting<T>>)> {
        self.queues.iter().map(|queue| (queue.next_start, queue.executing, queue.waiting.iter()))
    }

    pub fn waiting_seats(&self) -> u32 {
        self.waiting_seats
    }

    /// Enqueues a request of a flow; returns it if its queue is full.
    pub fn push(&mut self, flow: u64, waiting: Waiting<T>) -> Result<(), Waiting<T>> {
        let load = |queue: &Queue<T>| queue.waiting.iter().map(|w| w.seats).sum::<u32>() + queue.executing;
        let hand = deal(flow, self.queues.len(), self.hand_size);
        let Some(chosen) = hand.into_iter().min_by_key(|at| load(&self.queues[*at])) else { return Err(waiting) };
        let queue = &mut self.queues[chosen];
        if queue.waiting.len() >= self.length_limit {
            return Err(waiting);
        }
        if queue.waiting.is_empty() && queue.executing == 0 {
            queue.next_start = queue.next_start.max(self.now);
        }
        self.waiting += 1;
        self.waiting_seats += waiting.seats;
        queue.waiting.push_back(waiting);
        Ok(())
    }

    /// Returns the next request to be served, if it fits into the free seats, and its queue.
    pub fn pop(&mut self, free: u32) -> Option<(usize, Waiting<T>)> {
        let next = (0..self.queues.len())
            .filter(|at| !self.queues[*at].waiting.is_empty())
            .min_by(|a, b| self.queues[*a].next_start.total_cmp(&self.queues[*b].next_start))?;
        let queue = &mut self.queues[next];
        if queue.waiting.front().is_none_or(|waiting| waiting.seats > free) {
            return None;
        }
        let waiting = queue.waiting.pop_front()?;
        self.now = self.now.max(queue.next_start);
        queue.next_start += ESTIMATE * f64::from(waiting.seats);
        queue.executing += waiting.seats;
        self.waiting -= 1;
        self.waiting_seats -= waiting.seats;
        Some((next, waiting))
    }

    /// Records the end of a request: its queue pays for the actual duration.
    pub fn done(&mut self, queue: usize, seats: u32, seconds: f64) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.executing = queue.executing.saturating_sub(seats);
            queue.next_start += (seconds - ESTIMATE) * f64::from(seats);
        }
    }

    /// Removes a request that no longer waits.
    pub fn remove(&mut self, id: u64) -> bool {
        for queue in &mut self.queues {
            if let Some(at) = queue.waiting.iter().position(|w| w.id == id) {
                if let Some(gone) = queue.waiting.remove(at) {
                    self.waiting -= 1;
                    self.waiting_seats -= gone.seats;
                }
                return true;
            }
        }
        false
    }
}

/// Deals a hand of different cards out of a deck, by the hash.
pub fn deal(hash: u64, deck: usize, hand: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..deck).collect();
    let mut hash = hash;
    let mut dealt = Vec::with_capacity(hand);
    for _ in 0..hand.min(deck) {
        let cards = left.len() as u64;
        dealt.push(left.swap_remove((hash % cards) as usize));
        hash /= cards;
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_hand_has_no_card_twice(hash: u64, deck in 1usize..200, hand in 1usize..10) {
            let mut dealt = deal(hash, deck, hand);
            dealt.sort_unstable();
            dealt.dedup();
            prop_assert_eq!(dealt.len(), hand.min(deck));
            prop_assert!(dealt.iter().all(|card| *card < deck));
        }

        #[test]
        fn no_request_is_lost(steps in proptest::collection::vec((0u8..4, 0u64..8, 1u32..4), 1..200)) {
            let mut queues: Queues<()> = Queues::new(8, 3, 5);
            let mut id = 0;
            let mut inside = std::collections::BTreeSet::new();
            for (step, flow, seats) in steps {
                match step {
                    0 | 1 => {
                        id += 1;
                        if queues.push(flow.wrapping_mul(0x9E37_79B9_7F4A_7C15), Waiting { id, seats, ticket: () }).is_ok() {
                            inside.insert(id);
                        }
                    }
                    2 => if let Some((queue, waiting)) = queues.pop(3) {
                        prop_assert!(inside.remove(&waiting.id));
                        queues.done(queue, waiting.seats, 0.01);
                    },
                    _ => if let Some(one) = inside.pop_first() {
                        prop_assert!(queues.remove(one));
                    },
                }
                prop_assert_eq!(queues.waiting(), inside.len());
            }
            queues.resize(2, 1, 5);
            while let Some((_, waiting)) = queues.pop(u32::MAX) {
                prop_assert!(inside.remove(&waiting.id));
            }
            prop_assert!(inside.is_empty());
            prop_assert_eq!(queues.waiting_seats(), 0);
        }
    }

    #[test]
    fn a_flood_does_not_delay_another_flow() {
        let mut queues: Queues<&str> = Queues::new(16, 4, 50);
        for id in 0..40 {
            assert!(queues.push(1, Waiting { id, seats: 1, ticket: "flood" }).is_ok());
        }
        assert!(queues.push(99, Waiting { id: 100, seats: 1, ticket: "small" }).is_ok());
        // The flood was served a few times; the new flow is next after at most one request of each of the flood's
        // queues.
        let mut served = Vec::new();
        while let Some((queue, waiting)) = queues.pop(1) {
            queues.done(queue, 1, 0.01);
            served.push(waiting.ticket);
        }
        let at = served.iter().position(|flow| *flow == "small").unwrap();
        assert!(at <= 5, "{at}");
    }

    #[test]
    fn a_full_queue_refuses() {
        let mut queues: Queues<()> = Queues::new(1, 1, 2);
        assert!(queues.push(0, Waiting { id: 1, seats: 1, ticket: () }).is_ok());
        assert!(queues.push(0, Waiting { id: 2, seats: 1, ticket: () }).is_ok());
        assert!(queues.push(0, Waiting { id: 3, seats: 1, ticket: () }).is_err());
    }
}
