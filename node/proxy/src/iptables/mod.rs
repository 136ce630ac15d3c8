//! Services by iptables, for hosts whose other rules need it: all our rules of `nat` and `filter` are in chains named
//! `CORTEN-…`, which one `iptables-restore` replaces.
//!
//! The cost of a change follows from the number of Services, as it always has with iptables; nf_tables is the default
//! for that reason. Reading order: `ruleset` is the rules, purely; this file runs the programs.

mod ruleset;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use corten_nftables::IpFamily;

pub(crate) use ruleset::{Portal, Ruleset, render};

use crate::error::Error;

/// The seconds to wait for other programs that change the rules.
const WAIT: &str = "10";
/// The jumps to our chains: table, chain, match, and target.
const JUMPS: [(&str, &str, &[&str], &str); 6] = [
    ("nat", "PREROUTING", &[], ruleset::SERVICES),
    ("nat", "OUTPUT", &[], ruleset::SERVICES),
    ("nat", "POSTROUTING", &[], ruleset::POSTROUTING),
    ("filter", "INPUT", &["-m", "conntrack", "--ctstate", "NEW"], ruleset::REFUSED),
    ("filter", "FORWARD", &["-m", "conntrack", "--ctstate", "NEW"], ruleset::REFUSED),
    ("filter", "OUTPUT", &["-m", "conntrack", "--ctstate", "NEW"], ruleset::REFUSED),
];

/// The programs of one IP family.
pub(crate) struct Iptables {
    prefix: &'static str,
    directory: Option<PathBuf>,
    /// The existing chains of Services.
    chains: BTreeSet<String>,
    /// Whether an earlier run left any rules.
    found: bool,
}

impl Iptables {
    /// Finds the rules of an earlier run. `directory` is where the programs are; without it the system's are used.
    pub fn open(ip: IpFamily, directory: Option<&Path>) -> Result<Iptables, Error> {
        let prefix = if ip == IpFamily::V4 { "iptables" } else { "ip6tables" };
        let mut opened =
            Iptables { prefix, directory: directory.map(Path::to_owned), chains: BTreeSet::new(), found: false };
        let saved = opened.run("-save", &["-t", "nat"], None)?;
        opened.found = saved.contains(ruleset::SERVICES);
        let declared = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        opened.chains = declared.filter(|chain| ruleset::is_of_service(chain)).map(str::to_owned).collect();
        Ok(opened)
    }

    fn run(&self, suffix: &str, arguments: &[&str], input: Option<&str>) -> Result<String, Error> {
        let program = format!("{}{suffix}", self.prefix);
        let failed = |source: io::Error| Error::Program { program: program.clone(), source };
        let path = self.directory.as_ref().map_or_else(|| program.clone().into(), |dir| dir.join(&program));
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // The program reads all before it writes anything.
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
            stdin.write_all(input.as_bytes()).map_err(failed)?;
        }
        let output = child.wait_with_output().map_err(failed)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(failed(io::Error::other(format!("{}: {message}", output.status))))
            }
        }
    }

    /// Replaces the rules, and deletes the chains of deleted Services.
    pub fn replace(&mut self, wanted: &Ruleset) -> Result<usize, Error> {
        let deleted: Vec<&String> = self.chains.difference(&wanted.chains).collect();
        let input = wanted.restore(&deleted);
        self.run("-restore", &["-w", WAIT, "--noflush"], Some(&input))?;
        self.chains = wanted.chains.clone();
        for (table, chain, matches, target) in JUMPS {
            let rule = |operation| [&["-w", WAIT, "-t", table, operation, chain], matches, &["-j", target]].concat();
            if self.run("", &rule("-C"), None).is_err() {
                self.run("", &rule("-I"), None)?;
            }
        }
        Ok(input.len())
    }

    /// Deletes all our rules.
    pub fn cleanup(&mut self) {
        if !self.found {
            return;
        }
        for (table, chain, matches, target) in JUMPS {
            let rule = [&["-w", WAIT, "-t", table, "-D", chain], matches, &["-j", target]].concat();
            // A missing rule is no error.
            let _ = self.run("", &rule, None);
        }
        let _ = self.replace_all_by_nothing();
    }

    fn replace_all_by_nothing(&mut self) -> Result<(), Error> {
        let input = ruleset::removal(&self.chains);
        self.run("-restore", &["-w", WAIT, "--noflush"], Some(&input)).map(drop)
    }
}
