//! The durations of admission: of the chain and of each plugin, by operation and by whether the write was refused.
//!
//! Counting must cost next to nothing: one read of the clock and two additions a plugin.

use std::time::Instant;

use corten_meta::metrics::{Exposition, Family, Histogram};

use super::operation::Operation;
use crate::metrics::{ADMISSION, ADMISSION_PLUGIN_SECONDS, ADMISSION_STEP_SECONDS};

const STEPS: [&str; 2] = ["admit", "validate"];
const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// The two steps of admission.
#[derive(Clone, Copy)]
pub enum Step {
    Admit,
    Validate,
}

/// Durations by operation, by step, and by whether the write was refused.
#[derive(Default)]
pub struct Durations([[[Histogram<{ ADMISSION.len() }, 1_000_000_000>; 2]; STEPS.len()]; OPERATIONS.len()]);

impl Durations {
    /// Counts a step that began at `began`, and returns the current time.
    pub fn observe(&self, operation: Operation, step: Step, refused: bool, began: Instant) -> Instant {
        let now = Instant::now();
        let histogram = &self.0[operation as usize][step as usize][usize::from(refused)];
        histogram.observe((now - began).as_secs_f64(), ADMISSION);
        now
    }

    /// Counts a step that had nothing to do.
    pub fn observe_none(&self, operation: Operation, step: Step) {
        self.0[operation as usize][step as usize][0].observe(0.0, ADMISSION);
    }

    fn render(&self, out: &mut Exposition, family: &Family, name: Option<&str>) {
        for operation in OPERATIONS {
            for (step, word) in STEPS.iter().enumerate() {
                for (refused, rejected) in ["false", "true"].iter().enumerate() {
                    let histogram = &self.0[operation as usize][step][refused];
                    if histogram.count() > 0 {
                        let mut labels: Vec<&str> = name.into_iter().collect();
                        labels.extend([operation.word(), rejected, word]);
                        histogram.render(out, family, &labels);
                    }
                }
            }
        }
    }
}

/// Writes the durations of the chain and of its plugins.
pub fn render<'a>(
    out: &mut Exposition,
    steps: &Durations,
    plugins: impl Iterator<Item = (&'static str, &'a Durations)>,
) {
    out.family(&ADMISSION_STEP_SECONDS);
    steps.render(out, &ADMISSION_STEP_SECONDS, None);
    out.family(&ADMISSION_PLUGIN_SECONDS);
    for (name, durations) in plugins {
        durations.render(out, &ADMISSION_PLUGIN_SECONDS, Some(name));
    }
}
