//! Secrets in arguments: tokens and passwords.
//!
//! Every user of the machine can read the arguments of every process. A secret among them is overwritten as soon as the
//! command runs, but it was visible for a moment; with `-` in its place the command reads it from standard input
//! instead.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

/// The argument that stands for standard input.
const STANDARD_INPUT: &str = "-";
/// The bytes that a pipe holds without a reader.
const PIPE_BYTES: usize = 4096;
/// The largest number of bytes that are read: far more than a password or a list of tokens.
const MOST: u64 = 64 << 10;

/// Returns the secret of an argument, or the one line of standard input that it stands for.
pub fn one(argument: &str) -> Result<String> {
    let mut all = several(&[argument.to_owned()])?;
    match (all.pop(), all.is_empty()) {
        (Some(secret), true) => Ok(secret),
        _ => bail!("standard input has more than one line, and one secret is wanted"),
    }
}

/// Returns the secrets of arguments. `-` stands for the lines of standard input.
pub fn several(arguments: &[String]) -> Result<Vec<String>> {
    let mut secrets = Vec::new();
    for argument in arguments {
        if argument == STANDARD_INPUT {
            secrets.extend(lines(std::io::stdin().lock())?);
        } else {
            // A failure is not fatal: the user put the secret there.
            if let Err(error) = hide_argument(argument) {
                eprintln!("warning: a secret stays in the process list: {error:#}");
            }
            secrets.push(argument.clone());
        }
    }
    Ok(secrets)
}

/// Returns an input for another process that holds one secret, which then is in no list of processes.
pub fn as_input(secret: &str) -> Result<Stdio> {
    let (reader, mut writer) = std::io::pipe().context("cannot make a pipe")?;
    ensure!(secret.len() < PIPE_BYTES, "the secret is too long");
    writer.write_all(format!("{secret}\n").as_bytes()).context("cannot write to a pipe")?;
    Ok(reader.into())
}

/// Returns the lines of an input that are not empty; there must be at least one.
fn lines(input: impl Read) -> Result<Vec<String>> {
    let mut text = String::new();
    input.take(MOST + 1).read_to_string(&mut text).context("standard input cannot be read as text")?;
    ensure!(text.len() as u64 <= MOST, "standard input is longer than {MOST} bytes");
    let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    ensure!(!lines.is_empty(), "standard input has no secret");
    Ok(lines)
}

/// Overwrites a secret in this process's command line, which every user of the machine can read as long as the process
/// runs.
fn hide_argument(secret: &str) -> Result<()> {
    let line = std::fs::read("/proc/self/cmdline").context("the own command line cannot be read")?;
    let start = start_of_arguments().context("where the own command line begins is unknown")?;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem").context("the own memory cannot be written")?;
    for at in memchr::memmem::find_iter(&line, secret.as_bytes()) {
        let hidden = vec![b'x'; secret.len()];
        memory.write_all_at(&hidden, start + at as u64).context("the own command line cannot be changed")?;
    }
    Ok(())
}

/// Returns the address of the command line: the 48th field of the process's statistics, counted after the name in
/// parentheses.
fn start_of_arguments() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(48 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn standard_input_is_read_by_lines() {
        assert_eq!(lines(&b"user:pass word\n"[..]).unwrap(), ["user:pass word"]);
        assert_eq!(lines(&b"a.b\r\n\nc.d"[..]).unwrap(), ["a.b", "c.d"]);
        for bad in [&b""[..], b"\n", b"\xff\n", &[b'a'; MOST as usize + 1]] {
            assert!(lines(bad).is_err(), "{} bytes", bad.len());
        }
    }

    #[test]
    fn a_hidden_argument_is_gone_from_the_command_line() {
        let line = || String::from_utf8_lossy(&std::fs::read("/proc/self/cmdline").unwrap()).into_owned();
        let before = line();
        let name = Path::new(before.split('\0').next().unwrap()).file_name().unwrap().to_string_lossy().into_owned();
        hide_argument(&name).unwrap();
        assert_eq!(line(), before.replace(&name, &"x".repeat(name.len())));
    }
}
