//! The process that unpacks one layer.
//!
//! Decompressors and tar readers work on bytes that an attacker may have written. They run in this binary started
//! again, with a limit on memory and processor time, and are the kernel's first choice when memory runs out: a layer
//! can kill its unpacker and nothing else. The process reads the blob from its standard input, works in its current
//! directory, and writes its result to its standard output.

use std::io::{self, Read, Write};
use std::path::Path;

use nix::sys::resource::{Resource, setrlimit};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::archive;
use super::digest::{Digest, shortened};
use super::layer::{self, MAX_LAYER_BYTES, Size};
use crate::Error;

/// The first argument of the process.
pub(crate) const COMMAND: &str = "unpack";
/// The argument after the digest: unpack into the current directory, instead of only comparing the digest.
pub(super) const HERE: &str = "here";
/// The memory limit beyond the program itself. The largest window that zstd accepts by default takes a third of it.
pub(super) const MEMORY: u64 = 384 << 20;
/// The limit of processor time. A valid layer of the largest size takes a fraction of it.
pub(super) const PROCESSOR_SECONDS: u64 = 3600;

/// The task of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task<'a> {
    /// Unpack the blob into this directory, and compare its content with the digest.
    Unpack(&'a Path),
    /// Only compare the blob's content with the digest.
    Verify,
}

/// The result of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done(Size),
    Refused(String),
}

/// Runs the process: `unpack DIGEST [here]`.
pub(crate) fn unpack_main(args: &[String]) -> i32 {
    let answer = match confine().map_err(Error::system("confine the unpacker")).and_then(|()| run(args)) {
        Ok(size) => Answer::Done(size),
        Err(Error::Image(reason)) => Answer::Refused(shortened(&reason)),
        Err(error) => Answer::Refused(shortened(&error.to_string())),
    };
    let mut line = serde_json::to_vec(&answer).unwrap_or_default();
    line.push(b'\n');
    match io::stdout().write_all(&line).and_then(|()| io::stdout().flush()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn run(args: &[String]) -> Result<Size, Error> {
    let digest = args.first().map(String::as_str).unwrap_or_default().parse()?;
    let task = match args.get(1).map(String::as_str) {
        Some(HERE) => Task::Unpack(Path::new(".")),
        _ => Task::Verify,
    };
    work(io::stdin().lock(), &digest, task)
}

/// Sets the limits. Memory is counted from the program's memory at its start, which differs between builds.
fn confine() -> io::Result<()> {
    let addresses = own_addresses()?.saturating_add(MEMORY);
    setrlimit(Resource::RLIMIT_AS, addresses, addresses)?;
    setrlimit(Resource::RLIMIT_CPU, PROCESSOR_SECONDS, PROCESSOR_SECONDS)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    std::fs::write("/proc/self/oom_score_adj", "1000")?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_name(c"corten-unpack")?;
    Ok(())
}

/// Returns the bytes of address space that this process has.
fn own_addresses() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    let kibibytes: Option<u64> = size.and_then(|size| size.parse().ok());
    kibibytes.map(|size| size << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))
}

/// Decompresses, unpacks and compares the digest of the whole content, including the bytes after the archive's end.
pub(crate) fn work(blob: impl Read, digest: &Digest, task: Task<'_>) -> Result<Size, Error> {
    let mut content = Hashing { inner: archive::decompress(blob)?, hasher: Sha256::new(), left: MAX_LAYER_BYTES };
    let size = match task {
        Task::Unpack(directory) => layer::unpack(&mut content, directory)?,
        Task::Verify => Size::default(),
    };
    io::copy(&mut content, &mut io::sink()).map_err(Error::system("read a layer"))?;
    let found = Digest::finish(content.hasher);
    if found != *digest {
        return Err(Error::Image(format!("layer {digest} has the content of {found}")));
    }
    Ok(size)
}

/// A reader that hashes its content, and fails if a layer is too long.
struct Hashing<R> {
    inner: R,
    hasher: Sha256,
    left: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "the layer is larger than a layer may be");
        self.left = self.left.checked_sub(read as u64).ok_or_else(too_long)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
