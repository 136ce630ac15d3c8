//! The rules for specs that do not apply: `conformance/not-applicable.toml`, and the match of a spec's name.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex::Regex;

use crate::toml;

pub const FILE: &str = "conformance/not-applicable.toml";

/// A reason why specs do not apply to Corten.
pub struct Rule {
    pub id: String,
    pub patterns: Vec<Regex>,
}

/// All rules, in their order: the first that matches a spec decides.
pub struct Rules(pub Vec<Rule>);

impl Rules {
    pub fn read(root: &Path) -> Result<Rules> {
        let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        Rules::parse(&text).with_context(|| FILE.to_owned())
    }

    pub fn parse(text: &str) -> Result<Rules> {
        toml::parse(text)?.iter().map(rule).collect::<Result<_>>().map(Rules)
    }

    /// Returns the id of the rule that matches a spec.
    pub fn rule_for(&self, name: &str) -> Option<&str> {
        let rule = self.0.iter().find(|rule| rule.patterns.iter().any(|pattern| pattern.is_match(name)))?;
        Some(&rule.id)
    }

    /// Returns every pattern of every rule.
    pub fn patterns(&self) -> impl Iterator<Item = &Regex> {
        self.0.iter().flat_map(|rule| &rule.patterns)
    }
}

fn rule(section: &toml::Section) -> Result<Rule> {
    section.expect(&["id", "reason", "match"])?;
    ensure!(section.kind == "rule", "line {}: [[{}]] is not a rule", section.line, section.kind);
    let id = section.text("id")?.to_owned();
    ensure!(section.text("reason")?.ends_with('.'), "the reason of {id} is not a sentence");
    let patterns = section.list("match");
    ensure!(!patterns.is_empty(), "{id} matches nothing");
    let patterns = patterns.iter().map(|pattern| Regex::new(pattern)).collect::<Result<_, _>>()?;
    Ok(Rule { id, patterns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_counts() {
        let text = "[[rule]]\nid = 'a'\nreason = 'A.'\nmatch = ['\\[x\\]']\n[[rule]]\nid = 'b'\nreason = 'B.'\nmatch = ['x', 'y']\n";
        let rules = Rules::parse(text).unwrap();
        assert_eq!(rules.rule_for("one [x]"), Some("a"));
        assert_eq!(rules.rule_for("two y"), Some("b"));
        assert_eq!(rules.rule_for("three"), None);
        assert_eq!(rules.patterns().count(), 3);
    }

    #[test]
    fn a_rule_has_a_reason_in_a_sentence() {
        assert!(Rules::parse("[[rule]]\nid = 'a'\nreason = 'because'\nmatch = ['x']\n").is_err());
        assert!(Rules::parse("[[rule]]\nid = 'a'\nreason = 'Because.'\n").is_err());
    }
}
