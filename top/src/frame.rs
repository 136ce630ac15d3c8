//! The screen as lines: a title, the three sections, and the keys. Each line is as wide as the terminal, at most.

use jiff::Timestamp;

use crate::rows::{EventRow, NodeRow, PodRow, age, cores, mebibytes, percent};
use crate::state::{Mode, Pager, Section, State};
use crate::text::{clean, cut, fit};

/// The columns and lines of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub lines: usize,
}

/// The rows of each section, in the order of the sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heights(pub [usize; 3]);

/// The most rows of sections that are not chosen.
const OTHERS: [usize; 3] = [4, 8, 4];
/// The lines beside rows: the title, three headers, and the keys.
const FIXED: usize = 5;
const KEYS: &str = "↑↓ move  Tab section  / filter  l logs  s shell  d describe  Ctrl-D delete  q quit";
const PAGER_KEYS: &str = "↑↓ scroll  PgUp PgDn page  Esc back";

const RESET: &str = "\u{1b}[0m";

/// The looks of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Plain,
    Header,
    Chosen,
    Bad,
}

/// Draws with or without colours.
struct Pen {
    colors: bool,
}

impl Pen {
    fn draw(&self, line: String, look: Look) -> String {
        let code = match look {
            _ if !self.colors => return line,
            Look::Plain => return line,
            Look::Header => "\u{1b}[1;36m",
            Look::Chosen => "\u{1b}[7m",
            Look::Bad => "\u{1b}[31m",
        };
        format!("{code}{line}{RESET}")
    }
}

/// Returns the rows that each section has.
pub fn heights(state: &State, size: Size) -> Heights {
    let counts = [state.shown_nodes().len(), state.shown_pods().len(), state.shown_events().len()];
    let total = size.lines.saturating_sub(FIXED);
    let chosen = state.section as usize;
    let mut heights = [0; 3];
    let mut left = total;
    for (section, count) in counts.into_iter().enumerate().filter(|(section, _)| *section != chosen) {
        // At least half of the rows are those of the chosen section.
        let room = left.saturating_sub(total.div_ceil(2));
        heights[section] = count.min(OTHERS[section]).min(room);
        left -= heights[section];
    }
    heights[chosen] = left;
    Heights(heights)
}

/// Returns the lines of the screen.
pub fn frame(state: &State, size: Size, now: Timestamp, colors: bool) -> Vec<String> {
    let pen = Pen { colors };
    if size.columns < 40 || size.lines < 8 {
        return vec![cut("the terminal is too small", size.columns)];
    }
    let mut lines = match &state.mode {
        Mode::Pager(pager) => draw_pager(pager, size, &pen),
        _ => draw_lists(state, size, now, &pen),
    };
    lines.truncate(size.lines);
    lines
}

fn draw_pager(pager: &Pager, size: Size, pen: &Pen) -> Vec<String> {
    let page = size.lines - 2;
    let mut lines = vec![pen.draw(fit(&clean(&pager.title), size.columns), Look::Header)];
    // Logs begin at their end.
    let top = pager.top.min(pager.lines.len().saturating_sub(page));
    let shown = pager.lines.iter().skip(top).take(page);
    lines.extend(shown.map(|line| cut(line, size.columns)));
    lines.resize(size.lines - 1, String::new());
    lines.push(cut(PAGER_KEYS, size.columns));
    lines
}

fn draw_lists(state: &State, size: Size, now: Timestamp, pen: &Pen) -> Vec<String> {
    let Heights(heights) = heights(state, size);
    let mut lines = vec![pen.draw(fit(&title(state), size.columns), Look::Header)];
    for section in Section::ALL {
        let sight = Sight::of(state, section, heights[section as usize]);
        // Only the rows in sight are made: there may be many pods.
        let rows: Vec<Row> = match section {
            Section::Nodes => sight.rows(state.shown_nodes(), |row| node_row(state, row, now)),
            Section::Pods => sight.rows(state.shown_pods(), |row| pod_row(state, row, now)),
            Section::Events => sight.rows(state.shown_events(), |row| event_row(row, now)),
        };
        draw_section(state, section, &rows, &sight, size, pen, &mut lines);
    }
    lines.resize(size.lines - 1, String::new());
    lines.push(cut(&footer(state), size.columns));
    lines
}

/// The rows of a section that are in sight.
struct Sight {
    /// The index of the chosen row, which stays in sight.
    index: usize,
    top: usize,
    height: usize,
}

impl Sight {
    fn of(state: &State, section: Section, height: usize) -> Sight {
        let index = state.index(section);
        Sight { index, top: (index + 1).saturating_sub(height), height }
    }

    fn rows<T>(&self, all: Vec<T>, row: impl Fn(T) -> Row) -> Vec<Row> {
        all.into_iter().skip(self.top).take(self.height).map(row).collect()
    }
}

/// The cells of a row, and whether it shows trouble.
struct Row {
    cells: Vec<String>,
    is_bad: bool,
}

/// A column: its header, and its width; the one without a width takes the rest.
struct Column {
    header: &'static str,
    width: Option<usize>,
}

const fn column(header: &'static str, width: usize) -> Column {
    Column { header, width: Some(width) }
}

const fn rest(header: &'static str) -> Column {
    Column { header, width: None }
}

fn columns(section: Section) -> Vec<Column> {
    match section {
        Section::Nodes => vec![
            rest("NODE"),
            column("STATUS", 14),
            column("CPU", 8),
            column("CPU%", 5),
            column("MEMORY", 9),
            column("MEM%", 5),
            column("PODS", 5),
            column("AGE", 5),
        ],
        Section::Pods => vec![
            column("NAMESPACE", 12),
            rest("POD"),
            column("READY", 5),
            column("STATUS", 12),
            column("RST", 4),
            column("CPU", 6),
            column("MEMORY", 7),
            column("AGE", 5),
        ],
        Section::Events => {
            vec![column("AGE", 5), column("OBJECT", 22), column("REASON", 14), rest("EVENT")]
        }
    }
}

fn draw_section(
    state: &State,
    section: Section,
    rows: &[Row],
    sight: &Sight,
    size: Size,
    pen: &Pen,
    lines: &mut Vec<String>,
) {
    let columns = columns(section);
    let is_chosen = section == state.section;
    let headers: Vec<String> = columns.iter().map(|column| column.header.to_owned()).collect();
    let mark = if is_chosen { "* " } else { "  " };
    lines.push(pen.draw(format!("{mark}{}", join(&columns, &headers, size.columns - 2)), Look::Header));
    let end = lines.len() + sight.height;
    for (number, row) in rows.iter().enumerate() {
        let is_cursor = is_chosen && sight.top + number == sight.index;
        let mark = if is_cursor { "> " } else { "  " };
        let line = format!("{mark}{}", join(&columns, &row.cells, size.columns - 2));
        let look = match (is_cursor, row.is_bad) {
            (true, _) => Look::Chosen,
            (false, true) => Look::Bad,
            (false, false) => Look::Plain,
        };
        lines.push(pen.draw(line, look));
    }
    lines.resize(end, String::new());
}

/// Joins cells to a line of a width.
fn join(columns: &[Column], cells: &[String], total: usize) -> String {
    let fixed: usize = columns.iter().filter_map(|column| column.width).sum::<usize>() + columns.len() - 1;
    let rest = total.saturating_sub(fixed);
    let fitted: Vec<String> =
        columns.iter().zip(cells).map(|(column, cell)| fit(&clean(cell), column.width.unwrap_or(rest))).collect();
    fit(&fitted.join(" "), total)
}

fn node_row(state: &State, row: &NodeRow, now: Timestamp) -> Row {
    let used = state.node_usage.get(&row.name);
    let pods = state.pods.values().filter(|pod| pod.node == row.name).count();
    Row {
        cells: vec![
            row.name.clone(),
            row.status.clone(),
            used.map(|used| cores(used.cpu)).unwrap_or_default(),
            used.map(|used| percent(used.cpu, row.allocatable.cpu)).unwrap_or_default(),
            used.map(|used| mebibytes(used.memory)).unwrap_or_default(),
            used.map(|used| percent(used.memory, row.allocatable.memory)).unwrap_or_default(),
            pods.to_string(),
            age(row.created, now),
        ],
        is_bad: !row.is_ready,
    }
}

fn pod_row(state: &State, row: &PodRow, now: Timestamp) -> Row {
    let used = state.pod_usage.get(&format!("{}/{}", row.namespace, row.name));
    Row {
        cells: vec![
            row.namespace.clone(),
            row.name.clone(),
            format!("{}/{}", row.ready, row.containers),
            row.status.clone(),
            row.restarts.to_string(),
            used.map(|used| cores(used.cpu)).unwrap_or_default(),
            used.map(|used| mebibytes(used.memory)).unwrap_or_default(),
            age(row.created, now),
        ],
        is_bad: !row.is_well,
    }
}

fn event_row(row: &EventRow, now: Timestamp) -> Row {
    Row {
        cells: vec![age(row.seen, now), row.object.clone(), row.reason.clone(), row.message.clone()],
        is_bad: row.is_warning,
    }
}

fn title(state: &State) -> String {
    let ready = state.nodes.values().filter(|node| node.is_ready).count();
    let well = state.pods.values().filter(|pod| pod.is_well).count();
    let used = state
        .node_usage
        .values()
        .fold((0_i64, 0_i64), |sum, one| (sum.0.saturating_add(one.cpu), sum.1.saturating_add(one.memory)));
    let whole = state.nodes.values().fold((0_i64, 0_i64), |sum, one| {
        (sum.0.saturating_add(one.allocatable.cpu), sum.1.saturating_add(one.allocatable.memory))
    });
    let mut title = format!("corten top   nodes {ready}/{}   pods {well}/{}", state.nodes.len(), state.pods.len());
    if !state.node_usage.is_empty() {
        title.push_str(&format!("   cpu {}   memory {}", percent(used.0, whole.0), percent(used.1, whole.1)));
    }
    title
}

fn footer(state: &State) -> String {
    match &state.mode {
        Mode::Filter => format!("filter {}: {}█", state.section.plural(), clean(&state.filter)),
        Mode::Confirm(target) => {
            let name = match target.namespace.is_empty() {
                true => target.name.clone(),
                false => format!("{}/{}", target.namespace, target.name),
            };
            let kind = target.section.plural().trim_end_matches('s');
            format!("Delete {kind} {}? y deletes it, any other key does not.", clean(&name))
        }
        _ if !state.message.is_empty() => clean(&state.message),
        _ if !state.filter.is_empty() => format!("filter: {}   Esc clears it   {KEYS}", clean(&state.filter)),
        _ => KEYS.to_owned(),
    }
}

/// Returns whether a line is no wider than a terminal; for tests.
#[cfg(test)]
pub fn fits(line: &str, columns: usize) -> bool {
    let plain: String = line.split('\u{1b}').enumerate().map(|(at, part)| strip(at, part)).collect();
    crate::text::width(&plain) <= columns
}

#[cfg(test)]
fn strip(at: usize, part: &str) -> &str {
    if at == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) }
}
