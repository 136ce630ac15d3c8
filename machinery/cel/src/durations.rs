//! The durations of compiling and evaluating CEL expressions, under upstream's names.
//!
//! Several packages compile and evaluate expressions, so these metrics are of the process.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use corten_meta::metrics::{Registry, Series, families};

const SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

families! {
    COMPILATION = Histogram(SECONDS) "apiserver_cel_compilation_duration_seconds" [],
        "[BETA] CEL compilation time in seconds.";
    EVALUATION = Histogram(SECONDS) "apiserver_cel_evaluation_duration_seconds" [],
        "[BETA] CEL evaluation time in seconds.";
}

static EXPRESSIONS: LazyLock<Registry> = LazyLock::new(Registry::default);
static COMPILED: LazyLock<Arc<Series>> = LazyLock::new(|| EXPRESSIONS.series(&COMPILATION, &[]));
static EVALUATED: LazyLock<Arc<Series>> = LazyLock::new(|| EXPRESSIONS.series(&EVALUATION, &[]));

/// Renders both families, also before anything was compiled.
pub fn render() -> String {
    LazyLock::force(&COMPILED);
    LazyLock::force(&EVALUATED);
    EXPRESSIONS.render()
}

/// Runs a compilation, and records its duration.
pub fn compiling<T>(compile: impl FnOnce() -> T) -> T {
    let (result, took) = timed(compile);
    COMPILED.observe(took.as_secs_f64());
    result
}

/// Runs an evaluation, and records its duration.
pub fn evaluating<T>(evaluate: impl FnOnce() -> T) -> T {
    let (result, took) = timed(evaluate);
    EVALUATED.observe(took.as_secs_f64());
    result
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}
