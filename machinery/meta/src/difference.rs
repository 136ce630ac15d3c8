//! The unified diff of two lists of lines, as upstream's messages about forbidden changes show it.
//!
//! Pure and bounded: if both inputs have very many lines, the diff replaces one by the other.

use std::collections::HashMap;

/// The number of unchanged lines shown around a change.
const CONTEXT: usize = 3;
/// The number of lines from which an input is long.
const LONG: usize = 200;
/// The limit of steps for matching lines.
const MAX_STEPS: usize = 1_000_000;

/// A run of lines: its ranges in the old and the new input, and whether the lines are equal.
struct Run {
    old: (usize, usize),
    new: (usize, usize),
    same: bool,
}

/// Indents compact JSON by one space per level and splits it into lines. The order of fields stays.
pub fn indented(json: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut depth = 0_usize;
    let mut in_text = false;
    let mut escaped = false;
    let mut characters = json.chars().peekable();
    while let Some(c) = characters.next() {
        let line = lines.last_mut().expect("there is always a line");
        if in_text {
            line.push(c);
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '{' | '[' => {
                line.push(c);
                let close = if c == '{' { '}' } else { ']' };
                if characters.next_if_eq(&close).is_some() {
                    line.push(close);
                } else {
                    depth += 1;
                    lines.push(" ".repeat(depth));
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                lines.push(format!("{}{c}", " ".repeat(depth)));
            }
            ',' => {
                line.push(c);
                lines.push(" ".repeat(depth));
            }
            ':' => line.push_str(": "),
            _ => {
                in_text = c == '"';
                line.push(c);
            }
        }
    }
    lines
}

/// Returns the diff with three lines of context; empty if the inputs are equal.
pub fn unified(old: &[String], new: &[String]) -> String {
    let mut out = String::new();
    for group in groups(runs(old, new)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let before = range(first.old.0, last.old.1);
        let after = range(first.new.0, last.new.1);
        out.push_str(&format!("@@ -{before} +{after} @@\n"));
        for run in &group {
            let mut write = |mark: char, lines: &[String]| {
                lines.iter().for_each(|line| out.push_str(&format!("{mark}{line}\n")));
            };
            if run.same {
                write(' ', &old[run.old.0..run.old.1]);
            } else {
                write('-', &old[run.old.0..run.old.1]);
                write('+', &new[run.new.0..run.new.1]);
            }
        }
    }
    out
}

fn range(from: usize, to: usize) -> String {
    match to - from {
        1 => (from + 1).to_string(),
        0 => format!("{from},0"),
        length => format!("{},{length}", from + 1),
    }
}

/// Returns the runs of equal and changed lines, in order.
fn runs(old: &[String], new: &[String]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut i = 0;
    let mut j = 0;
    let mut add = |old: (usize, usize), new: (usize, usize), same: bool| {
        if old.0 != old.1 || new.0 != new.1 {
            runs.push(Run { old, new, same });
        }
    };
    for block in blocks(old, new) {
        add((i, block.old), (j, block.new), false);
        (i, j) = (block.old + block.length, block.new + block.length);
        add((block.old, i), (block.new, j), true);
    }
    add((i, old.len()), (j, new.len()), false);
    runs
}

/// A block of lines that are equal in both inputs.
#[derive(Clone, Copy)]
struct Block {
    old: usize,
    new: usize,
    length: usize,
}

/// Returns the blocks that both inputs share: the longest, then the longest on either side of it, and so on. In a long
/// input, frequent lines do not begin a block.
fn blocks(old: &[String], new: &[String]) -> Vec<Block> {
    if old.len() * new.len() / LONG > MAX_STEPS {
        return Vec::new();
    }
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in new.iter().enumerate() {
        places.entry(line).or_default().push(at);
    }
    if new.len() >= LONG {
        places.retain(|_, at| at.len() <= new.len() / 100 + 1);
    }
    let mut found: Vec<Block> = Vec::new();
    let mut open = vec![((0, old.len()), (0, new.len()))];
    while let Some((a, b)) = open.pop() {
        let block = longest(old, new, &places, a, b);
        if block.length > 0 {
            found.push(block);
            open.push(((a.0, block.old), (b.0, block.new)));
            open.push(((block.old + block.length, a.1), (block.new + block.length, b.1)));
        }
    }
    found.sort_unstable_by_key(|block| (block.old, block.new));
    let mut joined: Vec<Block> = Vec::new();
    for block in found {
        match joined.last_mut() {
            Some(last) if last.old + last.length == block.old && last.new + last.length == block.new => {
                last.length += block.length;
            }
            _ => joined.push(block),
        }
    }
    joined
}

/// Returns the longest block within two ranges; of several the first in the old input, then the first in the new one.
fn longest(
    old: &[String],
    new: &[String],
    places: &HashMap<&str, Vec<usize>>,
    a: (usize, usize),
    b: (usize, usize),
) -> Block {
    let mut best = Block { old: a.0, new: b.0, length: 0 };
    let mut ending: HashMap<usize, usize> = HashMap::new();
    for (x, line) in old.iter().enumerate().take(a.1).skip(a.0) {
        let mut next = HashMap::new();
        let all = places.get(line.as_str()).map(Vec::as_slice).unwrap_or_default();
        for y in all.iter().copied().filter(|y| (b.0..b.1).contains(y)) {
            let length = y.checked_sub(1).and_then(|before| ending.get(&before)).copied().unwrap_or(0) + 1;
            next.insert(y, length);
            if length > best.length {
                best = Block { old: x + 1 - length, new: y + 1 - length, length };
            }
        }
        ending = next;
    }
    while best.old > a.0 && best.new > b.0 && old[best.old - 1] == new[best.new - 1] {
        best = Block { old: best.old - 1, new: best.new - 1, length: best.length + 1 };
    }
    while best.old + best.length < a.1
        && best.new + best.length < b.1
        && old[best.old + best.length] == new[best.new + best.length]
    {
        best.length += 1;
    }
    best
}

/// Groups changes that are near each other, with the lines around them.
fn groups(runs: Vec<Run>) -> Vec<Vec<Run>> {
    let mut groups: Vec<Vec<Run>> = Vec::new();
    let mut group: Vec<Run> = Vec::new();
    let count = runs.len();
    for (at, run) in runs.into_iter().enumerate() {
        if !run.same {
            group.push(run);
            continue;
        }
        let length = run.old.1 - run.old.0;
        let is_first = at == 0;
        let is_last = at + 1 == count;
        let head = |n: usize| Run { old: (run.old.0, run.old.0 + n), new: (run.new.0, run.new.0 + n), same: true };
        let tail = |n: usize| Run { old: (run.old.1 - n, run.old.1), new: (run.new.1 - n, run.new.1), same: true };
        match (is_first, is_last) {
            (true, true) => {}
            (true, false) => group.push(tail(length.min(CONTEXT))),
            (false, true) => group.push(head(length.min(CONTEXT))),
            (false, false) if length > 2 * CONTEXT => {
                group.push(head(CONTEXT));
                groups.push(std::mem::take(&mut group));
                group.push(tail(CONTEXT));
            }
            (false, false) => group.push(run),
        }
    }
    if group.iter().any(|run| !run.same) {
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_as_upstream_indents_it() {
        let lines = indented(r#"{"a":[1,{"b":"x, {y\"}"}],"c":{},"d":[]}"#);
        assert_eq!(
            lines.join("\n"),
            "{\n \"a\": [\n  1,\n  {\n   \"b\": \"x, {y\\\"}\"\n  }\n ],\n \"c\": {},\n \"d\": []\n}"
        );
    }

    #[test]
    fn a_frequent_line_of_a_long_input_begins_no_block() {
        let text = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let often = |first: &str| {
            let mut lines = vec![first];
            (0..120).for_each(|_| lines.extend(["x", "y"]));
            text(&lines)
        };
        let diff = unified(&often("a"), &often("b"));
        assert!(diff.starts_with("@@ -1,241 +1,241 @@\n-a\n-x\n"), "{diff}");
        let diff = unified(&text(&["{", "{", "1", "}", "{", "2", "}", "}"]), &text(&["{", "{", "2", "}", "}"]));
        assert_eq!(diff, "@@ -1,7 +1,4 @@\n {\n-{\n-1\n-}\n {\n 2\n }\n");
    }

    #[test]
    fn changes_are_shown_with_three_lines_around_them() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let check = |a: &str, b: &str, wanted: &str| assert_eq!(unified(&lines(a), &lines(b)), wanted, "{a} {b}");
        check("a b c", "a b c", "");
        check("a b c", "a x c", "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
        check("1 2 3 4 5 6", "1 2 3 4 5 6 7", "@@ -4,3 +4,4 @@\n 4\n 5\n 6\n+7\n");
        check(
            "x 1 2 3 4 5 6 7 y",
            "1 2 3 4 5 6 7 z",
            "@@ -1,4 +1,3 @@\n-x\n 1\n 2\n 3\n@@ -6,4 +5,4 @@\n 5\n 6\n 7\n-y\n+z\n",
        );
    }
}
