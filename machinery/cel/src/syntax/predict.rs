//! The adaptive prediction of ANTLR, which generated cel-go's parser: it chooses an alternative by looking ahead as far
//! as necessary. The point where it fails determines the error, so it must fail exactly where ANTLR's does.
//!
//! It first predicts without the calling context, and again with it if that does not decide.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::grammar::{END, Edge, Grammar, Role};

/// The states after the entered rules.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    follow: usize,
    below: Stack,
}

type Stack = Option<Rc<Frame>>;

/// A configuration: a state that may be reached after some tokens, and the alternative that began there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    state: usize,
    alternative: usize,
    stack: Stack,
    /// Whether it stays even if the loop's continuation reaches it too.
    is_kept: bool,
}

/// Configurations, and whether they were reached by leaving the rule of the choice.
type Configurations = BTreeMap<Configuration, bool>;

pub struct Choice<'a> {
    pub grammar: &'a Grammar,
    /// The state of the choice.
    pub state: usize,
    /// The states after the entered rules, the outermost first.
    pub follows: &'a [usize],
    /// The least precedence of operators that is allowed here.
    pub precedence: u8,
    /// Whether it is a loop over operators.
    pub is_recursive: bool,
    /// The kinds of the tokens to come; the last is the end.
    pub tokens: &'a [u8],
}

/// The mode of a search step.
#[derive(Clone, Copy)]
struct Mode {
    is_full: bool,
    is_start: bool,
    is_end: bool,
}

impl Choice<'_> {
    /// Returns the alternative, counted from one; or the number of tokens ahead at which no alternative is viable.
    pub fn predict(&self) -> Result<usize, usize> {
        match self.search(false)? {
            Some(alternative) => Ok(alternative),
            None => Ok(self.search(true)?.unwrap_or(1)),
        }
    }

    /// Searches an alternative. `None` means that the choice depends on the calling context.
    fn search(&self, is_full: bool) -> Result<Option<usize>, usize> {
        let mut configurations = self.beginning(is_full);
        for ahead in 0.. {
            let token = self.tokens[ahead.min(self.tokens.len() - 1)];
            let reached = self.step(&configurations, token, is_full);
            if reached.is_empty() {
                return finished(&configurations, self.grammar).map(Some).ok_or(ahead);
            }
            let alternatives: BTreeSet<usize> = reached.keys().map(|configuration| configuration.alternative).collect();
            if alternatives.len() == 1 {
                return Ok(alternatives.first().copied());
            }
            if !is_full && self.is_conflict(&reached) {
                return Ok(None);
            }
            if is_full && let Some(only) = single_viable(&reached) {
                return Ok(Some(only));
            }
            if token == 0 && ahead + 1 >= self.tokens.len() + 2 {
                return Ok(alternatives.first().copied());
            }
            configurations = reached;
        }
        Ok(None)
    }

    fn beginning(&self, is_full: bool) -> Configurations {
        let outer = self.follows.iter().fold(None, |below, follow| Some(Rc::new(Frame { follow: *follow, below })));
        let stack = if is_full { outer } else { None };
        let mut configurations = Configurations::new();
        for (index, edge) in self.grammar.states[self.state].edges.iter().enumerate() {
            let Edge::To(target) = *edge else { continue };
            let configuration =
                Configuration { state: target, alternative: index + 1, stack: stack.clone(), is_kept: false };
            let mode = Mode { is_full, is_start: true, is_end: false };
            self.close(configuration, false, 0, mode, &mut BTreeSet::new(), &mut configurations);
        }
        if self.is_recursive && !is_full {
            self.drop_repeated(&mut configurations);
        }
        configurations
    }

    /// Drops the exit of a loop if the loop's continuation reaches the same configuration.
    fn drop_repeated(&self, configurations: &mut Configurations) {
        let first: BTreeMap<usize, Stack> = configurations
            .keys()
            .filter(|configuration| configuration.alternative == 1)
            .map(|configuration| (configuration.state, configuration.stack.clone()))
            .collect();
        configurations.retain(|configuration, _| {
            configuration.alternative == 1
                || configuration.is_kept
                || first.get(&configuration.state) != Some(&configuration.stack)
        });
    }

    /// Returns the configurations after this token.
    fn step(&self, configurations: &Configurations, token: u8, is_full: bool) -> Configurations {
        let mut reached: Vec<(Configuration, bool)> = Vec::new();
        let mut stopped: Vec<(Configuration, bool)> = Vec::new();
        for (configuration, dips) in configurations {
            if self.grammar.states[configuration.state].role == Role::Stop {
                if is_full || token == 0 {
                    stopped.push((configuration.clone(), *dips));
                }
                continue;
            }
            for edge in &self.grammar.states[configuration.state].edges {
                if let Edge::Match(set, target) = *edge
                    && set & (1 << token) != 0
                {
                    reached.push((Configuration { state: target, ..configuration.clone() }, *dips));
                }
            }
        }
        let is_unique = reached.windows(2).all(|pair| pair[0].0.alternative == pair[1].0.alternative);
        let mut found = Configurations::new();
        if stopped.is_empty() && token != 0 && is_unique {
            found.extend(reached);
            return found;
        }
        let mode = Mode { is_full, is_start: false, is_end: token == 0 };
        let mut busy = BTreeSet::new();
        for (configuration, dips) in reached {
            self.close(configuration, dips, 0, mode, &mut busy, &mut found);
        }
        if token == 0 {
            found.retain(|configuration, _| self.grammar.states[configuration.state].role == Role::Stop);
        }
        let has_stopped = found.keys().any(|configuration| self.grammar.states[configuration.state].role == Role::Stop);
        if !is_full || !has_stopped {
            found.extend(stopped);
        }
        found
    }

    /// Adds a configuration and all that are reachable from it without a token. `depth` counts the rules entered since
    /// the choice.
    fn close(
        &self,
        configuration: Configuration,
        dips: bool,
        depth: i32,
        mode: Mode,
        busy: &mut BTreeSet<(Configuration, bool)>,
        found: &mut Configurations,
    ) {
        let state = &self.grammar.states[configuration.state];
        let is_stop = state.role == Role::Stop;
        if is_stop {
            match &configuration.stack {
                Some(frame) => {
                    let back =
                        Configuration { state: frame.follow, stack: frame.below.clone(), ..configuration.clone() };
                    return self.close(back, dips, depth - 1, mode, busy, found);
                }
                None if mode.is_full || state.edges.is_empty() => {
                    add(found, configuration, dips);
                    return;
                }
                None => {}
            }
        }
        if !busy.insert((configuration.clone(), dips)) {
            return;
        }
        if state.edges.iter().any(|edge| matches!(edge, Edge::Match(..))) {
            add(found, configuration.clone(), dips);
        }
        for edge in &state.edges {
            let at = |target: usize| Configuration { state: target, ..configuration.clone() };
            match *edge {
                Edge::To(target) => self.close(at(target), dips, depth, mode, busy, found),
                Edge::Match(set, target) if mode.is_end && set & END != 0 => {
                    self.close(at(target), dips, depth, mode, busy, found);
                }
                Edge::Match(..) => {}
                Edge::Call { rule, follow } => {
                    let stack = Some(Rc::new(Frame { follow, below: configuration.stack.clone() }));
                    let inner = Configuration { state: self.grammar.start_of(rule), stack, ..configuration.clone() };
                    self.close(inner, dips, depth + 1, mode, busy, found);
                }
                Edge::Precedence(level, target) => {
                    let is_checked = mode.is_start && depth == 0 && (mode.is_full || self.is_recursive);
                    if !is_checked || level >= self.precedence {
                        self.close(at(target), dips, depth, mode, busy, found);
                    }
                }
                Edge::Return { to, outermost } => {
                    let is_kept = configuration.is_kept
                        || self.is_recursive && outermost && state.rule == self.grammar.states[self.state].rule;
                    self.close(Configuration { is_kept, ..at(to) }, true, depth - 1, mode, busy, found);
                }
            }
        }
    }

    /// Reports whether further search without the calling context would not decide.
    fn is_conflict(&self, configurations: &Configurations) -> bool {
        if configurations.keys().all(|configuration| self.grammar.states[configuration.state].role == Role::Stop) {
            return true;
        }
        let mut by_state: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for configuration in configurations.keys() {
            by_state.entry(configuration.state).or_default().insert(configuration.alternative);
        }
        subsets(configurations).iter().any(|set| set.len() > 1) && !by_state.values().any(|set| set.len() == 1)
    }
}

fn add(found: &mut Configurations, configuration: Configuration, dips: bool) {
    *found.entry(configuration).or_default() |= dips;
}

/// Returns the alternatives at the same state after the same rules.
fn subsets(configurations: &Configurations) -> Vec<BTreeSet<usize>> {
    let mut stacks: BTreeMap<(usize, usize), BTreeSet<&Stack>> = BTreeMap::new();
    for configuration in configurations.keys() {
        stacks.entry((configuration.state, configuration.alternative)).or_default().insert(&configuration.stack);
    }
    let mut sets: BTreeMap<(usize, BTreeSet<&Stack>), BTreeSet<usize>> = BTreeMap::new();
    for ((state, alternative), stacks) in stacks {
        sets.entry((state, stacks)).or_default().insert(alternative);
    }
    sets.into_values().collect()
}

/// Returns the single alternative that comes first wherever several are left.
fn single_viable(configurations: &Configurations) -> Option<usize> {
    let firsts: BTreeSet<usize> = subsets(configurations).iter().filter_map(|set| set.first().copied()).collect();
    (firsts.len() == 1).then(|| firsts.first().copied()).flatten()
}

/// Returns the first alternative by which the rule could have ended before the unexpected token.
fn finished(configurations: &Configurations, grammar: &Grammar) -> Option<usize> {
    let ended = |configuration: &Configuration| {
        grammar.states[configuration.state].role == Role::Stop && configuration.stack.is_none()
    };
    configurations
        .iter()
        .filter(|(configuration, dips)| **dips || ended(configuration))
        .map(|(configuration, _)| configuration.alternative)
        .min()
}
