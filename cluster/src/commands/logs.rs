//! `corten logs`: the log of the cluster's own process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::cli;
use crate::directories::Directories;
use crate::preflight;

pub fn run(flags: &cli::Logs) -> Result<()> {
    preflight::root_for("logs")?;
    let mut directories = Directories::of(&flags.directories);
    if let Some(name) = &flags.node {
        let known = directories.further_nodes();
        ensure!(
            known.contains(name),
            "there is no node {name:?} with a log of its own; there are: {}",
            known.join(", ")
        );
        directories = directories.node(name);
    }
    let path = directories.log();
    let mut file = File::open(&path).with_context(|| format!("there is no log at {}", path.display()))?;
    copy(&mut file)?;
    if flags.follow { follow(&path, file) } else { Ok(()) }
}

/// Waits for the file to grow and copies the new part; inotify reports changes.
fn follow(path: &Path, mut file: File) -> Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC).context("cannot watch the log")?;
    inotify.add_watch(path, AddWatchFlags::IN_MODIFY).context("cannot watch the log")?;
    loop {
        copy(&mut file)?;
        inotify.read_events().context("cannot watch the log")?;
        let size = file.metadata()?.len();
        if size < file.stream_position()? {
            file.seek(SeekFrom::Start(0))?;
        }
    }
}

fn copy(file: &mut File) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let mut buffer = [0; 16 * 1024];
    loop {
        let read = file.read(&mut buffer).context("cannot read the log")?;
        if read == 0 {
            return Ok(stdout.flush()?);
        }
        stdout.write_all(&buffer[..read])?;
    }
}
