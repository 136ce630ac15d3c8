//! Waits until EC2 shows a state, with growing pauses and a deadline below that of the callers.

use std::time::Duration;

use corten_storage_plugin::error::{Error, Result};
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The time after which the caller is asked to repeat the call. Callers of CSI wait for 60 seconds.
const DEADLINE: Duration = Duration::from_secs(45);

/// The pauses between questions for a state.
pub struct Wait {
    /// The change that is waited for.
    change: String,
    deadline: Instant,
    pause: Duration,
}

impl Wait {
    pub fn new(change: String) -> Wait {
        Wait { change, deadline: Instant::now() + DEADLINE, pause: FIRST_PAUSE }
    }

    /// Pauses before the next question; fails when the time is over.
    pub async fn pause(&mut self) -> Result<()> {
        if Instant::now() + self.pause > self.deadline {
            let sentence = format!("{} takes longer than {} seconds", self.change, DEADLINE.as_secs());
            return Err(Error::Unavailable(sentence));
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
