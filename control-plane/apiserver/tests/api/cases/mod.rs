//! Runs the cases beside this file (`*.http`): each on a server of its own, request by request.
//!
//! `testkit::requests` documents the grammar, `testkit::expected` the matching. A body without a Content-Type is YAML,
//! and is sent as JSON, by PATCH as a merge patch; with a Content-Type it is sent as written. A request without an
//! expected answer must succeed. `UPDATE_EXPECT=1` writes the answers that were found; `CASES=apply` runs the files
//! whose names contain that.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use testkit::expected;
use testkit::requests::{Answers, Case, Expected, File, Header, Request};

use crate::server::{PATIENCE, TestServer};

/// The number of cases that run at once.
const AT_ONCE: usize = 4;

/// An answer of the server.
struct Answer {
    code: u16,
    headers: http::HeaderMap,
    /// The value of a JSON body, the string of another one.
    body: Value,
}

/// A case that was answered otherwise than expected.
struct Failure {
    report: String,
    /// The answer that was found, to write in the place of the expected one; absent if there was none.
    update: Option<Update>,
}

struct Update {
    lines: Range<usize>,
    answer: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_is_answered_as_expected() {
    let mut reports = Vec::new();
    for path in files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let file = File::parse(&text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let empty = file.cases.iter().find(|case| case.requests.is_empty());
        assert!(empty.is_none() && !file.cases.is_empty(), "{name} has a case without requests: {empty:?}");
        let failures = run_file(&name, &file).await;
        let is_updated = std::env::var_os("UPDATE_EXPECT").is_some() && failures.iter().all(|f| f.update.is_some());
        if is_updated {
            std::fs::write(&path, rewritten(&text, failures)).unwrap();
        } else {
            reports.extend(failures.into_iter().map(|failure| failure.report));
        }
    }
    assert!(reports.is_empty(), "{} cases failed:\n\n{}", reports.len(), reports.join("\n\n"));
}

/// Returns the files of cases, by name.
fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/cases");
    let wanted = std::env::var("CASES").unwrap_or_default();
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "http"))
        .filter(|path| path.file_stem().is_some_and(|stem| stem.to_string_lossy().contains(&wanted)))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no file is called {wanted:?}");
    files
}

/// Runs the cases of a file, several at once; returns the failures in the order of the file.
async fn run_file(name: &str, file: &File) -> Vec<Failure> {
    let cases = futures::stream::iter(&file.cases).map(|case| run_case(name, case, file.names.clone()));
    cases.buffered(AT_ONCE).concat().await
}

/// Runs a case to its end. With `UPDATE_EXPECT` it goes on after a failure, to find every answer.
async fn run_case(name: &str, case: &Case, mut answers: Answers) -> Vec<Failure> {
    let server = TestServer::start().await;
    let mut failures = Vec::new();
    for request in &case.requests {
        let at = format!("{name}:{} {}\n{} {}", request.line, case.title, request.method, request.path);
        match step(&server, request, &mut answers).await {
            Ok(None) => continue,
            Ok(Some(failure)) => failures.push(Failure { report: format!("{at}\n{}", failure.report), ..failure }),
            Err(error) => failures.push(Failure { report: format!("{at}\n{error:#}"), update: None }),
        }
        if std::env::var_os("UPDATE_EXPECT").is_none() {
            break;
        }
    }
    // All cases share a runtime, in which the tasks of a server would go on.
    server.server.shut_down();
    failures
}

/// Sends a request, and compares the answer with the expected one.
async fn step(server: &TestServer, request: &Request, answers: &mut Answers) -> Result<Option<Failure>> {
    let filled = request.filled(answers)?;
    let is_whole = request.expected.as_ref().is_some_and(|expected| is_answer(expected.body.trim(), answers));
    let mut last = None;
    let mut observe = async || {
        let answer = send(server, &filled).await?;
        let differences = Differences::of(filled.expected.as_ref(), is_whole, &answer)?;
        let is_expected = differences.is_empty();
        last = Some((answer, differences));
        Ok::<bool, anyhow::Error>(is_expected)
    };
    if request.is_repeated {
        let repeated = async || match observe().await {
            Ok(false) => Err(()),
            other => Ok(other),
        };
        testkit::eventually::repeat(repeated).await.unwrap_or(Ok(false))?;
    } else {
        observe().await?;
    }
    let (answer, differences) = last.context("no request was sent")?;
    let failure = if differences.is_empty() { None } else { Some(failure(request, &filled, &answer, &differences)?) };
    if let Some(name) = &request.name {
        answers.insert(name.clone(), answer.body);
    }
    Ok(failure)
}

/// Reports whether an expected body is the whole answer to an earlier request.
fn is_answer(body: &str, answers: &Answers) -> bool {
    let name = body.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
    name.and_then(|name| answers.get(name)).is_some_and(|answer| !answer.is_string())
}

async fn send(server: &TestServer, request: &Request) -> Result<Answer> {
    let mut user = request.user.as_deref().unwrap_or("admin system:masters").split_whitespace();
    let name = user.next().context("a user has a name")?;
    let groups: Vec<&str> = user.collect();
    let mut sent = http::Request::builder().method(request.method.as_str()).uri(&request.path);
    for header in &request.headers {
        sent = sent.header(&header.name, &header.value);
    }
    let mut body = request.body.clone();
    if !request.headers.iter().any(|header| header.name == "content-type") {
        let is_patch = request.method == "PATCH";
        sent = sent.header("content-type", if is_patch { "application/merge-patch+json" } else { "application/json" });
        if !body.is_empty() {
            body = yaml(&body)?.to_string();
        }
    }
    let sent = sent.body(body.into()).context("the request")?;
    let reply = server.user(name, &groups).call(sent).await;
    let (head, body) = reply.into_parts();
    let whole = tokio::time::timeout(PATIENCE, body.into_http().collect()).await.context("the answer does not end")?;
    let bytes = whole.map_err(|error| anyhow::anyhow!("the body: {error}"))?.to_bytes();
    let string = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| string());
    Ok(Answer { code: head.status.as_u16(), headers: head.headers, body })
}

fn yaml(text: &str) -> Result<Value> {
    corten_meta::decode_yaml(text.as_bytes()).map_err(|error| anyhow::anyhow!("{error}: {text}"))
}

/// The differences of an answer from the expected one.
struct Differences {
    status: Option<String>,
    headers: Vec<String>,
    body: Vec<String>,
}

impl Differences {
    fn of(expected: Option<&Expected>, is_whole: bool, answer: &Answer) -> Result<Differences> {
        let status = match expected {
            Some(expected) => (!is_status(&expected.status, answer)).then(|| expected.status.clone()),
            None => (!(200..300).contains(&answer.code)).then(|| "success".to_owned()),
        };
        let status = status.map(|expected| format!("  expected {expected}\n  found    {}", status_line(answer)));
        let mut headers = Vec::new();
        let mut body = Vec::new();
        if let Some(expected) = expected {
            headers = header_differences(&expected.headers, answer);
            body = body_differences(&expected.body, is_whole, answer)?;
        }
        Ok(Differences { status, headers, body })
    }

    fn is_empty(&self) -> bool {
        self.status.is_none() && self.headers.is_empty() && self.body.is_empty()
    }

    fn report(&self) -> String {
        let lines: Vec<&str> = self.status.iter().chain(&self.headers).chain(&self.body).map(String::as_str).collect();
        lines.join("\n")
    }
}

/// Reports whether the code and the message are the expected ones.
fn is_status(expected: &str, answer: &Answer) -> bool {
    let (code, words) = expected.split_once(' ').unwrap_or((expected, ""));
    let is_message = words.is_empty() || message(answer).is_some_and(|found| expected::is_match(words, &found));
    code == answer.code.to_string() && is_message
}

fn header_differences(expected: &[Header], answer: &Answer) -> Vec<String> {
    let names: BTreeSet<&str> = expected.iter().map(|header| header.name.as_str()).collect();
    let differs = |name: &str| {
        let wanted: Vec<&str> =
            expected.iter().filter(|header| header.name == name).map(|header| header.value.as_str()).collect();
        let found = values(answer, name);
        let is_match = wanted.len() == found.len()
            && wanted.iter().zip(&found).all(|(wanted, found)| expected::is_match(wanted, found));
        let lines = format!("header {name}\n  expected {}\n  found    {}", wanted.join(" | "), found.join(" | "));
        (!is_match).then_some(lines)
    };
    names.into_iter().filter_map(differs).collect()
}

fn body_differences(expected: &str, is_whole: bool, answer: &Answer) -> Result<Vec<String>> {
    if expected.is_empty() {
        return Ok(Vec::new());
    }
    let expected = yaml(expected)?;
    Ok(match is_whole {
        true => expected::differences(&json!({ "answer!": expected }), &json!({ "answer": answer.body })),
        false => expected::differences(&expected, &answer.body),
    })
}

/// Returns the values of a header; `<absent>` if it has none.
fn values(answer: &Answer, name: &str) -> Vec<String> {
    let values: Vec<String> = answer
        .headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect();
    if values.is_empty() { vec!["<absent>".to_owned()] } else { values }
}

/// Returns the message of a Status, or a body that is only words.
fn message(answer: &Answer) -> Option<String> {
    let message = answer.body.as_str().or_else(|| answer.body["message"].as_str())?;
    Some(message.trim_end_matches('\n').to_owned())
}

/// Returns the code, and the message of an error.
fn status_line(answer: &Answer) -> String {
    let message = message(answer).filter(|_| answer.code >= 400).unwrap_or_default();
    let message = expected::masked_string(&message);
    let message = message.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("…");
    format!("{} {message}", answer.code).trim_end().to_owned()
}

/// Makes the failure of a step, with the answer to write in the place of the expected one: parts that match stay.
fn failure(request: &Request, filled: &Request, answer: &Answer, differences: &Differences) -> Result<Failure> {
    let expected = request.expected.clone().unwrap_or_default();
    let status = if differences.status.is_none() { expected.status } else { status_line(answer) };
    let mut lines = vec![format!("< {status}")];
    for header in &expected.headers {
        let found = match differences.headers.is_empty() {
            true => vec![header.value.clone()],
            false => values(answer, &header.name),
        };
        let found: Vec<String> = found.iter().map(|value| format!("< {}: {value}", spelled(header))).collect();
        lines.extend(found.into_iter().filter(|line| !lines.contains(line)).collect::<Vec<_>>());
    }
    let mut text = lines.join("\n") + "\n";
    match &filled.expected {
        Some(expected) if !differences.body.is_empty() => {
            let shape = yaml(&expected.body)?;
            text.push_str(&expected::yaml(&expected::updated(&shape, Some(&answer.body))));
        }
        _ => text.push_str(&expected.body),
    }
    let update = Update { lines: request.expected_lines.clone(), answer: text };
    Ok(Failure { report: differences.report(), update: Some(update) })
}

/// Returns the name of a header as people write it.
fn spelled(header: &Header) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    };
    header.name.split('-').map(word).collect::<Vec<_>>().join("-")
}

/// Returns the text of a file with the answers that were found.
fn rewritten(text: &str, failures: Vec<Failure>) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for update in failures.into_iter().rev().filter_map(|failure| failure.update) {
        let answer = update.answer.lines().map(str::to_owned);
        lines.splice(update.lines, answer);
    }
    lines.join("\n") + "\n"
}
