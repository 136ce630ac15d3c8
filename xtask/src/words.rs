//! Kubernetes' own words: comments have a subject and a verb, and use the words of the glossary in CONTRIBUTING.md.

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

/// Returns the comments of a file that use another word than the glossary's.
pub fn problems(root: &Path, file: &Path, text: &str) -> Vec<String> {
    let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
    let comments = text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, comment(line)?)));
    let mut starts = true;
    let mut problems = Vec::new();
    let mut last = 0;
    for (line, comment) in comments {
        starts |= line != last + 1;
        problems.extend(wrong(comment, starts).map(|what| format!("{name}:{line}: {what}")));
        starts = comment.trim_end().ends_with('.') || comment.trim().is_empty();
        last = line;
    }
    problems
}

/// The words of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim_start)
}

/// Returns what is wrong with a line of a comment; `starts` says that a sentence begins with it.
fn wrong(comment: &str, starts: bool) -> Option<String> {
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
            assert_eq!(wrong(comment, starts).is_some(), is_wrong, "{comment}");
        }
    }

    #[test]
    fn only_comments_are_read() {
        let text = "//! A file.\nlet nobody = 1;\n    // Somebody reads.\n/// A line\n/// Who goes on.\n";
        let found = problems(Path::new("/r"), Path::new("/r/tools/x.rs"), text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("tools/x.rs:3: "), "{found:?}");
    }
}
