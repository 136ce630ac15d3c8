//! How long expressions take to compile and to evaluate, under upstream's names.
//!
//! They are compiled and evaluated in many places that know of no server, so this is counted for the process.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use corten_meta::metrics::{Family, Kind, Registry, Series};

const SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

static COMPILATION: Family = Family {
    name: "apiserver_cel_compilation_duration_seconds",
    kind: Kind::Histogram(SECONDS),
    labels: &[],
    help: "How long expressions took to compile.",
};

static EVALUATION: Family = Family {
    name: "apiserver_cel_evaluation_duration_seconds",
    kind: Kind::Histogram(SECONDS),
    labels: &[],
    help: "How long expressions took to evaluate.",
};

static EXPRESSIONS: LazyLock<Registry> = LazyLock::new(Registry::default);
static COMPILED: LazyLock<Arc<Series>> = LazyLock::new(|| EXPRESSIONS.series(&COMPILATION, &[]));
static EVALUATED: LazyLock<Arc<Series>> = LazyLock::new(|| EXPRESSIONS.series(&EVALUATION, &[]));

/// Both families, also before anything was compiled.
pub fn render() -> String {
    LazyLock::force(&COMPILED);
    LazyLock::force(&EVALUATED);
    EXPRESSIONS.render()
}

/// Compiles something, and counts how long it took.
pub fn compiling<T>(compile: impl FnOnce() -> T) -> T {
    let (result, took) = timed(compile);
    COMPILED.observe(took.as_secs_f64());
    result
}

/// Evaluates something, and counts how long it took.
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
