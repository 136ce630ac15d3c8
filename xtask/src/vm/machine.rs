//! A virtual machine: the emulator with a kernel, an initramfs and a serial console, for as long as it may take.
//!
//! The emulator interprets every instruction: KVM is seldom there where tests run. The machine has no disk and no network.
//! Its console is passed on line by line, and the last words on it are the result.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::tree::Tree;

/// The most bytes of a line and of the whole console that are read.
const LONGEST_LINE: u64 = 64 << 10;
const LONGEST_CONSOLE: u64 = 64 << 20;
/// The words before the code of the tests' program, as `init.sh` prints them.
const RESULT: &str = "the tests ended with ";
/// The processors and the memory of the machine. What is not touched is not taken from the host.
const PROCESSORS: &str = "2";
const MEMORY: &str = "4096";

/// A busy host delivers the emulated timer late, which the kernel would take for a broken one.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 no_timer_check";

/// The end of a machine.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// The code of the tests' program.
    Code(i32),
    /// It ended without a result.
    Silent,
    /// It was stopped after this time.
    Deadline(Duration),
}

/// The emulator's process, which ends with its holder.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots the tree's kernel with an initramfs of the tree, and returns how it ended; stops it at the deadline. The console goes
/// to standard output and to a file.
pub fn run(tree: &Tree, initramfs: &str, log: &Path, deadline: Duration) -> Result<Ending> {
    let mut child = command(tree, initramfs).spawn().context("chroot, of coreutils, cannot be run")?;
    let console = child.stdout.take().context("the emulator has no console")?;
    let emulator = Emulator(child);
    let mut log = std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let (sender, lines) = sync_channel(64);
    let reader = std::thread::spawn(move || {
        let mut console = BufReader::new(console.take(LONGEST_CONSOLE));
        while let Some(line) = next_line(&mut console) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + deadline;
    let mut code = None;
    let ending = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                println!("vm| {line}");
                writeln!(log, "{line}")?;
                code = code.or_else(|| result(&line));
            }
            Err(RecvTimeoutError::Disconnected) => break code.map_or(Ending::Silent, Ending::Code),
            Err(RecvTimeoutError::Timeout) => break Ending::Deadline(deadline),
        }
    };
    drop(emulator);
    drop(lines);
    let _ = reader.join();
    Ok(ending)
}

fn command(tree: &Tree, initramfs: &str) -> Command {
    let mut command = Command::new("chroot");
    command.arg(tree.root()).arg("/usr/bin/qemu-system-x86_64");
    command.args(["-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", PROCESSORS, "-m", MEMORY]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
    command.args(["-kernel", &tree.kernel(), "-initrd", initramfs]);
    command.args(["-append", KERNEL_ARGUMENTS]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Reads a line of the console, without the control characters of firmware and of terminals.
fn next_line(console: &mut impl BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    let length = console.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let plain = text.chars().filter(|character| !character.is_control() || *character == '\t');
    (length > 0).then(|| plain.collect())
}

fn result(line: &str) -> Option<i32> {
    line.strip_prefix(RESULT)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_read_by_lines_without_control_characters() {
        let mut console = BufReader::new(&b"\x1bcbooting\r\na\tb\n\xff"[..]);
        assert_eq!(next_line(&mut console).as_deref(), Some("cbooting"));
        assert_eq!(next_line(&mut console).as_deref(), Some("a\tb"));
        assert_eq!(next_line(&mut console).as_deref(), Some("\u{fffd}"));
        assert_eq!(next_line(&mut console), None);
        let long = vec![b'x'; LONGEST_LINE as usize + 1];
        assert_eq!(next_line(&mut &long[..]).map(|line| line.len()), Some(LONGEST_LINE as usize));
    }

    #[test]
    fn only_the_words_of_the_result_are_one() {
        assert_eq!(result("the tests ended with 0"), Some(0));
        assert_eq!(result("the tests ended with 101"), Some(101));
        for line in ["", "the tests ended with", "vm| the tests ended with 0", "the tests ended with x"] {
            assert_eq!(result(line), None, "{line}");
        }
    }
}
