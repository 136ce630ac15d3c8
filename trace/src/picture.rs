//! A trace as a picture: a lane for each component, time downwards.

use std::fmt::Write as _;

use crate::step::{Actor, Step};

const LANE: usize = 250;
const LEFT: usize = 80;
const TOP: usize = 50;
const ROW: usize = 22;

/// Draws steps as an SVG document. Texts of objects are escaped.
pub fn svg(steps: &[Step]) -> String {
    let width = LEFT + LANE * Actor::ALL.len() + 260;
    let height = TOP + ROW * (steps.len() + 1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (index, actor) in Actor::ALL.into_iter().enumerate() {
        let x = LEFT + LANE * index;
        // Writing into a string cannot fail.
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"24\" font-weight=\"bold\">{}</text>", actor.name());
        let _ = writeln!(svg, "<line x1=\"{x}\" y1=\"32\" x2=\"{x}\" y2=\"{height}\" stroke=\"#ccc\"/>");
    }
    let Some(first) = steps.first().map(|step| step.at) else { return svg + "</svg>\n" };
    for (row, step) in steps.iter().enumerate() {
        let y = TOP + ROW * row;
        let lane = Actor::ALL.iter().position(|actor| *actor == step.actor).unwrap_or(0);
        let x = LEFT + LANE * lane;
        let milliseconds = step.milliseconds_since(first);
        let _ = writeln!(svg, "<text x=\"8\" y=\"{}\" fill=\"#666\">{milliseconds} ms</text>", y + 4);
        let _ = writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{}\"/>", colour(step.actor));
        let text = escape(&format!("{} {}", step.object, step.text));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{text}</text>", x + 8, y + 4);
    }
    svg + "</svg>\n"
}

fn colour(actor: Actor) -> &'static str {
    match actor {
        Actor::Client => "#555",
        Actor::Controllers => "#2a6fdb",
        Actor::Scheduler => "#c9820a",
        Actor::Kubelet => "#1d8a4c",
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
