//! `cargo xtask compare`: puts the same requests to two API servers and counts the answers that differ.
//!
//! The requests are data (`conformance/requests/*.http`). Each server gets all of them in order; what only that server can have
//! chosen (uids, versions, times, generated names, addresses) is masked before answers are compared.

mod answer;
mod difference;
mod server;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::tools;
use difference::Mask;
use server::{Answer, Server};
use testkit_machine::requests::{Answers, File, Request};

const USAGE: &str = "usage: cargo xtask compare --ours KUBECONFIG --theirs KUBECONFIG [--most N] [FILE…]

  --ours, --theirs   the administrators' kubeconfig files of two API servers without objects of their own
  --most N           fail if more than N answers differ
  FILE…              files of requests; those of conformance/requests if absent";

/// How many differences of one answer are shown.
const SHOWN: usize = 4;

/// The options of the command line.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    ours: PathBuf,
    theirs: PathBuf,
    most: Option<usize>,
    files: Vec<PathBuf>,
}

pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let wanted = parse(words)?;
    tools::ensure_kubectl(root)?;
    let kubectl = root.join("target/tools/kubectl");
    let ours = Server::from_kubeconfig(&kubectl, &wanted.ours)?;
    let theirs = Server::from_kubeconfig(&kubectl, &wanted.theirs)?;
    let files = if wanted.files.is_empty() { of_tree(root)? } else { wanted.files };
    let report = compare(&ours, &theirs, &files)?;
    for line in &report.lines {
        println!("{line}");
    }
    println!("{} requests, {} answers differ", report.requests, report.differ);
    match wanted.most {
        Some(most) if report.differ > most => bail!("more than {most} answers differ"),
        _ => Ok(()),
    }
}

fn parse(words: &[&str]) -> Result<Wanted> {
    let mut wanted = Wanted::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n\n{USAGE}"));
        match *word {
            "--ours" => wanted.ours = PathBuf::from(value()?),
            "--theirs" => wanted.theirs = PathBuf::from(value()?),
            "--most" => wanted.most = Some(value()?.parse().context("--most needs a number")?),
            flag if flag.starts_with("--") => bail!("{USAGE}"),
            file => wanted.files.push(PathBuf::from(file)),
        }
    }
    ensure!(wanted.ours != Path::new("") && wanted.theirs != Path::new(""), "{USAGE}");
    Ok(wanted)
}

/// The files of the tree, by name.
fn of_tree(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join("conformance/requests");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "http"));
    files.sort();
    ensure!(!files.is_empty(), "{} holds no requests", folder.display());
    Ok(files)
}

/// The outcome.
#[derive(Debug, Default)]
struct Report {
    requests: usize,
    differ: usize,
    lines: Vec<String>,
}

/// One side: the server, what it answered to named requests, and what it chose.
struct Side<'a> {
    server: &'a Server,
    answers: Answers,
    mask: Mask,
}

impl<'a> Side<'a> {
    fn new(server: &'a Server, names: &Answers) -> Side<'a> {
        Side { server, answers: names.clone(), mask: Mask::default() }
    }

    /// Puts a request, and returns the answer without what this server alone can have chosen.
    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let request = request.filled(&self.answers)?;
        let answer = self.server.ask(&request).with_context(|| format!("{} {}", request.method, request.path))?;
        let json = answer.json();
        if let Some(json) = &json {
            self.mask.learn(json);
        }
        if let Some(name) = &request.name {
            self.answers.insert(name.clone(), json.unwrap_or_default());
        }
        Ok(answer)
    }
}

fn compare(ours: &Server, theirs: &Server, files: &[PathBuf]) -> Result<Report> {
    let mut report = Report::default();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::parse(&text).with_context(|| name.clone())?;
        let mut sides = [Side::new(ours, &file.names), Side::new(theirs, &file.names)];
        for request in file.requests() {
            let at = format!("{name}:{} {} {}", request.line, request.method, request.path);
            let [ours, theirs] = &mut sides;
            let first = ours.ask(request).with_context(|| at.clone())?;
            let second = theirs.ask(request).with_context(|| at.clone())?;
            let differences = difference::between(&first, &ours.mask, &second, &theirs.mask);
            report.requests += 1;
            if !differences.is_empty() {
                report.differ += 1;
                report.lines.push(at);
                report.lines.extend(differences.iter().take(SHOWN).map(|line| format!("    {line}")));
                if differences.len() > SHOWN {
                    report.lines.push(format!("    and {} more", differences.len() - SHOWN));
                }
            }
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
