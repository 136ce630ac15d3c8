//! The progress of a starting server for `corten up`: one line per milestone on an inherited pipe.
//!
//! The reader of a pipe gets each step at once, and notices the server's death too, without polling.

use std::fs::File;
use std::io::Write;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use crate::{descriptors, supervision};

/// The milestones of a start, in their order.
pub const STEPS: [&str; 6] = ["store", "apiserver", "controllers", "node", "dns", "ready"];

/// The receiver of milestones: the pipe of `corten up`, systemd, or only the log.
#[derive(Clone)]
pub struct Progress {
    pipe: Arc<Mutex<Option<File>>>,
}

impl Progress {
    /// Takes the inherited descriptor, if there is one.
    pub fn new(descriptor: Option<RawFd>) -> Progress {
        // A process that outlives this one must not keep the pipe open.
        let pipe = descriptor.and_then(descriptors::take).map(File::from);
        Progress { pipe: Arc::new(Mutex::new(pipe)) }
    }

    /// Reports a milestone.
    pub fn reached(&self, step: &str) {
        tracing::info!(step, "reached");
        self.line(step);
        if step == "ready" {
            supervision::notify("READY=1");
            self.close();
        }
    }

    /// Reports that the start failed, with the error.
    pub fn failed(&self, why: &str) {
        self.line(&format!("error {}", why.replace('\n', " ")));
        self.close();
    }

    fn line(&self, line: &str) {
        if let Ok(mut pipe) = self.pipe.lock()
            && let Some(file) = pipe.as_mut()
        {
            // The reader may have ended; the server continues without it.
            let _ = writeln!(file, "{line}");
        }
    }

    fn close(&self) {
        if let Ok(mut pipe) = self.pipe.lock() {
            *pipe = None;
        }
    }
}
