//! The register `conformance/register.tsv`: one line for every spec of the suite, sorted by name, with its state.
//!
//! Invariant: the register only grows. A spec that is registered as passed stays so; a run in which it fails is a
//! failed run, and the line is the proof of the regression.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::report::{Outcome, Ran};
use super::rules::Rules;

pub const FILE: &str = "conformance/register.tsv";

/// The state of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Passed,
    Failed,
    Untried,
    /// The spec skipped itself, with this message.
    Skipped(String),
    /// The spec does not apply, by the rule of this id.
    NotApplicable(String),
}

impl State {
    /// The names of all states, in the order in which they are counted.
    pub const NAMES: [&str; 5] = ["passed", "failed", "skipped", "untried", "not-applicable"];

    pub fn name(&self) -> &'static str {
        match self {
            State::Passed => "passed",
            State::Failed => "failed",
            State::Skipped(_) => "skipped",
            State::Untried => "untried",
            State::NotApplicable(_) => "not-applicable",
        }
    }

    /// Returns the third column.
    fn note(&self) -> Option<&str> {
        match self {
            State::Skipped(note) | State::NotApplicable(note) => Some(note),
            State::Passed | State::Failed | State::Untried => None,
        }
    }

    fn parse(name: &str, note: Option<&str>) -> Result<State> {
        Ok(match (name, note) {
            ("passed", None) => State::Passed,
            ("failed", None) => State::Failed,
            ("untried", None) => State::Untried,
            ("skipped", Some(note)) => State::Skipped(note.to_owned()),
            ("not-applicable", Some(note)) => State::NotApplicable(note.to_owned()),
            _ => bail!("{name:?} with {note:?} in the third column is no state"),
        })
    }
}

/// All specs by their full names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Register(BTreeMap<String, State>);

impl Register {
    pub fn read(root: &Path) -> Result<Register> {
        let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        Register::parse(&text).with_context(|| FILE.to_owned())
    }

    /// Reads the lines, which must be sorted and name each spec once.
    pub fn parse(text: &str) -> Result<Register> {
        let mut specs = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let place = || format!("line {}", index + 1);
            let mut columns = line.split('\t');
            let state = columns.next().unwrap_or_default();
            let name = columns.next().with_context(place)?;
            let note = columns.next();
            ensure!(columns.next().is_none(), "line {} has a fourth column", index + 1);
            let is_next = specs.last_key_value().is_none_or(|(last, _): (&String, _)| last.as_str() < name);
            ensure!(is_next, "line {} is not sorted, or names a spec again: {name}", index + 1);
            specs.insert(name.to_owned(), State::parse(state, note).with_context(place)?);
        }
        Ok(Register(specs))
    }

    pub fn write(&self, root: &Path) -> Result<()> {
        std::fs::write(root.join(FILE), self.to_text()).with_context(|| format!("cannot write {FILE}"))
    }

    fn to_text(&self) -> String {
        let line = |(name, state): (&String, &State)| match state.note() {
            Some(note) => format!("{}\t{name}\t{note}\n", state.name()),
            None => format!("{}\t{name}\n", state.name()),
        };
        self.0.iter().map(line).collect()
    }

    /// Returns the register of a suite with these specs: their states stay, and the rules decide again which apply.
    /// Also returns the specs that the suite no longer has.
    pub fn for_suite(&self, names: &[String], rules: &Rules) -> (Register, Vec<String>) {
        let state = |name: &String| match (rules.rule_for(name), self.0.get(name)) {
            (_, Some(State::Passed)) => State::Passed,
            (Some(rule), _) => State::NotApplicable(rule.to_owned()),
            (None, Some(State::NotApplicable(_)) | None) => State::Untried,
            (None, Some(state)) => state.clone(),
        };
        let specs: BTreeMap<String, State> = names.iter().map(|name| (name.clone(), state(name))).collect();
        let gone = self.0.keys().filter(|name| !specs.contains_key(*name)).cloned().collect();
        (Register(specs), gone)
    }

    /// Records the results of a run for registered specs. Returns those that are registered as passed and failed in it.
    pub fn update(&mut self, ran: &[Ran]) -> Vec<String> {
        let mut regressions = Vec::new();
        for Ran { name, outcome } in ran {
            let Some(before) = self.0.get_mut(name) else { continue };
            let was_passed = *before == State::Passed;
            let state = match outcome {
                Outcome::Passed => State::Passed,
                Outcome::Failed(_) if was_passed => {
                    regressions.push(name.clone());
                    continue;
                }
                // A smaller cluster than the one it passed on proves nothing.
                Outcome::Skipped(_) if was_passed => continue,
                // A rule applies to every cluster of ours, and only a pass refutes it.
                Outcome::Failed(_) | Outcome::Skipped(_) if matches!(before, State::NotApplicable(_)) => continue,
                Outcome::Failed(_) => State::Failed,
                Outcome::Skipped(words) => State::Skipped(words.clone()),
            };
            *before = state;
        }
        regressions
    }

    /// Returns the lines that do not agree with the rules.
    pub fn problems(&self, rules: &Rules) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, state) in &self.0 {
            let matched = rules.rule_for(name);
            let registered = match state {
                State::NotApplicable(rule) => Some(rule.as_str()),
                _ => None,
            };
            if matched != registered && *state != State::Passed {
                problems.push(format!("{name}: registered under the rule {registered:?}, but matches {matched:?}"));
            }
        }
        for pattern in rules.patterns() {
            if !self.0.keys().any(|name| pattern.is_match(name)) {
                problems.push(format!("the pattern {pattern} matches no spec"));
            }
        }
        problems
    }

    pub fn is_passed(&self, name: &str) -> bool {
        self.0.get(name) == Some(&State::Passed)
    }

    /// Returns the number of specs in a state.
    pub fn count(&self, state: &str) -> usize {
        self.0.values().filter(|it| it.name() == state).count()
    }

    /// Returns the number of specs that do not apply by a rule.
    pub fn count_rule(&self, rule: &str) -> usize {
        self.0.values().filter(|state| matches!(state, State::NotApplicable(id) if id == rule)).count()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of conformance specs, and of those that pass.
    pub fn conformance(&self) -> (usize, usize) {
        let all = self.0.iter().filter(|(name, _)| name.contains(super::suite::CONFORMANCE));
        let passed = all.clone().filter(|(_, state)| **state == State::Passed);
        (all.count(), passed.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "passed\ta [Conformance]\nnot-applicable\tb x\twindows\nskipped\tc\tneeds 3 nodes\nuntried\td\n";

    fn rules() -> Rules {
        Rules::parse("[[rule]]\nid = 'windows'\nreason = 'Needs Windows.'\nmatch = ['x']\n").unwrap()
    }

    fn ran(name: &str, outcome: Outcome) -> Ran {
        Ran { name: name.into(), outcome }
    }

    #[test]
    fn lines_are_read_and_written() {
        let register = Register::parse(TEXT).unwrap();
        assert_eq!(register.to_text(), TEXT);
        assert_eq!(register.conformance(), (1, 1));
        assert!(register.is_passed("a [Conformance]") && !register.is_passed("d"));
        assert_eq!((register.count("untried"), register.count_rule("windows")), (1, 1));
        assert_eq!(register.problems(&rules()), Vec::<String>::new());
    }

    #[test]
    fn unsorted_lines_are_refused() {
        for text in ["passed\tb\npassed\ta\n", "passed\ta\npassed\ta\n", "passed\n", "well\ta\n", "passed\ta\tb\n"] {
            assert!(Register::parse(text).is_err(), "{text}");
        }
        assert_eq!(Register::parse("untried\ta x\n").unwrap().problems(&rules()).len(), 1);
        assert_eq!(Register::parse("untried\ta\n").unwrap().problems(&rules()).len(), 1, "a rule without a spec");
    }

    #[test]
    fn the_register_only_grows() {
        let mut register = Register::parse(TEXT).unwrap();
        let regressions = register.update(&[
            ran("a [Conformance]", Outcome::Failed("no".into())),
            ran("c", Outcome::Passed),
            ran("d", Outcome::Failed("no".into())),
            ran("b x", Outcome::Skipped("no Windows".into())),
            ran("of another suite", Outcome::Passed),
        ]);
        assert_eq!(regressions, ["a [Conformance]"]);
        assert_eq!(register.count("passed"), 2);
        assert_eq!(register.count("failed"), 1);
        assert_eq!((register.count_rule("windows"), register.len()), (1, 4));
    }

    #[test]
    fn another_suite_keeps_the_states() {
        let names = ["a [Conformance]", "b x", "c", "e", "f x"].map(str::to_owned);
        let (register, gone) = Register::parse(TEXT).unwrap().for_suite(&names, &rules());
        assert_eq!(gone, ["d"]);
        let states: Vec<&str> = register.0.values().map(State::name).collect();
        assert_eq!(states, ["passed", "not-applicable", "skipped", "untried", "not-applicable"]);
    }
}
