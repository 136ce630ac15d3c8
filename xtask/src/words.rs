//! Kubernetes' own words: comments have a subject and a verb, and comments and names use the words of the glossary in
//! CONTRIBUTING.md.

use std::path::Path;

/// Words and phrases of comments, and what to say instead.
const SYNONYMS: &[(&str, &str)] = &[
    ("somebody", "the client, the user, another writer"),
    ("someone", "the client, the user, another writer"),
    ("anybody", "any client, any user"),
    ("everybody", "every client, every user"),
    ("nobody", "no client, no user, nothing"),
    ("whoever", "the client that, the user who"),
    ("is told", "the subject and its verb: the client gets, the log shows"),
    ("are told", "the subject and its verb"),
    ("truth value", "bool"),
    ("amount", "quantity"),
];

/// Words that no comment starts with: a sentence has a subject and a verb, a function returns or reports.
const STARTS: &[&str] = &["What", "Who", "Whom", "Whose", "Nobody", "Somebody", "Everybody", "Whoever"];

/// Words of names of functions, types, constants and modules, and what to say instead.
const NAME_SYNONYMS: &[(&str, &str)] = &[
    ("amount", "quantity"),
    ("amounts", "quantities, resource list"),
    ("judge", "validate, decide, check"),
    ("judged", "validated, decided, checked"),
    ("judgement", "decision, evaluation"),
    ("letter", "character"),
    ("letters", "characters"),
    ("said", "the verb: printed, reported"),
    ("tend", "reconcile"),
    ("told", "the verb: reported, recorded"),
    ("truth", "bool"),
    ("somebody", "the client, the user"),
    ("anybody", "any client, any user"),
    ("everybody", "every client, all users"),
    ("whoever", "the client, the user"),
];

/// The keywords before the names that are checked.
const DECLARING: &[&str] = &["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union"];

/// Returns the comments and names of a file that use another word than the glossary's.
pub fn problems(root: &Path, file: &Path, text: &str) -> Vec<String> {
    let path = file.strip_prefix(root).unwrap_or(file).display().to_string();
    let mut starts = true;
    let mut problems = Vec::new();
    let mut last = 0;
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let problem = match comment(line) {
            None => wrong_name(line),
            Some(comment) => {
                starts |= number != last + 1;
                let problem = wrong_comment(comment, starts);
                starts = comment.trim_end().ends_with('.') || comment.trim().is_empty();
                last = number;
                problem
            }
        };
        problems.extend(problem.map(|problem| format!("{path}:{number}: {problem}")));
    }
    problems
}

fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim_start)
}

/// Returns the first error in a line of a comment; `starts` says that a sentence begins with it.
fn wrong_comment(comment: &str, starts: bool) -> Option<String> {
    let first = comment.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    if starts && STARTS.contains(&first) {
        return Some(format!("a comment starts with {first:?}; give it a subject and a verb"));
    }
    let prose = comment.to_lowercase();
    let is_there = |(word, _): &&(&str, &str)| {
        prose.match_indices(word).any(|(at, _)| {
            let before = prose[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '`');
            let after = prose[at + word.len()..].chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '_');
            before && after
        })
    };
    SYNONYMS.iter().find(is_there).map(|(word, instead)| format!("{word:?} in a comment; say {instead}"))
}

/// Returns the first error in the names that a line of code declares, before any string.
fn wrong_name(line: &str) -> Option<String> {
    let mut words = line.split('"').next()?.split_whitespace();
    while let Some(word) = words.next() {
        if !DECLARING.contains(&word) {
            continue;
        }
        let name: String = words.next()?.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let parts = parts(&name);
        if let Some((word, instead)) = NAME_SYNONYMS.iter().find(|(word, _)| parts.iter().any(|part| part == word)) {
            return Some(format!("{word:?} in the name {name}; say {instead}"));
        }
    }
    None
}

/// Returns the words of a name, in lower case: `is_told`, `IsTold` and `IS_TOLD` have the same.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
        if c != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_glossary_are_wanted() {
        for (comment, starts, is_wrong) in [
            ("What a pod needs.", true, true),
            ("Returns what a pod needs.", true, false),
            ("what follows", true, false),
            ("What goes on from the line before.", false, false),
            ("The client is told so.", true, true),
            ("Nobody knows.", false, true),
            ("The node's `nobody` user, `somebody_else`.", true, false),
            ("Whether the node is ready.", true, false),
        ] {
            assert_eq!(wrong_comment(comment, starts).is_some(), is_wrong, "{comment}");
        }
    }

    #[test]
    fn names_have_words_of_the_glossary() {
        for (line, is_wrong) in [
            ("pub(super) fn amount(name: &str) -> i64 {", true),
            ("    async fn a_node_is_told_once() {", true),
            ("pub type Amounts = BTreeMap<String, Quantity>;", true),
            ("enum Judgement {", true),
            ("struct TruthTable<'a> {", true),
            ("const ONLY_AMOUNTS: &str = \"only\";", true),
            ("pub mod letters;", true),
            ("fn judge() -> Judge {", true),
            ("fn quantity(amount: i64) -> i64 {", false),
            ("fn mounts_the_amountless() {", false),
            ("fn retold(said: bool) {", false),
            ("let told = 1;", false),
            ("use crate::told;", false),
            ("check(\"fn told() {}\");", false),
            ("struct NodeInfo {", false),
        ] {
            assert_eq!(wrong_name(line).is_some(), is_wrong, "{line}");
        }
    }

    #[test]
    fn comments_and_declarations_are_read() {
        let text = "//! A file.\nlet nobody = 1;\n    // Somebody reads.\n/// A line\n/// Who goes on.\nfn told() {}\n";
        let found = problems(Path::new("/r"), Path::new("/r/tools/x.rs"), text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("tools/x.rs:3: "), "{found:?}");
        assert!(found[1].starts_with("tools/x.rs:6: "), "{found:?}");
    }
}
