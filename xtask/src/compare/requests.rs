//! Requests as text: blocks between lines of `###`, each a method and a path, headers, an empty line and a body.
//!
//! `# @name x` names a request; `{{x.metadata.name}}` in a later one stands for that field of the answer that the same
//! server gave. Other lines that begin with `#` before the method are comments.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// One request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub line: usize,
    pub name: Option<String>,
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// Reads a file of requests.
pub fn parse(text: &str) -> Result<Vec<Request>> {
    let mut requests = Vec::new();
    let mut block: Vec<(usize, &str)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("###") {
            requests.extend(request(&block)?);
            block.clear();
        } else {
            block.push((index + 1, line));
        }
    }
    requests.extend(request(&block)?);
    Ok(requests)
}

/// Reads a block; one without a request is none.
fn request(block: &[(usize, &str)]) -> Result<Option<Request>> {
    let mut request = Request::default();
    let mut lines = block.iter().copied();
    let mut head = None;
    for (number, line) in lines.by_ref() {
        if let Some(name) = line.strip_prefix("# @name ") {
            request.name = Some(name.trim().to_owned());
        } else if !line.starts_with('#') && !line.trim().is_empty() {
            head = Some((number, line));
            break;
        }
    }
    let Some((number, head)) = head else { return Ok(None) };
    request.line = number;
    let (method, path) = head.split_once(' ').with_context(|| format!("line {number}: a method and a path"))?;
    ensure!(path.starts_with('/') || path.starts_with("{{"), "line {number}: {path:?} is no path");
    request.method = method.to_owned();
    request.path = path.trim().to_owned();
    for (number, line) in lines.by_ref().take_while(|(_, line)| !line.trim().is_empty()) {
        let (name, value) = line.split_once(':').with_context(|| format!("line {number}: {line:?} is no header"))?;
        request.headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    let body: Vec<&str> = lines.map(|(_, line)| line).collect();
    request.body = body.join("\n").trim().to_owned();
    Ok(Some(request))
}

impl Request {
    /// The request with what earlier answers say in the place of their names.
    pub fn filled(&self, answers: &BTreeMap<String, Value>) -> Result<Request> {
        let mut filled = self.clone();
        filled.path = fill(&self.path, answers)?;
        filled.body = fill(&self.body, answers)?;
        for (_, value) in &mut filled.headers {
            *value = fill(value, answers)?;
        }
        Ok(filled)
    }
}

fn fill(text: &str, answers: &BTreeMap<String, Value>) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((reference, after)) = after.split_once("}}") else { break };
        let (name, path) = reference.trim().split_once('.').unwrap_or((reference.trim(), ""));
        let answer = answers.get(name).with_context(|| format!("no earlier request is called {name:?}"))?;
        let found = path.split('.').try_fold(answer, |value, step| match value {
            Value::Array(items) => items.get(step.parse::<usize>().ok()?),
            value => value.get(step),
        });
        out.push_str(before);
        // An answer that lacks the field makes another request, whose answer shows it.
        out.push_str(&found.map_or_else(|| "absent".to_owned(), plain));
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
