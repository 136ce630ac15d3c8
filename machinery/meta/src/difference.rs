//! The unified difference of two texts, as upstream's messages about forbidden changes show it.
//!
//! Pure and bounded: texts that differ in more than a few hundred lines are shown as one replaced by the other.

/// Lines around a change that are shown with it.
const CONTEXT: usize = 3;
/// The largest table that is made to match lines, in cells.
const MAX_CELLS: usize = 4_000_000;

/// A run of lines: the ranges in the old and the new text, and whether they are the same.
struct Run {
    old: (usize, usize),
    new: (usize, usize),
    same: bool,
}

/// Compact JSON with one space of indentation per level, in lines. The order of fields stays.
pub fn indented(json: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
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

/// The difference with three lines of context; empty when there is none.
pub fn unified(old: &[String], new: &[String]) -> String {
    let mut out = String::new();
    for group in groups(runs(old, new)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let (before, after) = (range(first.old.0, last.old.1), range(first.new.0, last.new.1));
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

/// The runs of same and changed lines, in order.
fn runs(old: &[String], new: &[String]) -> Vec<Run> {
    let start = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let mut runs: Vec<Run> = Vec::new();
    let mut add = |old: (usize, usize), new: (usize, usize), same: bool| {
        if old.0 == old.1 && new.0 == new.1 {
            return;
        }
        match runs.last_mut() {
            Some(last) if last.same == same => (last.old.1, last.new.1) = (old.1, new.1),
            _ => runs.push(Run { old, new, same }),
        }
    };
    add((0, start), (0, start), true);
    let (mut i, mut j) = (0, 0);
    for (x, y) in matching(a, b) {
        add((start + i, start + x), (start + j, start + y), false);
        add((start + x, start + x + 1), (start + y, start + y + 1), true);
        (i, j) = (x + 1, y + 1);
    }
    add((start + i, start + a.len()), (start + j, start + b.len()), false);
    add((old.len() - end, old.len()), (new.len() - end, new.len()), true);
    runs
}

/// The positions of a longest common subsequence.
fn matching(a: &[String], b: &[String]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    if a.is_empty() || b.is_empty() || (a.len() + 1) * width > MAX_CELLS {
        return Vec::new();
    }
    let mut lengths = vec![0_u32; (a.len() + 1) * width];
    for x in (0..a.len()).rev() {
        for y in (0..b.len()).rev() {
            lengths[x * width + y] = if a[x] == b[y] {
                lengths[(x + 1) * width + y + 1] + 1
            } else {
                lengths[(x + 1) * width + y].max(lengths[x * width + y + 1])
            };
        }
    }
    let (mut x, mut y, mut found) = (0, 0, Vec::new());
    while x < a.len() && y < b.len() {
        if a[x] == b[y] {
            found.push((x, y));
            (x, y) = (x + 1, y + 1);
        } else if lengths[(x + 1) * width + y] >= lengths[x * width + y + 1] {
            x += 1;
        } else {
            y += 1;
        }
    }
    found
}

/// Changes that are near each other, with the lines around them.
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
        let (is_first, is_last) = (at == 0, at + 1 == count);
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
