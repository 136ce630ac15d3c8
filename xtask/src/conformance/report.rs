//! The outcome of each spec of a run, from ginkgo's JSON report.
//!
//! A report has all output of the specs, which is hundreds of megabytes; only the relevant parts are kept.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Longer words about a spec are cut: some print whole objects.
const LONGEST_WORDS: usize = 200;

/// How a spec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// Failed, with the first line of the error.
    Failed(String),
    /// Skipped by the spec itself, with its message.
    Skipped(String),
}

/// A spec that ran, by its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub name: String,
    pub outcome: Outcome,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Node>>,
}

/// A spec, or a node that runs before or after all of them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// Reads a report: the specs that ran. It does not have specs that were not selected, nor interrupted ones.
pub fn read(path: &Path) -> Result<Vec<Ran>> {
    let file = File::open(path).with_context(|| format!("the suite left no report {}", path.display()))?;
    parse(BufReader::new(file)).with_context(|| path.display().to_string())
}

fn parse(reader: impl Read) -> Result<Vec<Ran>> {
    let suites: Vec<Suite> = serde_json::from_reader(reader)?;
    let mut ran = Vec::new();
    for node in suites.into_iter().filter_map(|suite| suite.spec_reports).flatten() {
        let words = node.failure.as_ref().map(|failure| first_line(&failure.message)).unwrap_or_default();
        if node.leaf_node_type != "It" {
            match node.state.as_str() {
                "failed" if node.leaf_node_type.contains("BeforeSuite") => {
                    bail!("the suite's {} failed: {words}", node.leaf_node_type);
                }
                // The specs ended before it, and count.
                "failed" => ran.push(Ran { name: node.leaf_node_type, outcome: Outcome::Failed(words) }),
                _ => {}
            }
            continue;
        }
        let outcome = match node.state.as_str() {
            "passed" => Outcome::Passed,
            "failed" | "panicked" | "timedout" => Outcome::Failed(words),
            "skipped" if !words.is_empty() => Outcome::Skipped(words),
            _ => continue,
        };
        ran.push(Ran { name: full_name(&node), outcome });
    }
    Ok(ran)
}

/// Returns the name as `e2e.test --list-tests` prints it.
fn full_name(node: &Node) -> String {
    let parts = node.container_hierarchy_texts.iter().flatten().chain([&node.leaf_node_text]);
    parts.filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().replace('\t', " ");
    let mut words: String = line.trim().chars().take(LONGEST_WORDS).collect();
    if words.len() < line.trim().len() {
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read() {
        let spec = |text: &str, state: &str, message: &str| {
            format!(
                r#"{{"ContainerHierarchyTexts":["[sig-a] A",""],"LeafNodeType":"It","LeafNodeText":"{text}","State":"{state}","Failure":{{"Message":"{message}"}},"CapturedStdOutErr":"much"}}"#
            )
        };
        let all = [
            spec("passes", "passed", ""),
            spec("fails", "failed", "one\\ntwo"),
            spec("steps aside", "skipped", "needs 3 nodes"),
            spec("is not selected", "skipped", ""),
            spec("is interrupted", "interrupted", "by a user"),
            r#"{"ContainerHierarchyTexts":null,"LeafNodeType":"BeforeSuite","State":"passed"}"#.to_owned(),
        ];
        let ran = parse(format!(r#"[{{"SpecReports":[{}]}}]"#, all.join(",")).as_bytes()).unwrap();
        let expected = [
            ("[sig-a] A passes", Outcome::Passed),
            ("[sig-a] A fails", Outcome::Failed("one".into())),
            ("[sig-a] A steps aside", Outcome::Skipped("needs 3 nodes".into())),
        ];
        assert_eq!(ran, expected.map(|(name, outcome)| Ran { name: name.into(), outcome }));
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(first_line(" a\tb \nc"), "a b");
        assert_eq!(first_line(&"ü".repeat(300)), format!("{}…", "ü".repeat(LONGEST_WORDS)));
    }

    #[test]
    fn a_suite_that_cannot_start_is_an_error() {
        let text = r#"[{"SpecReports":[{"LeafNodeType":"SynchronizedBeforeSuite","State":"failed","Failure":{"Message":"no nodes"}}]}]"#;
        assert!(parse(text.as_bytes()).unwrap_err().to_string().contains("no nodes"));
    }

    #[test]
    fn specs_count_though_a_check_after_them_fails() {
        let text = r#"[{"SpecReports":[
            {"LeafNodeType":"It","LeafNodeText":"a","State":"passed"},
            {"LeafNodeType":"ReportAfterSuite","State":"failed","Failure":{"Message":"no metric"}}]}]"#;
        let expected = [("a", Outcome::Passed), ("ReportAfterSuite", Outcome::Failed("no metric".into()))];
        let expected = expected.map(|(name, outcome)| Ran { name: name.into(), outcome });
        assert_eq!(parse(text.as_bytes()).unwrap(), expected);
    }
}
