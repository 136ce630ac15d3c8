//! The checker: a pure function from a history to its violations.
//!
//! The watches together give the order of all writes. Against it stand the promises of the API:
//! - every acknowledged write is there, and no refused one; one of unknown outcome may be there once;
//! - each write replaced the very version that it expected: the versions of a key are a chain;
//! - a request sees everything that was acknowledged or seen before it began (linearizability), and a list is one state;
//! - every watch is complete and in order, and repeats nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{Event, Found, History, Kind, Outcome, Write};

/// Returns the violations of a history; none for a good one.
pub fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    let order = Order::of(history, &mut violations);
    watches(history, &order, &mut violations);
    chains(history, &order, &mut violations);
    acknowledged(history, &order, &mut violations);
    refused(history, &order, &mut violations);
    real_time(history, &order, &mut violations);
    listings(history, &order, &mut violations);
    violations
}

/// All events that any watch saw, by version and by key.
struct Order {
    events: BTreeMap<u64, Event>,
    keys: HashMap<String, Vec<u64>>,
    /// The version before the first event that a watch could see.
    from: u64,
}

impl Order {
    fn of(history: &History, violations: &mut Vec<String>) -> Order {
        let mut events: BTreeMap<u64, Event> = BTreeMap::new();
        for watch in &history.watches {
            for event in &watch.events {
                match events.get(&event.version) {
                    Some(other) if other != event => {
                        violations.push(format!("watches disagree: {event:?} of {} and {other:?}", watch.name));
                    }
                    Some(_) => {}
                    None => drop(events.insert(event.version, event.clone())),
                }
            }
        }
        let mut keys: HashMap<String, Vec<u64>> = HashMap::new();
        for event in events.values() {
            keys.entry(event.key.clone()).or_default().push(event.version);
        }
        let from = history.watches.iter().map(|watch| watch.from).min().unwrap_or_default();
        gaps(history, from, violations);
        Order { events, keys, from }
    }

    fn versions(&self, key: &str) -> &[u64] {
        self.keys.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the first event of a key after a version.
    fn after(&self, key: &str, version: u64) -> Option<&Event> {
        let versions = self.versions(key);
        let next = versions.get(versions.partition_point(|other| *other <= version))?;
        self.events.get(next)
    }

    /// Returns the event that made the state of a key at a version.
    fn at(&self, key: &str, version: u64) -> Option<&Event> {
        let versions = self.versions(key);
        let index = versions.partition_point(|other| *other <= version).checked_sub(1)?;
        self.events.get(&versions[index])
    }
}

/// Finds versions that no watch covers.
fn gaps(history: &History, from: u64, violations: &mut Vec<String>) {
    let mut spans: Vec<(u64, u64)> = history.watches.iter().map(|watch| (watch.from, watch.until)).collect();
    spans.sort_unstable();
    let mut reached = from;
    for (begin, end) in spans {
        if begin > reached {
            violations.push(format!("no watch covers the versions after {reached} up to {begin}"));
        }
        reached = reached.max(end);
    }
}

fn watches(history: &History, order: &Order, violations: &mut Vec<String>) {
    for watch in &history.watches {
        let mut last = watch.from;
        let mut seen = HashSet::new();
        for event in &watch.events {
            if !seen.insert(event.version) {
                violations.push(format!("{} repeats {event:?}", watch.name));
            } else if event.version <= last {
                violations.push(format!("{} has {event:?} after version {last}", watch.name));
            }
            last = last.max(event.version);
        }
        for (version, event) in order.events.range(watch.from + 1..) {
            if *version <= watch.until && !seen.contains(version) {
                violations.push(format!("{} misses {event:?}", watch.name));
            }
        }
    }
}

/// Checks that each event is a write that was sent, took place once, and replaced the version that it expected.
fn chains(history: &History, order: &Order, violations: &mut Vec<String>) {
    let written = history.writes.iter().filter(|write| write.kind != Kind::Delete);
    let by_value: HashMap<&str, &Write> = written.map(|write| (write.value.as_str(), write)).collect();
    let mut deletions: HashMap<(&str, u64), Vec<&Write>> = HashMap::new();
    for write in history.writes.iter().filter(|write| write.kind == Kind::Delete) {
        deletions.entry((&write.key, write.expected.unwrap_or_default())).or_default().push(write);
    }
    let mut values = HashSet::new();
    for event in order.events.values() {
        let before = order.at(&event.key, event.version - 1);
        let alive = before.filter(|before| !before.is_deletion);
        if event.is_deletion {
            let sent = alive.and_then(|alive| deletions.get(&(event.key.as_str(), alive.version)));
            let possible = |write: &&Write| write.outcome != Outcome::Refused;
            // The state before the first watch is not known.
            let is_first = before.is_none();
            if !is_first && !sent.is_some_and(|sent| sent.iter().any(possible)) {
                violations.push(format!("{event:?}: nothing deleted version {:?}", alive.map(|alive| alive.version)));
            }
            continue;
        }
        let Some(write) = by_value.get(event.value.as_str()).filter(|write| write.key == event.key) else {
            violations.push(format!("{event:?} was written by no client"));
            continue;
        };
        if !values.insert(event.value.as_str()) {
            violations.push(format!("{event:?} took place twice"));
        }
        if write.outcome == Outcome::Refused {
            violations.push(format!("{event:?} took place, and was refused"));
        }
        let replaced = alive.map(|alive| alive.version);
        if write.expected != replaced && !(before.is_none() && write.kind == Kind::Update) {
            violations.push(format!("{event:?} replaced version {replaced:?}, and expected {:?}", write.expected));
        }
    }
}

/// Checks that every acknowledged write is there.
fn acknowledged(history: &History, order: &Order, violations: &mut Vec<String>) {
    for write in &history.writes {
        match write.outcome {
            Outcome::Done(Some(version)) if version > order.from => {
                let is_there = order
                    .events
                    .get(&version)
                    .is_some_and(|event| event.key == write.key && event.value == write.value && !event.is_deletion);
                if !is_there {
                    violations.push(format!("the acknowledged {write:?} is lost"));
                }
            }
            Outcome::Done(_) if write.kind == Kind::Delete && deletion(write, order).is_none() => {
                violations.push(format!("the acknowledged {write:?} is lost"));
            }
            _ => {}
        }
    }
}

/// Returns the event of a deletion: the next one after the version that it expected.
fn deletion<'a>(write: &Write, order: &'a Order) -> Option<&'a Event> {
    order.after(&write.key, write.expected?).filter(|event| event.is_deletion)
}

/// Checks that a write was refused because of another one that could have come before.
fn refused(history: &History, order: &Order, violations: &mut Vec<String>) {
    let began: HashMap<&str, u64> = history.writes.iter().map(|write| (write.value.as_str(), write.began)).collect();
    for write in history.writes.iter().filter(|write| write.outcome == Outcome::Refused) {
        let Some(expected) = write.expected.filter(|expected| *expected > order.from) else { continue };
        let next = order.after(&write.key, expected);
        // The client that deleted is not known by the event.
        let is_possible =
            next.is_some_and(|next| next.is_deletion || began.get(next.value.as_str()) < Some(&write.ended));
        if !is_possible {
            violations.push(format!("{write:?} was refused without a reason"));
        }
    }
}

/// The newest version that was acknowledged or seen at each time.
struct Known(Vec<(u64, u64)>);

impl Known {
    fn of(history: &History, order: &Order) -> Known {
        let mut seen: Vec<(u64, u64)> = Vec::new();
        for write in &history.writes {
            match write.outcome {
                Outcome::Done(Some(version)) => seen.push((write.ended, version)),
                Outcome::Done(None) => {
                    seen.extend(deletion(write, order).map(|event| (write.ended, event.version)));
                }
                _ => {}
            }
        }
        seen.extend(history.reads.iter().filter_map(|read| Some((read.ended, read.found.as_ref()?.version))));
        seen.extend(history.listings.iter().map(|listing| (listing.ended, listing.version)));
        seen.sort_unstable();
        let mut newest = 0;
        for (_, version) in &mut seen {
            newest = newest.max(*version);
            *version = newest;
        }
        Known(seen)
    }

    fn before(&self, time: u64) -> u64 {
        let count = self.0.partition_point(|(ended, _)| *ended < time);
        count.checked_sub(1).map_or(0, |index| self.0[index].1)
    }
}

fn real_time(history: &History, order: &Order, violations: &mut Vec<String>) {
    let known = Known::of(history, order);
    for write in &history.writes {
        let bound = known.before(write.began);
        if let Outcome::Done(Some(version)) = write.outcome
            && version <= bound
        {
            violations.push(format!("{write:?} is ordered before version {bound}, which was known when it began"));
        }
    }
    let began: HashMap<&str, u64> = history.writes.iter().map(|write| (write.value.as_str(), write.began)).collect();
    for read in &history.reads {
        let bound = known.before(read.began);
        let is_current = match &read.found {
            // The state is that of the version until the next event of the key.
            Some(found) => order.after(&read.key, found.version).is_none_or(|next| next.version > bound),
            None => is_absent_since(order, &read.key, bound),
        };
        if !is_current {
            violations.push(format!("stale: {read:?}, when version {bound} was known"));
        }
        if let Some(found) = read.found.as_ref().filter(|found| found.version > order.from) {
            let event = order.events.get(&found.version);
            let is_same = event.is_some_and(|event| event.key == read.key && event.value == found.value);
            if !is_same || event.is_some_and(|event| event.is_deletion) {
                violations.push(format!("{read:?} read a version that was never written: {event:?}"));
            }
            if began.get(found.value.as_str()).is_some_and(|began| *began > read.ended) {
                violations.push(format!("{read:?} read a write of the future"));
            }
        }
    }
    for listing in &history.listings {
        let bound = known.before(listing.began);
        if listing.version < bound {
            violations.push(format!("stale: a list at version {}, when {bound} was known", listing.version));
        }
    }
}

/// Reports whether a key was absent at a version or later.
fn is_absent_since(order: &Order, key: &str, version: u64) -> bool {
    let is_absent_at = order.at(key, version).is_none_or(|event| event.is_deletion);
    let later = order.versions(key).iter().filter(|other| **other > version);
    is_absent_at || later.filter_map(|other| order.events.get(other)).any(|event| event.is_deletion)
}

/// Checks that every list is the state at its version.
fn listings(history: &History, order: &Order, violations: &mut Vec<String>) {
    let mut sorted: Vec<_> = history.listings.iter().filter(|listing| listing.version >= order.from).collect();
    sorted.sort_by_key(|listing| listing.version);
    let mut state: BTreeMap<String, Found> = BTreeMap::new();
    let mut events = order.events.values().peekable();
    // Objects that no event names are as they were before the first watch.
    let named: HashSet<&str> = order.events.values().map(|event| event.key.as_str()).collect();
    for listing in sorted {
        while let Some(event) = events.next_if(|event| event.version <= listing.version) {
            match event.is_deletion {
                true => drop(state.remove(&event.key)),
                false => {
                    let found = Found { version: event.version, value: event.value.clone() };
                    state.insert(event.key.clone(), found);
                }
            }
        }
        for key in named.iter().filter(|key| order.at(key, listing.version).is_some()) {
            let listed = listing.items.get(*key);
            if listed != state.get(*key) {
                let expected = state.get(*key);
                violations.push(format!("a list at version {} has {key} as {listed:?}: {expected:?}", listing.version));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{Listing, Read, Watch};
    use super::*;

    /// A history as text: one request or watch a line, in which versions are numbers and times are positions of words.
    ///
    /// `create|update|delete KEY VALUE EXPECTED BEGAN-ENDED done:VERSION|done|refused|unknown`,
    /// `read KEY BEGAN-ENDED VERSION=VALUE|absent`, `list BEGAN-ENDED VERSION KEY=VERSION=VALUE…`,
    /// `watch NAME FROM-UNTIL VERSION:KEY=VALUE… VERSION:KEY-VALUE` (deleted).
    fn parse(text: &str) -> History {
        let mut history = History::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let span = |word: &str| {
                let (began, ended) = word.split_once('-').unwrap();
                (began.parse::<u64>().unwrap(), ended.parse::<u64>().unwrap())
            };
            let found = |word: &str| {
                let (version, value) = word.split_once('=').unwrap();
                Found { version: version.parse().unwrap(), value: value.to_owned() }
            };
            match words[0] {
                "read" => {
                    let (began, ended) = span(words[2]);
                    let found = (words[3] != "absent").then(|| found(words[3]));
                    history.reads.push(Read { key: words[1].to_owned(), began, ended, found });
                }
                "list" => {
                    let (began, ended) = span(words[1]);
                    let items = words[3..].iter().map(|item| {
                        let (key, rest) = item.split_once('=').unwrap();
                        (key.to_owned(), found(rest))
                    });
                    let version = words[2].parse().unwrap();
                    history.listings.push(Listing { began, ended, version, items: items.collect() });
                }
                "watch" => {
                    let (from, until) = span(words[2]);
                    let events = words[3..].iter().map(|word| {
                        let (version, rest) = word.split_once(':').unwrap();
                        let is_deletion = rest.contains('-');
                        let (key, value) = rest.split_once(['=', '-']).unwrap();
                        let version = version.parse().unwrap();
                        Event { version, key: key.to_owned(), value: value.to_owned(), is_deletion }
                    });
                    let events = events.collect();
                    history.watches.push(Watch { name: words[1].to_owned(), from, until, events });
                }
                kind => {
                    let (began, ended) = span(words[4]);
                    let outcome = match words[5].split_once(':') {
                        Some((_, version)) => Outcome::Done(version.parse().ok()),
                        None if words[5] == "done" => Outcome::Done(None),
                        None if words[5] == "refused" => Outcome::Refused,
                        None => Outcome::Unknown,
                    };
                    let kind = match kind {
                        "create" => Kind::Create,
                        "update" => Kind::Update,
                        _ => Kind::Delete,
                    };
                    let key = words[1].to_owned();
                    let value = words[2].to_owned();
                    let expected = words[3].parse().ok();
                    history.writes.push(Write { key, kind, value, expected, began, ended, outcome });
                }
            }
        }
        history
    }

    /// Checks that a history has one violation with these words; none if they are empty.
    #[track_caller]
    fn expect(text: &str, words: &str) {
        let violations = check(&parse(text));
        match words.is_empty() {
            true => assert!(violations.is_empty(), "{violations:#?}"),
            false => assert!(violations.iter().any(|one| one.contains(words)), "{words}: {violations:#?}"),
        }
    }

    const GOOD: &str = "
        create a v1 - 1-2 done:11
        update a v2 11 3-6 done:12
        update a v3 11 4-7 refused
        update a v4 12 8-9 unknown
        read a 5-6 11=v1
        read a 10-11 13=v4
        delete a d1 13 12-13 done
        read a 14-15 absent
        create a v5 - 16-17 done:15
        list 18-19 15 a=15=v5
        list 10-11 13 a=13=v4
        watch one 10-15 11:a=v1 12:a=v2 13:a=v4 14:a-v4 15:a=v5
        watch two 12-15 13:a=v4 14:a-v4 15:a=v5
    ";

    #[test]
    fn a_good_history_has_no_violations() {
        expect(GOOD, "");
        // An unknown write that did not take place.
        expect("create a v1 - 1-2 done:11\nupdate a v2 11 3-4 unknown\nread a 5-6 11=v1\nwatch one 10-12 11:a=v1", "");
    }

    #[test]
    fn a_lost_write_is_found() {
        expect("create a v1 - 1-2 done:11\nwatch one 10-12", "is lost");
        expect("create a v1 - 1-2 done:11\nwatch one 10-12 11:a=other", "is lost");
        let deleted = "create a v1 - 1-2 done:11\ndelete a d 11 3-4 done\n";
        expect(&format!("{deleted}watch one 10-12 11:a=v1"), "is lost");
        expect(&format!("{deleted}watch one 10-12 11:a=v1 12:a-v1"), "");
    }

    #[test]
    fn a_stale_read_is_found() {
        let writes = "create a v1 - 1-2 done:11\nupdate a v2 11 3-4 done:12\nwatch one 10-12 11:a=v1 12:a=v2\n";
        expect(&format!("{writes}read a 5-6 11=v1"), "stale");
        expect(&format!("{writes}read a 3-6 11=v1"), "");
        expect(&format!("{writes}read a 5-6 absent"), "stale");
        expect(&format!("{writes}list 5-6 11 a=11=v1"), "stale");
        // A version that another client has seen is known too.
        let unknown = "create a v1 - 1-2 done:11\nupdate a v2 11 3-9 unknown\nwatch one 10-12 11:a=v1 12:a=v2\n";
        expect(&format!("{unknown}read a 4-5 12=v2\nread a 6-7 11=v1"), "stale");
        expect(&format!("{unknown}read a 4-5 11=v1\nread a 6-7 12=v2"), "");
    }

    #[test]
    fn a_list_that_is_no_state_is_found() {
        let writes = "create a v1 - 1-2 done:11\ncreate b w1 - 1-2 done:12\nwatch one 10-12 11:a=v1 12:b=w1\n";
        expect(&format!("{writes}list 3-4 12 a=11=v1"), "has b as None");
        expect(&format!("{writes}list 3-4 12 a=11=v1 b=12=w1"), "");
    }

    #[test]
    fn a_missing_repeated_or_misplaced_event_is_found() {
        let writes = "create a v1 - 1-2 done:11\nupdate a v2 11 3-4 done:12\nwatch one 10-12 11:a=v1 12:a=v2\n";
        expect(&format!("{writes}watch two 10-12 12:a=v2"), "two misses");
        expect(&format!("{writes}watch two 10-12 11:a=v1 11:a=v1 12:a=v2"), "two repeats");
        expect(&format!("{writes}watch two 10-12 12:a=v2 11:a=v1"), "after version 12");
        expect(&format!("{writes}watch two 10-12 11:a=v2 12:a=v2"), "watches disagree");
        expect(&format!("{writes}watch two 20-21"), "no watch covers");
    }

    #[test]
    fn a_broken_chain_is_found() {
        let created = "create a v1 - 1-2 done:11\n";
        expect(
            &format!(
                "{created}update a v2 11 3-4 done:12\nupdate a v3 11 5-6 done:13\nwatch one 10-13 11:a=v1 12:a=v2 13:a=v3"
            ),
            "expected Some(11)",
        );
        expect(&format!("{created}update a v2 11 3-4 refused\nwatch one 10-13 11:a=v1 12:a=v2"), "was refused");
        expect(&format!("{created}update a v2 11 3-4 refused\nwatch one 10-13 11:a=v1"), "without a reason");
        expect(&format!("{created}watch one 10-13 11:a=v1 12:a=v9"), "by no client");
        expect(&format!("{created}create a v2 - 3-4 unknown\nwatch one 10-13 11:a=v1 12:a=v2"), "expected None");
        expect(
            &format!("{created}update a v2 11 3-4 unknown\nwatch one 10-13 11:a=v1 12:a=v2 13:a=v2"),
            "took place twice",
        );
        expect(&format!("{created}watch one 10-13 11:a=v1 12:a-v1"), "nothing deleted");
    }

    #[test]
    fn a_write_that_is_ordered_before_a_known_one_is_found() {
        expect(
            "create a v1 - 1-2 done:12\ncreate b w1 - 3-4 done:11\nwatch one 10-12 11:b=w1 12:a=v1",
            "is ordered before",
        );
    }
}
