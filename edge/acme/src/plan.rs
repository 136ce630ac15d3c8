//! The time of the next order of a certificate: pure decisions.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::Error;
use crate::held::Held;

/// The pauses after failed orders, in minutes. Authorities allow few failures an hour for a name (Let's Encrypt: five).
const PAUSES: [u64; 5] = [1, 5, 15, 30, 60];
/// The longest pause after a failed order.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The longest pause after a failure that the authority did not see.
const LONGEST_LOCAL: Duration = Duration::from_secs(5 * 60);
/// The shortest pause after the authority limited the rate, if it named none.
const LIMITED: Duration = Duration::from_secs(3600);

/// The next step for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Now,
    At(Timestamp),
}

/// Decides when a certificate is ordered: at once if there is none for these names, and after two thirds of its life; but
/// not before the pause after a failure has passed.
pub fn due(held: Option<&Held>, names: &BTreeSet<String>, retry_at: Option<Timestamp>, now: Timestamp) -> Due {
    let renewal = match held {
        Some(held) if held.names == *names => renewal(held),
        _ => now,
    };
    let at = retry_at.map_or(renewal, |retry_at| renewal.max(retry_at));
    if at <= now { Due::Now } else { Due::At(at) }
}

/// Returns the time after two thirds of a certificate's life.
fn renewal(held: &Held) -> Timestamp {
    let life = held.not_after.as_second().saturating_sub(held.not_before.as_second()).max(0);
    let seconds = held.not_before.as_second().saturating_add(life / 3 * 2);
    Timestamp::from_second(seconds).unwrap_or(held.not_after)
}

/// Returns the pause after a number of failed orders, of which the last failed with this error.
pub fn pause(failures: u32, error: &Error) -> Duration {
    let index = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX);
    let minutes = PAUSES.get(index).copied().unwrap_or_else(|| {
        let doublings = failures.saturating_sub(PAUSES.len() as u32).min(16);
        60u64 << doublings
    });
    let mut pause = Duration::from_secs(minutes * 60).min(LONGEST);
    if error.is_local() {
        pause = pause.min(LONGEST_LOCAL);
    }
    if error.is_rate_limited() {
        pause = pause.max(LIMITED);
    }
    pause.max(error.retry_after().unwrap_or_default())
}

/// Returns a time after a pause.
pub fn after(now: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    now.checked_add(pause).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let held = Held { names: names(&["a.test"]), not_before: at(1000), not_after: at(1900) };
        let due_at = |second: i64| due(Some(&held), &names(&["a.test"]), None, at(second));
        assert_eq!(due_at(1000), Due::At(at(1600)));
        assert_eq!(due_at(1599), Due::At(at(1600)));
        assert_eq!(due_at(1600), Due::Now);
        assert_eq!(due(Some(&held), &names(&["a.test", "b.test"]), None, at(1000)), Due::Now);
        assert_eq!(due(None, &names(&["a.test"]), None, at(0)), Due::Now);
        assert_eq!(due(None, &names(&["a.test"]), Some(at(5)), at(0)), Due::At(at(5)));
    }

    #[test]
    fn pauses_grow_and_respect_the_authority() {
        let refused = |kind: &str, seconds: Option<u64>| Error::Refused {
            kind: format!("urn:ietf:params:acme:error:{kind}"),
            detail: String::new(),
            retry_after: seconds.map(Duration::from_secs),
        };
        let minutes = |failures: u32, error: &Error| pause(failures, error).as_secs() / 60;
        let connection = refused("connection", None);
        let grown: Vec<u64> = (1..=8).map(|failures| minutes(failures, &connection)).collect();
        assert_eq!(grown, [1, 5, 15, 30, 60, 120, 240, 480]);
        assert_eq!(pause(99, &connection), LONGEST);
        assert_eq!(minutes(1, &refused("rateLimited", None)), 60);
        assert_eq!(minutes(1, &refused("rateLimited", Some(3 * 3600))), 180);
        assert_eq!(minutes(9, &Error::Unreachable(String::new())), 5);
    }
}
