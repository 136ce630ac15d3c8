//! The configuration file: flags by their names, in YAML.
//!
//! A key is the name of a flag without its dashes, a value what the flag takes; a list repeats it, and `true` is a flag
//! without a value. Every command takes from it the flags that it has; those of the command line win. So one file serves
//! the server, and the commands that look for it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches};
use corten_meta::{Value, decode_yaml};

use crate::cli::Cli;
use crate::flag_values::DEFAULT_CONFIG_FILE;

/// A configuration file without settings, for child processes whose flags are complete.
pub const NONE: &str = "/dev/null";
/// The most bytes of a configuration file.
const MOST: u64 = 1 << 20;

/// A setting: the name of a flag, and the values that it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    pub values: Vec<String>,
}

/// Parses the command line, with the flags of the configuration file. An error of the command line is a `clap::Error`.
pub fn parse(words: Vec<OsString>) -> Result<Cli> {
    // Errors of the command line itself, and its help, come before those of the file.
    let first = Cli::command().ignore_errors(true).try_get_matches_from(&words)?;
    let path: PathBuf = first.get_one::<PathBuf>("config_file").cloned().unwrap_or_else(|| DEFAULT_CONFIG_FILE.into());
    let is_given = first.value_source("config_file") == Some(ValueSource::CommandLine);
    let settings = match read(&path) {
        Ok(settings) => settings,
        Err(error) if !is_given && is_missing(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    let words = [words, added(&first, &settings)?].concat();
    let matches = Cli::command().try_get_matches_from(words)?;
    Ok(Cli::from_arg_matches(&matches)?)
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Reads a configuration file.
pub fn read(path: &Path) -> Result<Vec<Setting>> {
    let failed = || format!("cannot read {}", path.display());
    let mut text = String::new();
    // The length of a device is not known.
    File::open(path).and_then(|file| file.take(MOST + 1).read_to_string(&mut text)).with_context(failed)?;
    ensure!(text.len() as u64 <= MOST, "{} is larger than {MOST} bytes", path.display());
    settings(&text).with_context(|| path.display().to_string())
}

fn settings(text: &str) -> Result<Vec<Setting>> {
    let document = match text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        true => return Ok(Vec::new()),
        false => decode_yaml(text.as_bytes())?,
    };
    let map = document.as_object().context("it is not a map of flags")?;
    let setting = |(name, value): (&String, &Value)| {
        let values = match value {
            Value::Array(list) => list.iter().map(scalar).collect::<Result<Vec<_>>>(),
            value => scalar(value).map(|value| vec![value]),
        };
        Ok(Setting { name: name.clone(), values: values.with_context(|| name.clone())? })
    };
    map.iter().map(setting).collect()
}

fn scalar(value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        _ => bail!("it is neither a text nor a number, true, false or a list of these"),
    })
}

/// Returns the words that a command line gets from the file: the flags that its command has and that it does not give.
fn added(matches: &clap::ArgMatches, settings: &[Setting]) -> Result<Vec<OsString>> {
    let mut command = Cli::command();
    command.build();
    let mut matches = matches;
    while let Some((name, inner)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        command = found.clone();
        matches = inner;
    }
    let mut words = Vec::new();
    for setting in settings {
        let Some(argument) = command.get_arguments().find(|one| one.get_long() == Some(&setting.name)) else {
            continue;
        };
        let id = argument.get_id().as_str();
        let is_given =
            matches.ids().any(|known| known == id) && matches.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given {
            words.extend(arguments(argument, setting)?);
        }
    }
    Ok(words)
}

fn arguments(argument: &clap::Arg, setting: &Setting) -> Result<Vec<OsString>> {
    let name = &setting.name;
    if matches!(argument.get_action(), ArgAction::SetTrue) {
        return match setting.values.as_slice() {
            [value] if value == "true" => Ok(vec![format!("--{name}").into()]),
            [value] if value == "false" => Ok(Vec::new()),
            _ => bail!("{name}: it is either true or false"),
        };
    }
    Ok(setting.values.iter().map(|value| OsString::from(format!("--{name}={value}"))).collect())
}

/// Checks a configuration file as the server, an agent and all other commands would read it; returns the number of settings.
pub fn check(path: &Path) -> Result<usize> {
    let settings = read(path)?;
    let mut command = Cli::command();
    command.build();
    let commands = leaves(&command, &["corten".to_owned()]);
    let mut known = BTreeSet::new();
    for (words, command) in &commands {
        let has = |setting: &&Setting| command.get_arguments().any(|one| one.get_long() == Some(&setting.name));
        let own: Vec<Setting> = settings.iter().filter(has).cloned().collect();
        known.extend(own.iter().map(|setting| setting.name.clone()));
        // A command that needs more than its flags cannot be tried; its flags are those of others.
        if own.is_empty() || command.get_arguments().any(clap::Arg::is_required_set) {
            continue;
        }
        let mut line: Vec<OsString> = words.iter().map(OsString::from).collect();
        for setting in &own {
            let argument = command.get_arguments().find(|one| one.get_long() == Some(&setting.name));
            line.extend(argument.map(|argument| arguments(argument, setting)).transpose()?.unwrap_or_default());
        }
        if let Err(error) = Cli::command().try_get_matches_from(line)
            && error.kind() != ErrorKind::MissingRequiredArgument
        {
            bail!("{}: {}", words.join(" "), error.to_string().lines().next().unwrap_or_default());
        }
    }
    let unknown: Vec<&str> =
        settings.iter().map(|setting| setting.name.as_str()).filter(|name| !known.contains(*name)).collect();
    ensure!(unknown.is_empty(), "no command has these flags: {}", unknown.join(", "));
    Ok(settings.len())
}

/// Returns the commands without subcommands, each with the words that call it.
fn leaves<'a>(command: &'a clap::Command, words: &[String]) -> Vec<(Vec<String>, &'a clap::Command)> {
    if !command.has_subcommands() {
        return vec![(words.to_vec(), command)];
    }
    let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
    inner.flat_map(|inner| leaves(inner, &[words, &[inner.get_name().to_owned()]].concat())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, Server};

    fn server(config: &str, words: &[&str]) -> Result<Server, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, config).unwrap();
        let file = format!("--config-file={}", path.display());
        let words = ["corten", "server", &file].iter().chain(words).map(OsString::from).collect();
        match parse(words).map_err(|error| format!("{error:#}"))?.command {
            Command::Server(server) => Ok(server),
            other => panic!("{other:?}"),
        }
    }

    const FILE: &str = "# a comment
node-name: from-file
port: 7443
tls-san: [a.example, b.example]
disable-console: true
disable-scheduler: false
proxy-mode: ebpf
container-runtime-endpoint: of another command
";

    #[test]
    fn flags_of_the_file_are_taken_and_those_of_the_command_line_win() {
        let read = server(FILE, &["--node-name", "from-line"]).unwrap();
        assert_eq!(read.node_name.as_deref(), Some("from-line"));
        assert_eq!(read.port, 7443);
        assert_eq!(read.tls_san, ["a.example", "b.example"]);
        assert!(read.access.disable_console && !read.disable_scheduler);
        let read = server(FILE, &["--tls-san", "c.example"]).unwrap();
        assert_eq!(read.tls_san, ["c.example"]);
        assert_eq!(server("", &[]).unwrap().port, 6443);
    }

    #[test]
    fn a_file_with_errors_is_refused() {
        for (file, sentence) in [
            ("port: many", "port"),
            ("port: {a: b}", "port: it is neither"),
            ("disable-console: maybe", "disable-console: it is either true or false"),
            ("- port", "it is not a map of flags"),
            ("port: [", "config.yaml"),
        ] {
            let refused = server(file, &[]).unwrap_err();
            assert!(refused.contains(sentence), "{file}: {refused}");
        }
        let words = ["corten", "server", "--config-file=/no/such/file"].map(OsString::from).to_vec();
        assert!(format!("{:#}", parse(words).unwrap_err()).contains("/no/such/file"));
    }

    #[test]
    fn files_that_are_no_configuration_are_refused_by_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let aliases: String =
            (0..40).map(|level| format!("a{}: &x{} [*x{level}, *x{level}]\n", level + 1, level + 1)).collect();
        for content in [
            vec![0xff, 0xfe, 0],
            vec![b'a'; 2 << 20],
            b"port: 1\nport: 2\n".to_vec(),
            b"port: !!binary aGVsbG8=\n? [a, b]\n: c\n".to_vec(),
            format!("a0: &x0 [1]\n{aliases}").into_bytes(),
            "[".repeat(100_000).into_bytes(),
            b"\tport: 1".to_vec(),
        ] {
            std::fs::write(&path, &content).unwrap();
            let shown = String::from_utf8_lossy(&content[..content.len().min(20)]).into_owned();
            let refused = format!("{:#}", check(&path).expect_err(&shown));
            assert!(refused.contains("config.yaml") && refused.len() < 1000, "{shown}: {refused}");
        }
        assert!(format!("{:#}", check(Path::new("/dev/zero")).unwrap_err()).contains("larger than"));
        assert!(format!("{:#}", check(dir.path()).unwrap_err()).contains("cannot read"));
    }

    #[test]
    fn a_file_is_checked_for_all_commands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        for (file, outcome) in [
            (FILE, Ok(7)),
            ("", Ok(0)),
            ("data-dir: /srv/corten", Ok(1)),
            ("prot: 7443", Err("no command has these flags: prot")),
            ("proxy-mode: fast", Err("proxy-mode")),
        ] {
            std::fs::write(&path, file).unwrap();
            match (check(&path), outcome) {
                (Ok(count), Ok(expected)) => assert_eq!(count, expected, "{file}"),
                (Err(error), Err(sentence)) => assert!(format!("{error:#}").contains(sentence), "{error:#}"),
                (other, expected) => panic!("{file}: {other:?}, not {expected:?}"),
            }
        }
    }
}
