//! A page of the manual for the test: files to write, commands to run with their output, and commands not to run.

use std::path::Path;

/// A command and its output on the page.
#[derive(Debug, PartialEq)]
pub struct Step {
    pub line: usize,
    pub command: String,
    pub shown: Vec<String>,
}

/// A part of a page.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// A `yaml` block whose first line is `# NAME.yaml`.
    File { name: String, text: String },
    /// A command of a `console` block.
    Run(Step),
    /// A command of a `console` block after the comment `not run: REASON`.
    NotRun { reason: String },
}

impl Piece {
    /// Returns the reason why it is not run.
    pub fn reason(&self) -> Option<&String> {
        match self {
            Piece::NotRun { reason } => Some(reason),
            Piece::File { .. } | Piece::Run(_) => None,
        }
    }
}

pub fn read(root: &Path, name: &str) -> Vec<Piece> {
    let path = root.join("docs").join(format!("{name}.md"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    parse(&text)
}

fn parse(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut reason = None;
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- not run:") {
            reason = Some(comment.trim_end_matches("-->").trim().to_owned());
            continue;
        }
        let Some(kind) = line.strip_prefix("```").filter(|kind| !kind.is_empty()) else { continue };
        let block: Vec<(usize, &str)> = lines.by_ref().take_while(|(_, line)| *line != "```").collect();
        match kind {
            "console" => pieces.extend(steps(&block).into_iter().map(|step| match &reason {
                Some(reason) => Piece::NotRun { reason: reason.clone() },
                None => Piece::Run(step),
            })),
            "yaml" => pieces.extend(file(&block)),
            _ => {}
        }
        reason = None;
    }
    pieces
}

fn file(block: &[(usize, &str)]) -> Option<Piece> {
    let name = block.first()?.1.strip_prefix("# ")?.to_owned();
    let text: Vec<&str> = block.iter().map(|(_, line)| *line).collect();
    Some(Piece::File { name, text: text.join("\n") + "\n" })
}

/// Returns the commands of a block: a line after a prompt, and those after a backslash.
fn steps(block: &[(usize, &str)]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in block {
        let command = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ "));
        let goes_on = steps.last_mut().filter(|step| step.command.ends_with('\\'));
        if let Some(step) = goes_on {
            step.command.pop();
            step.command.push_str(line.trim_start());
        } else if let Some(command) = command {
            steps.push(Step { line: index + 1, command: command.to_owned(), shown: Vec::new() });
        } else if let Some(step) = steps.last_mut().filter(|_| !line.trim().is_empty()) {
            step.shown.push((*line).to_owned());
        }
    }
    steps
}

/// Returns the first shown line that the output lacks; lines must come in their order, others may be between them.
pub fn first_missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a String> {
    let mut lines = printed.lines();
    shown.iter().find(|shown| !lines.any(|line| is_alike(shown, line)))
}

/// Reports whether two lines have the same words. A word with a digit stands for any word, `…` for any part of one, and
/// alone at the end for the rest of the line.
fn is_alike(shown: &str, line: &str) -> bool {
    let mut words = line.split_whitespace();
    let mut shown = shown.split_whitespace().peekable();
    while let Some(word) = shown.next() {
        if word == "…" && shown.peek().is_none() {
            return true;
        }
        let Some(given) = words.next() else { return false };
        let alike = match word.split_once('…') {
            Some((start, end)) => given.starts_with(start) && given.ends_with(end),
            None => given == word || word.bytes().any(|byte| byte.is_ascii_digit()),
        };
        if !alike {
            return false;
        }
    }
    words.next().is_none()
}

#[test]
fn pages_are_read() {
    let page = "# Title\n\n```yaml\n# a.yaml\nkind: Pod\n```\n<!-- not run: elsewhere -->\n```console\n# one\n$ two\n```\n\
                ```console\n# three \\\n    --flag\nNAME  AGE\npod   2s\n$ four\n```\n";
    let run = |line, command: &str, shown: &[&str]| {
        Piece::Run(Step { line, command: command.into(), shown: shown.iter().map(|line| (*line).to_owned()).collect() })
    };
    let not_run = || Piece::NotRun { reason: "elsewhere".into() };
    let file = Piece::File { name: "a.yaml".into(), text: "# a.yaml\nkind: Pod\n".into() };
    let expected =
        [file, not_run(), not_run(), run(13, "three --flag", &["NAME  AGE", "pod   2s"]), run(17, "four", &[])];
    assert_eq!(parse(page), expected);
}

#[test]
fn outputs_are_compared_by_their_shape() {
    for (shown, printed, alike) in [
        ("ready after 0.2 s", "ready after 12.41 s", true),
        ("ready after 0.2 s", "ready after 0.2 s now", false),
        ("in …/.kube/config", "in /home/jane/.kube/config", true),
        ("imported a (…)", "imported a (2 MiB)", false),
        ("one …", "one Ready 3s", true),
        ("one   … 2s", "one Ready 3s", true),
        ("two …", "one Ready 3s", false),
    ] {
        assert_eq!(is_alike(shown, printed), alike, "{shown} {printed}");
    }
    let shown = ["a".to_owned(), "b".to_owned()];
    assert_eq!(first_missing(&shown, "x\na\ny\nb\n"), None);
    assert_eq!(first_missing(&shown, "b\na\n"), Some(&shown[1]));
}
