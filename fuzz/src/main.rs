//! The fuzzer: mutates inputs of one target for a time, guided by their coverage, and writes down those that fail.
//!
//! `run` supervises a separate process that does the work: an input that ends that process is found in a file that is
//! written before each input. It exits with 1 if any input failed.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuzz::coverage::Coverage;
use fuzz::mutate::Mutator;
use fuzz::{Target, corpus, guard, memory, targets};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const USAGE: &str = "usage: fuzz list | fuzz run TARGET SECONDS FOLDER | fuzz try TARGET FILE...";
/// The stack of a thread of the API server: an input that needs more would end the server.
const STACK: usize = 2 << 20;
/// The time after which an input counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// The interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The number of inputs that may end the worker process before the run is over.
const MOST_DEATHS: usize = 5;
/// The exit codes of the worker process.
const NOTHING_FOUND: i32 = 0;
const NOT_RUN: i32 = 1;
const FOUND: i32 = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["list"] => list(),
        ["run", name, seconds, folder] => supervise(name, seconds, Path::new(folder)),
        ["work", name, seconds, folder] => work(name, seconds, Path::new(folder)),
        ["try", name, files @ ..] => try_files(name, files),
        _ => Err(io::Error::other(USAGE)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("fuzz: {error}");
        ExitCode::FAILURE
    })
}

fn list() -> io::Result<ExitCode> {
    for target in targets::all() {
        println!("{}", target.name);
    }
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> io::Result<&'static Target> {
    targets::all().find(|target| target.name == name).ok_or_else(|| io::Error::other(format!("no target {name}")))
}

/// Runs the given inputs, and prints the result of each.
fn try_files(name: &str, files: &[&str]) -> io::Result<ExitCode> {
    let target = find(name)?;
    guard::prepare();
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match guard::run(target, &std::fs::read(file)?) {
            Ok(()) => println!("{file}: passes"),
            Err(failure) => {
                println!("{file}: {}: {}", failure.place, failure.message);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// Runs the worker process; an input that ended it is a finding, after which another process continues.
fn supervise(name: &str, seconds: &str, folder: &Path) -> io::Result<ExitCode> {
    find(name)?;
    std::fs::create_dir_all(folder)?;
    let time = Duration::from_secs(seconds.parse().map_err(io::Error::other)?);
    let begin = Instant::now();
    for deaths in 0..MOST_DEATHS {
        let left = time.saturating_sub(begin.elapsed()).as_secs().to_string();
        let status = Command::new(std::env::current_exe()?).args(["work", name, &left]).arg(folder).status()?;
        match status.code() {
            Some(NOTHING_FOUND) if deaths == 0 => return Ok(ExitCode::SUCCESS),
            Some(NOTHING_FOUND | FOUND) => return Ok(ExitCode::FAILURE),
            // The process has printed the reason.
            Some(NOT_RUN) => return Err(io::Error::other("the fuzzer does not run")),
            _ => {
                let input = read_current(&folder.join("current"))?;
                let path = corpus::write(&folder.join("findings"), &input)?;
                println!("{name}: FOUND an input that ends the process ({status}): {}", path.display());
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Returns the input that was about to run: its length, then its bytes.
fn read_current(place: &Path) -> io::Result<Vec<u8>> {
    let bytes = std::fs::read(place)?;
    let (length, input) = bytes.split_at_checked(4).ok_or_else(|| io::Error::other("no input was tried"))?;
    let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
    Ok(input.get(..length).unwrap_or(input).to_vec())
}

fn work(name: &str, seconds: &str, folder: &Path) -> io::Result<ExitCode> {
    let target = find(name)?;
    let seconds = seconds.parse().map_err(io::Error::other)?;
    let folder = folder.to_owned();
    guard::prepare();
    guard::confine();
    let worker = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let mut session = Session::new(target, &folder)?;
        session.run(Duration::from_secs(seconds))
    })?;
    let found = worker.join().map_err(|_| io::Error::other("the fuzzer itself panicked"))??;
    if found > 0 {
        std::process::exit(FOUND);
    }
    Ok(ExitCode::SUCCESS)
}

/// One run of one target.
struct Session {
    target: &'static Target,
    corpus: Vec<Vec<u8>>,
    mutator: Mutator,
    coverage: Coverage,
    /// The file with the current input.
    current: std::fs::File,
    kept: PathBuf,
    findings: PathBuf,
    /// The locations of the failures so far, each of which is written down once.
    places: BTreeSet<String>,
    tried: Arc<AtomicU64>,
}

impl Session {
    fn new(target: &'static Target, folder: &Path) -> io::Result<Session> {
        let seeds = (target.seeds)();
        let kept = folder.join("corpus");
        let saved = corpus::read(&kept)?;
        // Every run differs: it begins with the findings of the earlier ones.
        let random = u64::from(std::process::id()) << 32 | saved.len() as u64;
        let mutator = Mutator::new(random, &seeds);
        let mut session = Session {
            target,
            corpus: Vec::new(),
            mutator,
            coverage: Coverage::new(),
            current: std::fs::File::create(folder.join("current"))?,
            kept,
            findings: folder.join("findings"),
            places: BTreeSet::new(),
            tried: Arc::default(),
        };
        for input in seeds.into_iter().chain(corpus::regressions(target)).chain(saved) {
            session.feed(&input)?;
            session.corpus.push(input);
        }
        Ok(session)
    }

    /// Runs inputs for a time, and returns the number of failures.
    fn run(&mut self, time: Duration) -> io::Result<usize> {
        if !self.coverage.is_counted() {
            return Err(io::Error::other("the code is not instrumented: use `cargo xtask fuzz`"));
        }
        watch(Arc::clone(&self.tried));
        let begin = Instant::now();
        let mut last_report = begin;
        self.report("begins");
        while begin.elapsed() < time {
            let input = self.mutator.mutated(&self.corpus);
            if self.feed(&input)? {
                corpus::write(&self.kept, &input)?;
                self.corpus.push(input);
            }
            if last_report.elapsed() > REPORT_INTERVAL {
                last_report = Instant::now();
                self.report("goes on");
            }
        }
        self.report("ends");
        Ok(self.places.len())
    }

    /// Runs one input, and returns whether it reached new code.
    fn feed(&mut self, input: &[u8]) -> io::Result<bool> {
        let length = (input.len() as u32).to_le_bytes();
        self.current.write_all_at(&[&length, input].concat(), 0)?;
        self.coverage.begin();
        let outcome = guard::run(self.target, input);
        let is_new = self.coverage.end();
        self.tried.fetch_add(1, Ordering::Relaxed);
        if let Err(failure) = outcome
            && self.places.insert(failure.place.clone())
        {
            let path = corpus::write(&self.findings, input)?;
            println!("{}: FOUND {}: {} ({})", self.target.name, failure.place, failure.message, path.display());
        }
        Ok(is_new)
    }

    fn report(&self, what: &str) {
        println!(
            "{} {what}: {} inputs tried, {} edges reached, {} inputs kept",
            self.target.name,
            self.tried.load(Ordering::Relaxed),
            self.coverage.edges(),
            self.corpus.len()
        );
    }
}

/// Ends the process if one input runs for too long.
fn watch(tried: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        let mut last = tried.load(Ordering::Relaxed);
        loop {
            std::thread::sleep(HANGS_AFTER);
            let now = tried.load(Ordering::Relaxed);
            if now == last {
                std::process::abort();
            }
            last = now;
        }
    });
}
