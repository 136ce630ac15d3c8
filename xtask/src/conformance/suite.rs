//! Upstream's suite: its programs, its specs, the selection of a run, and the command that runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use regex::Regex;

use super::Options;
use super::rules::Rules;

/// The tag in the names of conformance specs.
pub const CONFORMANCE: &str = "[Conformance]";
const SERIAL: &str = "[Serial]";

/// Upstream's own programs.
pub struct Suite {
    pub e2e_test: PathBuf,
    pub ginkgo: PathBuf,
    pub kubectl: PathBuf,
}

/// The two parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Parallel,
    Serial,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Part::Parallel => "parallel",
            Part::Serial => "serial",
        }
    }
}

impl Suite {
    /// Finds the programs on PATH, or by environment variables.
    pub fn find() -> Result<Suite> {
        Ok(Suite {
            e2e_test: program("e2e.test", "E2E_TEST")?,
            ginkgo: program("ginkgo", "GINKGO")?,
            kubectl: program("kubectl", "KUBECTL")?,
        })
    }

    /// Finds only the program that lists the specs.
    pub fn e2e_test() -> Result<PathBuf> {
        program("e2e.test", "E2E_TEST")
    }
}

fn program(name: &str, variable: &str) -> Result<PathBuf> {
    let found = match std::env::var_os(variable) {
        Some(path) => Some(PathBuf::from(path)),
        None => std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .map(|dir| dir.join(name))
            .find(|path| path.is_file()),
    };
    let found = found.filter(|path| path.is_file()).with_context(|| {
        format!("{name} of upstream's v1.36 is missing: build it from upstream's tree, as conformance/README.md says, and put it on PATH or name it by {variable}")
    })?;
    // The suite runs in another directory.
    Ok(std::path::absolute(found)?)
}

/// Returns the full names of all specs.
pub fn specs(e2e_test: &Path) -> Result<Vec<String>> {
    let output = Command::new(e2e_test).arg("--list-tests").output().context("e2e.test cannot be run")?;
    ensure!(output.status.success(), "e2e.test --list-tests: {}", String::from_utf8_lossy(&output.stderr));
    let names = parse_list(&String::from_utf8_lossy(&output.stdout));
    ensure!(!names.is_empty(), "e2e.test lists no specs");
    Ok(names)
}

/// Reads lines of `    FILE:LINE: NAME`.
fn parse_list(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let (place, name) = line.strip_prefix("    ")?.split_once(": ")?;
        place.contains(".go:").then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Returns the specs of one part that the options select.
pub fn select<'a>(names: &'a [String], options: &Options, rules: &Rules, part: Part) -> Result<Vec<&'a str>> {
    let pattern =
        |text: &Option<String>| text.as_deref().map(Regex::new).transpose().context("not a regular expression");
    let focus = pattern(&options.focus)?;
    let skip = pattern(&options.skip)?;
    let is_selected = |name: &&str| {
        (options.all || name.contains(CONFORMANCE))
            && (name.contains(SERIAL) == (part == Part::Serial))
            && focus.as_ref().is_none_or(|focus| focus.is_match(name))
            && skip.as_ref().is_none_or(|skip| !skip.is_match(name))
            && rules.rule_for(name).is_none()
    };
    Ok(names.iter().map(String::as_str).filter(is_selected).collect())
}

/// Returns the arguments of ginkgo, and after `--` those of the suite.
pub fn arguments(
    suite: &Suite,
    options: &Options,
    rules: &Rules,
    part: Part,
    specs: &[String],
    kubeconfig: &Path,
    dir: &Path,
) -> Vec<String> {
    let serial = if part == Part::Serial { "Serial" } else { "!Serial" };
    let labels = if options.all { serial.to_owned() } else { format!("Conformance && {serial}") };
    let procs = if part == Part::Serial { 1 } else { options.procs };
    let mut arguments = vec![
        "--no-color".to_owned(),
        "--timeout=24h".into(),
        "--silence-skips".into(),
        // Programs that a spec left behind would hold its output open, and ginkgo would wait for them.
        "--output-interceptor-mode=none".into(),
        format!("--procs={procs}"),
        format!("--label-filter={labels}"),
        format!("--output-dir={}", dir.display()),
        format!("--json-report={}.json", part.name()),
    ];
    arguments.extend(options.seed.map(|seed| format!("--seed={seed}")));
    match options.not_passed {
        // Ginkgo selects a spec that matches any of them, and puts the suite's name before the spec's.
        true => arguments.extend(specs.iter().map(|name| format!("--focus= {}$", regex::escape(name)))),
        false => arguments.extend(options.focus.iter().map(|focus| format!("--focus={focus}"))),
    }
    arguments.extend(options.skip.iter().map(|skip| format!("--skip={skip}")));
    arguments.extend(rules.patterns().map(|pattern| format!("--skip={pattern}")));
    arguments.extend([
        suite.e2e_test.display().to_string(),
        "--".into(),
        "--provider=skeleton".into(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--kubectl-path={}", suite.kubectl.display()),
        format!("--kubelet-root-dir={}", super::node::KUBELET_ROOT),
        format!("--num-nodes={}", options.nodes),
    ]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read() {
        let text = "The following spec names can be used with 'ginkgo run --focus/skip':\n    ../e2e/a.go:12: [sig-a] A: does b\n    k8s/b.go:3: [sig-b] C\n\n";
        assert_eq!(parse_list(text), ["[sig-a] A: does b", "[sig-b] C"]);
    }

    #[test]
    fn parts_are_selected() {
        let names = ["a [Conformance]", "b [Serial] [Conformance]", "c", "d x"].map(str::to_owned);
        let rules = Rules::parse("[[rule]]\nid = 'r'\nreason = 'R.'\nmatch = ['x']\n").unwrap();
        let select = |all: bool, focus: Option<&str>, part| {
            let options = Options { all, focus: focus.map(str::to_owned), ..Options::default() };
            super::select(&names, &options, &rules, part).unwrap()
        };
        assert_eq!(select(false, None, Part::Parallel), ["a [Conformance]"]);
        assert_eq!(select(false, None, Part::Serial), ["b [Serial] [Conformance]"]);
        assert_eq!(select(true, None, Part::Parallel), ["a [Conformance]", "c"]);
        assert_eq!(select(true, Some("^c"), Part::Parallel), ["c"]);
    }

    #[test]
    fn specs_that_have_not_passed_are_focused_by_their_names() {
        let suite = Suite { e2e_test: "e2e.test".into(), ginkgo: "ginkgo".into(), kubectl: "kubectl".into() };
        let rules = Rules::parse("[[rule]]\nid = 'r'\nreason = 'R.'\nmatch = ['x']\n").unwrap();
        let focus = |not_passed: bool| -> Vec<String> {
            let options = Options { all: true, not_passed, focus: Some("sig".into()), ..Options::default() };
            let specs = ["[sig-a] B (c)".to_owned()];
            let words = arguments(&suite, &options, &rules, Part::Parallel, &specs, Path::new("k"), Path::new("d"));
            words.into_iter().filter(|word| word.starts_with("--focus")).collect()
        };
        assert_eq!(focus(false), ["--focus=sig"]);
        assert_eq!(focus(true), [r"--focus= \[sig\-a\] B \(c\)$"]);
    }
}
