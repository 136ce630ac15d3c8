//! Requests to an API server and the answers expected to them, as text (`*.http`).
//!
//! `cargo xtask compare` puts such requests to two servers. The tests of the API server put them to one, and compare
//! each answer with the expected one below its request:
//!
//! ```text
//! @maps = /api/v1/namespaces/default/configmaps
//!
//! ### A stale resourceVersion is a conflict.
//! # @name made
//! POST {{maps}}
//! {metadata: {name: a}}
//! < 201
//! metadata: {uid: <uid>}
//!
//! PUT {{maps}}/a
//! {metadata: {name: a, resourceVersion: "1"}}
//! < 409 Operation cannot be fulfilled on configmaps "a": …
//! ```
//!
//! - A line `### Title` begins a case, a line `###` alone only ends a request.
//! - A request is a method and a path, headers, an empty line and a body. A body that begins with `{` or `[` needs no
//!   empty line. The request ends at its answer, at the next request after an empty line, or at the next comment after
//!   one.
//! - An answer begins with `<` and its status, then the headers (`< Warning: …`) and the body. It ends at an empty
//!   line.
//! - `# @name x` names a request; `{{x.metadata.name}}` later stands for that field of its answer, `{{x}}` for all of
//!   it. `@x = value` names a string for the rest of the file. Other lines that begin with `#` are comments.
//! - `# @user NAME GROUP…` and `# @eventually` are for the tests: the identity of the client, and a request that is
//!   repeated until its answer is the expected one.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A file of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct File {
    /// The strings that the file names.
    pub names: Answers,
    pub cases: Vec<Case>,
}

/// Requests that belong together, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    pub line: usize,
    /// The sentence after `###`; empty in a file without titles.
    pub title: String,
    pub requests: Vec<Request>,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub line: usize,
    pub name: Option<String>,
    /// The client's name and groups; the administrator's if absent.
    pub user: Option<String>,
    pub is_repeated: bool,
    pub method: String,
    pub path: String,
    pub headers: Vec<Header>,
    pub body: String,
    pub expected: Option<Expected>,
    /// The lines of the expected answer, counted from 0. Without one, the place where it belongs.
    pub expected_lines: Range<usize>,
}

/// A header of a request or an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    pub name: String,
    pub value: String,
}

/// An expected answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// The code and the message.
    pub status: String,
    pub headers: Vec<Header>,
    pub body: String,
}

/// The answers to named requests, by name.
pub type Answers = BTreeMap<String, Value>;

impl File {
    /// Reads a file.
    pub fn parse(text: &str) -> Result<File> {
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            reader.line(index, line).with_context(|| format!("line {}", index + 1))?;
        }
        reader.finish();
        Ok(reader.file)
    }

    /// Returns the requests of all cases.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.cases.iter().flat_map(|case| &case.requests)
    }
}

/// The part of a request that a line belongs to.
#[derive(Clone, Copy, Default, PartialEq)]
enum Part {
    /// The comments before the request.
    #[default]
    Before,
    Headers,
    Body,
    Answer,
}

/// A file that is being read.
#[derive(Default)]
struct Reader {
    file: File,
    part: Part,
    /// The request that is being read; its method is empty before its first line.
    request: Request,
    /// Whether the last line was empty.
    is_after_gap: bool,
}

impl Reader {
    fn line(&mut self, index: usize, line: &str) -> Result<()> {
        let line = line.trim_end();
        if let Some(title) = line.strip_prefix("###") {
            self.finish();
            if !title.trim().is_empty() {
                self.file.cases.push(Case { line: index + 1, title: title.trim().to_owned(), requests: Vec::new() });
            }
            return Ok(());
        }
        let ends_body = self.part == Part::Body && self.is_after_gap && (line.starts_with('#') || begins_request(line));
        if ends_body || (self.part == Part::Headers && begins_request(line)) {
            self.finish();
        }
        self.is_after_gap = line.is_empty();
        match self.part {
            Part::Before => self.before(index, line),
            Part::Headers => self.header(index, line),
            Part::Body => self.body(index, line),
            Part::Answer => self.answer(index, line),
        }
    }

    fn before(&mut self, index: usize, line: &str) -> Result<()> {
        if let Some(name) = line.strip_prefix("# @name ") {
            self.request.name = Some(name.trim().to_owned());
        } else if let Some(user) = line.strip_prefix("# @user ") {
            self.request.user = Some(user.trim().to_owned());
        } else if line == "# @eventually" {
            self.request.is_repeated = true;
        } else if let Some(named) = line.strip_prefix('@') {
            let (name, value) = named.split_once('=').context("a name and a value")?;
            let value = fill(value.trim(), &self.file.names)?;
            self.file.names.insert(name.trim().to_owned(), Value::String(value));
        } else if !line.starts_with('#') && !line.is_empty() {
            let (method, path) = line.split_once(' ').context("a method and a path")?;
            ensure!(path.starts_with('/') || path.starts_with("{{"), "{path:?} is no path");
            self.request.line = index + 1;
            self.request.method = method.to_owned();
            self.request.path = path.trim().to_owned();
            self.request.expected_lines = index + 1..index + 1;
            self.part = Part::Headers;
        }
        Ok(())
    }

    fn header(&mut self, index: usize, line: &str) -> Result<()> {
        if line.is_empty() {
            self.part = Part::Body;
        } else if line.starts_with(['{', '[', '<']) {
            self.part = Part::Body;
            self.body(index, line)?;
        } else {
            self.request.headers.push(header(line)?);
            self.request.expected_lines = index + 1..index + 1;
        }
        Ok(())
    }

    fn body(&mut self, index: usize, line: &str) -> Result<()> {
        if let Some(status) = line.strip_prefix('<') {
            let expected = Expected { status: status.trim().to_owned(), ..Expected::default() };
            self.request.expected = Some(expected);
            self.request.expected_lines = index..index + 1;
            self.part = Part::Answer;
            return Ok(());
        }
        self.request.body.push_str(line);
        self.request.body.push('\n');
        if !line.is_empty() {
            self.request.expected_lines = index + 1..index + 1;
        }
        Ok(())
    }

    fn answer(&mut self, index: usize, line: &str) -> Result<()> {
        if line.is_empty() {
            self.finish();
            return Ok(());
        }
        let Some(expected) = &mut self.request.expected else { bail!("an answer without a status") };
        if let Some(line) = line.strip_prefix('<') {
            expected.headers.push(header(line)?);
        } else {
            expected.body.push_str(line);
            expected.body.push('\n');
        }
        self.request.expected_lines.end = index + 1;
        Ok(())
    }

    /// Ends a request, if one began.
    fn finish(&mut self) {
        self.part = Part::Before;
        let mut request = std::mem::take(&mut self.request);
        if request.method.is_empty() {
            return;
        }
        request.body = request.body.trim().to_owned();
        if self.file.cases.is_empty() {
            self.file.cases.push(Case { line: request.line, ..Case::default() });
        }
        if let Some(case) = self.file.cases.last_mut() {
            case.requests.push(request);
        }
    }
}

/// Reports whether a line is a method and a path, which no line of a header or a body is.
fn begins_request(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(method, path)| {
        let is_method = !method.is_empty() && method.chars().all(|character| character.is_ascii_uppercase());
        is_method && (path.starts_with('/') || path.starts_with("{{"))
    })
}

fn header(line: &str) -> Result<Header> {
    let (name, value) = line.split_once(':').with_context(|| format!("{line:?} is no header"))?;
    Ok(Header { name: name.trim().to_lowercase(), value: value.trim().to_owned() })
}

impl Request {
    /// Returns the request with the fields of earlier answers in the place of their names.
    pub fn filled(&self, answers: &Answers) -> Result<Request> {
        let mut filled = self.clone();
        filled.path = fill(&self.path, answers)?;
        filled.body = fill(&self.body, answers)?;
        for header in &mut filled.headers {
            header.value = fill(&header.value, answers)?;
        }
        if let Some(expected) = &mut filled.expected {
            expected.status = fill(&expected.status, answers)?;
            expected.body = fill(&expected.body, answers)?;
            for header in &mut expected.headers {
                header.value = fill(&header.value, answers)?;
            }
        }
        Ok(filled)
    }
}

fn fill(text: &str, answers: &Answers) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((reference, after)) = after.split_once("}}") else { break };
        let mut steps = reference.trim().split('.');
        let name = steps.next().unwrap_or_default();
        let answer = answers.get(name).with_context(|| format!("no earlier request is called {name:?}"))?;
        let found = steps.try_fold(answer, |value, step| match value {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_read() {
        let text = "# a comment\n# @name made\nPOST /api/v1/namespaces\nContent-Type: application/json\n\n{\"a\":\n1}\n\n\
                    ### next\n\nGET /api/v1/namespaces/{{made.metadata.name}}\nAccept: {{made.items.1}}\n\
                    ###\n# nothing\n";
        let file = File::parse(text).unwrap();
        let read: Vec<&Request> = file.requests().collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].name.as_deref(), read[0].line, read[0].body.as_str()), (Some("made"), 3, "{\"a\":\n1}"));
        let answers = BTreeMap::from([("made".to_owned(), json!({"metadata": {"name": "x"}, "items": [1, "b"]}))]);
        let filled = read[1].filled(&answers).unwrap();
        assert_eq!((filled.path.as_str(), filled.headers[0].value.as_str()), ("/api/v1/namespaces/x", "b"));
        assert!(read[1].filled(&BTreeMap::new()).is_err());
        for wrong in ["GET\n", "GET api\n", "GET /a\nno header\n"] {
            assert!(File::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn expected_answers_are_read() {
        let text = "@maps = /maps\n\n### One.\n# @user jane a b\nPOST {{maps}}\n{name: a}\n\nGET {{maps}}/a\n\n\
                    b: 1\n\n# why\n# @eventually\nPUT {{maps}}\n<\n\n### Two.\nGET {{maps}}\n\
                    < 404 not found\n< Warning: a: b\nkind: Status\n\n";
        let file = File::parse(text).unwrap();
        assert_eq!(file.names["maps"], "/maps");
        let titles: Vec<&str> = file.cases.iter().map(|case| case.title.as_str()).collect();
        assert_eq!(titles, ["One.", "Two."]);
        let [posted, got, put] = &file.cases[0].requests[..] else { panic!("{:?}", file.cases[0]) };
        assert_eq!((posted.user.as_deref(), posted.body.as_str()), (Some("jane a b"), "{name: a}"));
        assert_eq!((posted.expected_lines.clone(), got.body.as_str()), (6..6, "b: 1"));
        assert_eq!((put.is_repeated, &put.expected), (true, &Some(Expected::default())));
        let [last] = &file.cases[1].requests[..] else { panic!("{:?}", file.cases[1]) };
        assert_eq!(last.filled(&file.names).unwrap().path, "/maps");
        let warning = Header { name: "warning".to_owned(), value: "a: b".to_owned() };
        let expected =
            Expected { status: "404 not found".to_owned(), headers: vec![warning], body: "kind: Status\n".to_owned() };
        assert_eq!((&last.expected, last.expected_lines.clone()), (&Some(expected), 18..21));
    }
}
