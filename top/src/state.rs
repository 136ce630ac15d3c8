//! The state of the screen: the rows, and what the user has chosen. Keys change it and return what is to be done.

use std::collections::BTreeMap;

use crate::keys::Key;
use crate::rows::{EventRow, NodeRow, PodRow, Usage};
use crate::text::clean;

/// The most events that are shown.
const MAX_EVENTS: usize = 500;

/// A part of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Section {
    Nodes,
    #[default]
    Pods,
    Events,
}

impl Section {
    pub const ALL: [Section; 3] = [Section::Nodes, Section::Pods, Section::Events];

    fn next(self) -> Section {
        match self {
            Section::Nodes => Section::Pods,
            Section::Pods => Section::Events,
            Section::Events => Section::Nodes,
        }
    }

    /// Returns the plural name of the section's objects.
    pub fn plural(self) -> &'static str {
        match self {
            Section::Nodes => "nodes",
            Section::Pods => "pods",
            Section::Events => "events",
        }
    }
}

/// An object that a key is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub section: Section,
    pub namespace: String,
    pub name: String,
}

/// The work that a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Quit,
    Logs(Target),
    Shell(Target),
    Describe(Target),
    Delete(Target),
}

/// A text that is shown in place of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pager {
    pub title: String,
    pub lines: Vec<String>,
    pub top: usize,
    /// The pod whose logs these are: they are read again while they are shown.
    pub followed: Option<Target>,
}

/// The meaning of keys at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    List,
    /// The user types a filter.
    Filter,
    /// The user is asked whether to delete an object.
    Confirm(Target),
    Pager(Pager),
}

/// The chosen row of a section, by its object; the index is for when the object is gone.
#[derive(Clone, Debug, Default)]
struct Cursor {
    key: String,
    index: usize,
}

/// Rows and choices.
#[derive(Debug, Default)]
pub struct State {
    pub nodes: BTreeMap<String, NodeRow>,
    pub pods: BTreeMap<String, PodRow>,
    pub events: BTreeMap<String, EventRow>,
    pub node_usage: BTreeMap<String, Usage>,
    pub pod_usage: BTreeMap<String, Usage>,
    pub section: Section,
    pub filter: String,
    pub mode: Mode,
    /// The outcome of the last key.
    pub message: String,
    cursors: [Cursor; 3],
}

impl State {
    fn matches(&self, section: Section, texts: &[&str]) -> bool {
        let is_filtered = section == self.section && !self.filter.is_empty();
        let filter = self.filter.to_lowercase();
        !is_filtered || texts.iter().any(|text| text.to_lowercase().contains(&filter))
    }

    pub fn shown_nodes(&self) -> Vec<&NodeRow> {
        let is_shown = |row: &&NodeRow| self.matches(Section::Nodes, &[&row.name, &row.status]);
        self.nodes.values().filter(is_shown).collect()
    }

    pub fn shown_pods(&self) -> Vec<&PodRow> {
        let texts = |row: &PodRow| {
            self.matches(Section::Pods, &[&format!("{}/{}", row.namespace, row.name), &row.status, &row.node])
        };
        // Without a filter no text is made for any of many pods.
        let is_plain = self.filter.is_empty() || self.section != Section::Pods;
        self.pods.values().filter(|row| is_plain || texts(row)).collect()
    }

    /// Returns the events, the newest first.
    pub fn shown_events(&self) -> Vec<&EventRow> {
        let is_shown =
            |row: &&EventRow| self.matches(Section::Events, &[&row.object, &row.reason, &row.message, &row.namespace]);
        let mut shown: Vec<&EventRow> = self.events.values().filter(is_shown).collect();
        shown.sort_by(|a, b| b.seen.cmp(&a.seen).then_with(|| a.name.cmp(&b.name)));
        shown.truncate(MAX_EVENTS);
        shown
    }

    /// Returns the keys of the rows of a section, in their order.
    fn keys(&self, section: Section) -> Vec<String> {
        let key = |namespace: &str, name: &str| format!("{namespace}/{name}");
        match section {
            Section::Nodes => self.shown_nodes().iter().map(|row| row.name.clone()).collect(),
            Section::Pods => self.shown_pods().iter().map(|row| key(&row.namespace, &row.name)).collect(),
            Section::Events => self.shown_events().iter().map(|row| key(&row.namespace, &row.name)).collect(),
        }
    }

    /// Returns the index of the chosen row of a section.
    pub fn index(&self, section: Section) -> usize {
        let cursor = &self.cursors[section as usize];
        let keys = self.keys(section);
        let found = keys.iter().position(|key| *key == cursor.key);
        found.unwrap_or(cursor.index).min(keys.len().saturating_sub(1))
    }

    fn move_to(&mut self, index: usize) {
        let section = self.section;
        let keys = self.keys(section);
        let index = index.min(keys.len().saturating_sub(1));
        let key = keys.get(index).cloned().unwrap_or_default();
        self.cursors[section as usize] = Cursor { key, index };
    }

    /// Returns the object of the chosen row; for an event the event itself.
    pub fn target(&self) -> Option<Target> {
        let keys = self.keys(self.section);
        let key = keys.get(self.index(self.section))?;
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        Some(Target { section: self.section, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Shows a text in place of the lists.
    pub fn show(&mut self, title: String, text: &str) {
        let lines = text.lines().map(clean).collect();
        self.mode = Mode::Pager(Pager { title, lines, top: 0, followed: None });
    }

    /// Shows the logs of a pod from their end.
    pub fn follow(&mut self, title: String, text: &str, target: Target) {
        let lines: Vec<String> = text.lines().map(clean).collect();
        self.mode = Mode::Pager(Pager { title, top: lines.len(), lines, followed: Some(target) });
    }

    /// Replaces the text that is shown. A user at its end stays at its end; `page` lines are in sight.
    pub fn refresh(&mut self, text: &str, page: usize) {
        let Mode::Pager(pager) = &mut self.mode else { return };
        let was_at_end = pager.top >= pager.lines.len().saturating_sub(page);
        pager.lines = text.lines().map(clean).collect();
        if was_at_end {
            pager.top = pager.lines.len().saturating_sub(page);
        }
    }

    /// Changes the state by a key; `page` is the number of rows of the chosen section.
    pub fn press(&mut self, key: &Key, page: usize) -> Action {
        if matches!(key, Key::Control('c')) {
            return Action::Quit;
        }
        self.message.clear();
        match std::mem::take(&mut self.mode) {
            Mode::List => self.press_in_list(key, page),
            Mode::Filter => self.press_in_filter(key),
            Mode::Confirm(target) => match key {
                Key::Character('y' | 'Y') => Action::Delete(target),
                _ => Action::Nothing,
            },
            Mode::Pager(pager) => self.press_in_pager(pager, key, page),
        }
    }

    fn press_in_list(&mut self, key: &Key, page: usize) -> Action {
        let index = self.index(self.section);
        match key {
            Key::Up | Key::Character('k') => self.move_to(index.saturating_sub(1)),
            Key::Down | Key::Character('j') => self.move_to(index + 1),
            Key::PageUp => self.move_to(index.saturating_sub(page.max(1))),
            Key::PageDown => self.move_to(index + page.max(1)),
            Key::Home | Key::Character('g') => self.move_to(0),
            Key::End | Key::Character('G') => self.move_to(usize::MAX),
            Key::Tab | Key::Right => self.section = self.section.next(),
            Key::Left => self.section = self.section.next().next(),
            Key::Character('1') => self.section = Section::Nodes,
            Key::Character('2') => self.section = Section::Pods,
            Key::Character('3') => self.section = Section::Events,
            Key::Character('/') => {
                self.filter.clear();
                self.mode = Mode::Filter;
            }
            Key::Escape => self.filter.clear(),
            Key::Character('q') => return Action::Quit,
            Key::Character('l') => return self.of_pod("logs", Action::Logs),
            Key::Character('s') => return self.of_pod("a shell", Action::Shell),
            Key::Character('d') | Key::Enter => {
                return self.target().map_or(Action::Nothing, Action::Describe);
            }
            Key::Control('d') => {
                if let Some(target) = self.target() {
                    self.mode = Mode::Confirm(target);
                }
            }
            _ => {}
        }
        Action::Nothing
    }

    fn of_pod(&mut self, what: &str, action: fn(Target) -> Action) -> Action {
        match self.target().filter(|target| target.section == Section::Pods) {
            Some(target) => action(target),
            None => {
                self.message = format!("only a pod has {what}");
                Action::Nothing
            }
        }
    }

    fn press_in_filter(&mut self, key: &Key) -> Action {
        self.mode = Mode::Filter;
        match key {
            Key::Character(character) => self.filter.push(*character),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            Key::Enter | Key::Up | Key::Down => self.mode = Mode::List,
            _ => {}
        }
        Action::Nothing
    }

    fn press_in_pager(&mut self, mut pager: Pager, key: &Key, page: usize) -> Action {
        let last = pager.lines.len().saturating_sub(page);
        match key {
            Key::Up | Key::Character('k') => pager.top = pager.top.saturating_sub(1),
            Key::Down | Key::Character('j') => pager.top += 1,
            Key::PageUp => pager.top = pager.top.saturating_sub(page),
            Key::PageDown | Key::Character(' ') => pager.top += page,
            Key::Home | Key::Character('g') => pager.top = 0,
            Key::End | Key::Character('G') => pager.top = last,
            Key::Escape | Key::Character('q') | Key::Left => return Action::Nothing,
            _ => {}
        }
        pager.top = pager.top.min(last);
        self.mode = Mode::Pager(pager);
        Action::Nothing
    }
}
