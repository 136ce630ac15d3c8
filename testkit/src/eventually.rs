//! Waits for a condition in asynchronous tests. A failure comes within seconds, and shows the last observation.

use std::time::Duration;

/// The pause between two observations.
const PAUSE: Duration = Duration::from_millis(10);

/// The number of observations. They are counted instead of the seconds, which a busy machine has fewer of: at least ten
/// seconds pass before a failure.
const OBSERVATIONS: usize = 1_000;

/// Observes until the observation is `Ok`, and returns it; panics with the last `Err` otherwise.
pub async fn eventually<T>(what: &str, observe: impl AsyncFnMut() -> Result<T, String>) -> T {
    let found = repeat(observe).await;
    found.unwrap_or_else(|last| panic!("{what}: not so after {OBSERVATIONS} observations; the last: {last}"))
}

/// Observes until the observation is `Ok`, or too often; returns the last.
pub async fn repeat<T, E>(mut observe: impl AsyncFnMut() -> Result<T, E>) -> Result<T, E> {
    let mut last = observe().await;
    for _ in 1..OBSERVATIONS {
        if last.is_ok() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        last = observe().await;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_success_is_returned() {
        let mut observed = 0;
        let found = eventually("three", async || {
            observed += 1;
            if observed == 3 { Ok(observed) } else { Err(observed.to_string()) }
        });
        assert_eq!(found.await, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "the pod runs: not so after 1000 observations; the last: Pending")]
    async fn a_failure_shows_the_last_observation() {
        eventually::<()>("the pod runs", async || Err("Pending".to_owned())).await;
    }
}
