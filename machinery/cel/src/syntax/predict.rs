//! Which of several ways to take, by looking ahead as far as it needs: the adaptive prediction of the generator that made
//! cel-go's parser. Where it fails decides what an error says, so that it fails where that one fails.
//!
//! It first looks without knowing what called the rule, and again with that knowledge where this does not decide.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::grammar::{END, Edge, Grammar, Role};

/// Where to go on after the rules that were entered.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    follow: usize,
    below: Stack,
}

type Stack = Option<Rc<Frame>>;

/// A place that one may be at after some tokens, when the way was begun with this alternative.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    state: usize,
    alternative: usize,
    stack: Stack,
    /// It is not left out for being reached by going on in a loop too.
    is_kept: bool,
}

/// Places, and whether they were reached by leaving the rule in which the choice is made.
type Places = BTreeMap<Place, bool>;

pub struct Choice<'a> {
    pub grammar: &'a Grammar,
    /// Where the choice is made.
    pub state: usize,
    /// The states after the rules that were entered, the outermost first.
    pub follows: &'a [usize],
    /// The least strength of operators that may stand here.
    pub precedence: u8,
    /// Whether it is a loop over operators.
    pub is_recursive: bool,
    /// The kinds of the tokens to come; the last is the end.
    pub tokens: &'a [u8],
}

/// What a step of the search goes by.
#[derive(Clone, Copy)]
struct Mode {
    is_full: bool,
    is_start: bool,
    is_end: bool,
}

impl Choice<'_> {
    /// The alternative, counted from one; or how many tokens ahead nothing fits.
    pub fn predict(&self) -> Result<usize, usize> {
        match self.search(false)? {
            Some(alternative) => Ok(alternative),
            None => Ok(self.search(true)?.unwrap_or(1)),
        }
    }

    /// `None` means that the choice depends on what called the rule.
    fn search(&self, is_full: bool) -> Result<Option<usize>, usize> {
        let mut places = self.beginning(is_full);
        for ahead in 0.. {
            let token = self.tokens[ahead.min(self.tokens.len() - 1)];
            let reached = self.step(&places, token, is_full);
            if reached.is_empty() {
                return finished(&places, self.grammar).map(Some).ok_or(ahead);
            }
            let alternatives: BTreeSet<usize> = reached.keys().map(|place| place.alternative).collect();
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
            places = reached;
        }
        Ok(None)
    }

    fn beginning(&self, is_full: bool) -> Places {
        let outer = self.follows.iter().fold(None, |below, follow| Some(Rc::new(Frame { follow: *follow, below })));
        let stack = if is_full { outer } else { None };
        let mut places = Places::new();
        for (index, edge) in self.grammar.states[self.state].edges.iter().enumerate() {
            let Edge::To(target) = *edge else { continue };
            let place = Place { state: target, alternative: index + 1, stack: stack.clone(), is_kept: false };
            let mode = Mode { is_full, is_start: true, is_end: false };
            self.close(place, false, 0, mode, &mut BTreeSet::new(), &mut places);
        }
        if self.is_recursive && !is_full {
            self.drop_repeated(&mut places);
        }
        places
    }

    /// Leaving a loop where one could as well go on in it is no way of its own.
    fn drop_repeated(&self, places: &mut Places) {
        let first: BTreeMap<usize, Stack> = places
            .keys()
            .filter(|place| place.alternative == 1)
            .map(|place| (place.state, place.stack.clone()))
            .collect();
        places.retain(|place, _| {
            place.alternative == 1 || place.is_kept || first.get(&place.state) != Some(&place.stack)
        });
    }

    /// Where one may be after this token.
    fn step(&self, places: &Places, token: u8, is_full: bool) -> Places {
        let mut reached: Vec<(Place, bool)> = Vec::new();
        let mut stopped: Vec<(Place, bool)> = Vec::new();
        for (place, dips) in places {
            if self.grammar.states[place.state].role == Role::Stop {
                if is_full || token == 0 {
                    stopped.push((place.clone(), *dips));
                }
                continue;
            }
            for edge in &self.grammar.states[place.state].edges {
                if let Edge::Match(set, target) = *edge
                    && set & (1 << token) != 0
                {
                    reached.push((Place { state: target, ..place.clone() }, *dips));
                }
            }
        }
        let is_unique = reached.windows(2).all(|pair| pair[0].0.alternative == pair[1].0.alternative);
        let mut found = Places::new();
        if stopped.is_empty() && token != 0 && is_unique {
            found.extend(reached);
            return found;
        }
        let mode = Mode { is_full, is_start: false, is_end: token == 0 };
        let mut busy = BTreeSet::new();
        for (place, dips) in reached {
            self.close(place, dips, 0, mode, &mut busy, &mut found);
        }
        if token == 0 {
            found.retain(|place, _| self.grammar.states[place.state].role == Role::Stop);
        }
        let has_stopped = found.keys().any(|place| self.grammar.states[place.state].role == Role::Stop);
        if !is_full || !has_stopped {
            found.extend(stopped);
        }
        found
    }

    /// Adds a place and all that can be reached from it without a token. `depth` counts rules entered since the choice.
    fn close(
        &self,
        place: Place,
        dips: bool,
        depth: i32,
        mode: Mode,
        busy: &mut BTreeSet<(Place, bool)>,
        found: &mut Places,
    ) {
        let state = &self.grammar.states[place.state];
        let is_stop = state.role == Role::Stop;
        if is_stop {
            match &place.stack {
                Some(frame) => {
                    let back = Place { state: frame.follow, stack: frame.below.clone(), ..place.clone() };
                    return self.close(back, dips, depth - 1, mode, busy, found);
                }
                None if mode.is_full || state.edges.is_empty() => {
                    add(found, place, dips);
                    return;
                }
                None => {}
            }
        }
        if !busy.insert((place.clone(), dips)) {
            return;
        }
        if state.edges.iter().any(|edge| matches!(edge, Edge::Match(..))) {
            add(found, place.clone(), dips);
        }
        for edge in &state.edges {
            let at = |target: usize| Place { state: target, ..place.clone() };
            match *edge {
                Edge::To(target) => self.close(at(target), dips, depth, mode, busy, found),
                Edge::Match(set, target) if mode.is_end && set & END != 0 => {
                    self.close(at(target), dips, depth, mode, busy, found);
                }
                Edge::Match(..) => {}
                Edge::Call { rule, follow } => {
                    let stack = Some(Rc::new(Frame { follow, below: place.stack.clone() }));
                    let inner = Place { state: self.grammar.start_of(rule), stack, ..place.clone() };
                    self.close(inner, dips, depth + 1, mode, busy, found);
                }
                Edge::Precedence(level, target) => {
                    let is_judged = mode.is_start && depth == 0 && (mode.is_full || self.is_recursive);
                    if !is_judged || level >= self.precedence {
                        self.close(at(target), dips, depth, mode, busy, found);
                    }
                }
                Edge::Return { to, outermost } => {
                    let is_kept = place.is_kept
                        || self.is_recursive && outermost && state.rule == self.grammar.states[self.state].rule;
                    self.close(Place { is_kept, ..at(to) }, true, depth - 1, mode, busy, found);
                }
            }
        }
    }

    /// Whether going on without knowing the callers would not decide.
    fn is_conflict(&self, places: &Places) -> bool {
        if places.keys().all(|place| self.grammar.states[place.state].role == Role::Stop) {
            return true;
        }
        let mut by_state: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for place in places.keys() {
            by_state.entry(place.state).or_default().insert(place.alternative);
        }
        subsets(places).iter().any(|set| set.len() > 1) && !by_state.values().any(|set| set.len() == 1)
    }
}

fn add(found: &mut Places, place: Place, dips: bool) {
    *found.entry(place).or_default() |= dips;
}

/// The alternatives that are at the same state after the same rules.
fn subsets(places: &Places) -> Vec<BTreeSet<usize>> {
    let mut stacks: BTreeMap<(usize, usize), BTreeSet<&Stack>> = BTreeMap::new();
    for place in places.keys() {
        stacks.entry((place.state, place.alternative)).or_default().insert(&place.stack);
    }
    let mut sets: BTreeMap<(usize, BTreeSet<&Stack>), BTreeSet<usize>> = BTreeMap::new();
    for ((state, alternative), stacks) in stacks {
        sets.entry((state, stacks)).or_default().insert(alternative);
    }
    sets.into_values().collect()
}

/// The one alternative that comes first wherever several are left.
fn single_viable(places: &Places) -> Option<usize> {
    let firsts: BTreeSet<usize> = subsets(places).iter().filter_map(|set| set.first().copied()).collect();
    (firsts.len() == 1).then(|| firsts.first().copied()).flatten()
}

/// The first alternative by which the rule could have ended before the token that does not fit.
fn finished(places: &Places, grammar: &Grammar) -> Option<usize> {
    let ended = |place: &Place| grammar.states[place.state].role == Role::Stop && place.stack.is_none();
    places.iter().filter(|(place, dips)| **dips || ended(place)).map(|(place, _)| place.alternative).min()
}
