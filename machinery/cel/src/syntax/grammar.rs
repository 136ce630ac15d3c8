//! The grammar of the language as ANTLR's network of states: it determines the expected tokens at a state, and the
//! recovery from an error.
//!
//! It is built once, from the rules below, at the first source with a syntax error.

use std::collections::BTreeSet;
use std::sync::LazyLock;

/// A set of token kinds, by number; the highest bit means that the end of the rule is reachable without a token.
pub type Tokens = u64;
pub const EPSILON: Tokens = 1 << 63;
pub const END: Tokens = 1;

/// The token kinds in the order of their numbers, as errors name them.
pub static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let names = "<EOF> '==' '!=' 'in' '<' '<=' '>=' '>' '&&' '||' '[' ']' '{' '}' '(' ')' '.' ',' '-' '!' '?' ':' '+' \
                 '*' '/' '%' 'true' 'false' 'null' WHITESPACE COMMENT NUM_FLOAT NUM_INT NUM_UINT STRING BYTES \
                 IDENTIFIER ESC_IDENTIFIER";
    names.split_whitespace().collect()
});

/// The rules. Their words are separated by blanks: tokens (alternatives are separated by `~`), rules with the least
/// precedence of their operators, `{n}` before an operator of that precedence, and brackets.
const RULES: [(&str, &str); 17] = [
    ("start", "expr <EOF>"),
    ("expr", "conditionalOr ( '?' conditionalOr ':' expr )?"),
    ("conditionalOr", "conditionalAnd ( '||' conditionalAnd )*"),
    ("conditionalAnd", "relation ( '&&' relation )*"),
    ("relation", "calc ( {1} '<'~'<='~'>='~'>'~'=='~'!='~'in' relation:2 )*"),
    ("calc", "unary ( {2} '*'~'/'~'%' calc:3 | {1} '+'~'-' calc:2 )*"),
    ("unary", "member | ( '!' )+ member | ( '-' )+ member"),
    (
        "member",
        "primary ( {3} '.' ( '?' )? escapeIdent | {2} '.' IDENTIFIER '(' ( exprList )? ')' | {1} '[' ( '?' )? expr ']' )*",
    ),
    (
        "primary",
        "( '.' )? IDENTIFIER | ( '.' )? IDENTIFIER '(' ( exprList )? ')' | '(' expr ')' \
         | '[' ( listInit )? ( ',' )? ']' | '{' ( mapInitializerList )? ( ',' )? '}' \
         | ( '.' )? IDENTIFIER ( '.' IDENTIFIER )* '{' ( fieldInitializerList )? ( ',' )? '}' | literal",
    ),
    ("exprList", "expr ( ',' expr )*"),
    ("listInit", "optExpr ( ',' optExpr )*"),
    ("fieldInitializerList", "optField ':' expr ( ',' optField ':' expr )*"),
    ("optField", "( '?' )? escapeIdent"),
    ("mapInitializerList", "optExpr ':' expr ( ',' optExpr ':' expr )*"),
    ("escapeIdent", "IDENTIFIER | ESC_IDENTIFIER"),
    ("optExpr", "( '?' )? expr"),
    ("literal", "( '-' )? NUM_INT | NUM_UINT | ( '-' )? NUM_FLOAT | STRING | BYTES | 'true' | 'false' | 'null'"),
];

/// The role of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Plain,
    /// The begin of a choice or loop: a superfluous token may be skipped here.
    Choice,
    /// The next iteration of a loop: unexpected tokens are skipped here.
    Back,
    Stop,
}

/// An edge from one state to another.
#[derive(Debug, Clone, Copy)]
pub enum Edge {
    To(usize),
    Match(Tokens, usize),
    /// An edge into a rule, which continues at `follow` after it.
    Call {
        rule: usize,
        follow: usize,
    },
    /// An edge that is allowed only for operators of this precedence.
    Precedence(u8, usize),
    /// An edge from the end of a rule to its caller; `outermost` if any operator is allowed there.
    Return {
        to: usize,
        outermost: bool,
    },
}

#[derive(Debug)]
pub struct State {
    pub role: Role,
    pub rule: usize,
    pub edges: Vec<Edge>,
}

/// The rules as steps.
#[derive(Debug)]
pub enum Node {
    Match { state: usize, set: Tokens },
    Call { state: usize, rule: usize, precedence: u8, follow: usize },
    Block { state: usize, optional: bool, alternatives: Vec<Vec<Node>> },
    Star { entry: usize, back: usize, body: Vec<Node> },
    Plus { start: usize, back: usize, body: Vec<Node> },
}

#[derive(Debug, Default)]
pub struct Grammar {
    pub states: Vec<State>,
    pub rules: Vec<Vec<Node>>,
    starts: Vec<usize>,
    nexts: Vec<Tokens>,
    firsts: Vec<Vec<Tokens>>,
}

pub static GRAMMAR: LazyLock<Grammar> = LazyLock::new(Grammar::build);

impl Grammar {
    pub fn start_of(&self, rule: usize) -> usize {
        self.starts[rule]
    }

    /// Reports whether a rule has operators of several precedences.
    pub fn is_recursive(&self, rule: usize) -> bool {
        RULES[rule].1.contains("{1}")
    }

    /// Returns the tokens that may come next within the rule.
    pub fn next(&self, state: usize) -> Tokens {
        self.nexts[state]
    }

    /// Returns the tokens that each alternative of a state begins with.
    pub fn firsts(&self, state: usize) -> &[Tokens] {
        &self.firsts[state]
    }

    /// Reports whether one token is enough to choose an alternative.
    pub fn is_decided_by_one(&self, state: usize) -> bool {
        let sets = self.firsts(state);
        let is_disjoint = |(at, set): (usize, &Tokens)| sets[..at].iter().all(|other| set & other == 0);
        !self.is_recursive(self.states[state].rule) && sets.iter().enumerate().all(is_disjoint)
    }

    /// Collects the next tokens; `outside` continues after the rule with all callers.
    fn collect(&self, state: usize, outside: bool, seen: &mut BTreeSet<usize>, found: &mut Tokens) {
        if !seen.insert(state) {
            return;
        }
        if self.states[state].role == Role::Stop && !outside {
            *found |= EPSILON;
            return;
        }
        for edge in &self.states[state].edges {
            match *edge {
                Edge::To(target) | Edge::Return { to: target, .. } | Edge::Precedence(_, target) => {
                    self.collect(target, outside, seen, found);
                }
                Edge::Match(set, _) => *found |= set,
                // No rule is empty.
                Edge::Call { rule, .. } => self.collect(self.starts[rule], outside, seen, found),
            }
        }
    }

    fn collected(&self, state: usize, outside: bool) -> Tokens {
        let mut found = 0;
        self.collect(state, outside, &mut BTreeSet::new(), &mut found);
        found
    }

    fn collected_firsts(&self, state: usize) -> Vec<Tokens> {
        let targets = self.states[state].edges.iter().filter_map(|edge| match *edge {
            Edge::To(target) => Some(target),
            _ => None,
        });
        targets.map(|target| self.collected(target, true)).collect()
    }

    fn build() -> Grammar {
        let mut grammar = Grammar::default();
        let mut stops = Vec::new();
        for rule in 0..RULES.len() {
            let start = grammar.state(Role::Plain, rule);
            stops.push(grammar.state(Role::Stop, rule));
            grammar.starts.push(start);
        }
        for (rule, (_, text)) in RULES.iter().enumerate() {
            let mut builder = Builder { grammar: &mut grammar, rule, words: text.split_whitespace().collect(), at: 0 };
            let start = builder.grammar.starts[rule];
            let stop = stops[rule];
            let nodes = builder.rule_body(start, stop);
            grammar.rules.push(nodes);
        }
        grammar.add_returns(&stops);
        grammar.nexts = (0..grammar.states.len()).map(|state| grammar.collected(state, false)).collect();
        grammar.firsts = (0..grammar.states.len()).map(|state| grammar.collected_firsts(state)).collect();
        grammar
    }

    fn add_returns(&mut self, stops: &[usize]) {
        let mut calls = Vec::new();
        collect_calls(&self.rules, &mut calls);
        for (rule, precedence, follow) in calls {
            let edge = Edge::Return { to: follow, outermost: self.is_recursive(rule) && precedence == 0 };
            self.states[stops[rule]].edges.push(edge);
        }
    }

    fn state(&mut self, role: Role, rule: usize) -> usize {
        self.states.push(State { role, rule, edges: Vec::new() });
        self.states.len() - 1
    }

    fn join(&mut self, from: usize, to: usize) {
        self.states[from].edges.push(Edge::To(to));
    }
}

fn collect_calls(sequences: &[Vec<Node>], calls: &mut Vec<(usize, u8, usize)>) {
    for node in sequences.iter().flatten() {
        match node {
            Node::Call { rule, precedence, follow, .. } => calls.push((*rule, *precedence, *follow)),
            Node::Block { alternatives, .. } => collect_calls(alternatives, calls),
            Node::Star { body, .. } | Node::Plus { body, .. } => collect_calls(std::slice::from_ref(body), calls),
            Node::Match { .. } => {}
        }
    }
}

/// Reads the words of one rule.
struct Builder<'a> {
    grammar: &'a mut Grammar,
    rule: usize,
    words: Vec<&'static str>,
    at: usize,
}

/// Steps, and the states before and after them.
type Part = (Vec<Node>, usize, usize);

impl Builder<'_> {
    fn rule_body(&mut self, start: usize, stop: usize) -> Vec<Node> {
        let mut alternatives = self.alternatives();
        if alternatives.len() == 1 {
            let (nodes, left, right) = alternatives.remove(0);
            self.grammar.join(start, left);
            self.grammar.join(right, stop);
            return nodes;
        }
        let block = self.grammar.state(Role::Choice, self.rule);
        let end = self.grammar.state(Role::Plain, self.rule);
        self.grammar.join(start, block);
        self.grammar.join(end, stop);
        let alternatives = self.branch(block, end, alternatives);
        vec![Node::Block { state: block, optional: false, alternatives }]
    }

    /// Adds edges from one state to another through each of the alternatives.
    fn branch(&mut self, from: usize, to: usize, alternatives: Vec<Part>) -> Vec<Vec<Node>> {
        let mut bodies = Vec::new();
        for (mut nodes, left, right) in alternatives {
            self.grammar.join(from, left);
            self.end_at(&mut nodes, right, to);
            bodies.push(nodes);
        }
        bodies
    }

    /// Ends the last step directly at a state: after a rule the state is then the same for all alternatives that called
    /// it, which is why some sources are ambiguous without being an error.
    fn end_at(&mut self, nodes: &mut [Node], right: usize, to: usize) {
        let state = match nodes.last_mut() {
            Some(Node::Match { state, .. }) => *state,
            Some(Node::Call { state, follow, .. }) => {
                *follow = to;
                *state
            }
            _ => return self.grammar.join(right, to),
        };
        for edge in &mut self.grammar.states[state].edges {
            match edge {
                Edge::Match(_, target) | Edge::Call { follow: target, .. } if *target == right => *target = to,
                _ => {}
            }
        }
    }

    fn alternatives(&mut self) -> Vec<Part> {
        let mut found = vec![self.sequence()];
        while self.words.get(self.at) == Some(&"|") {
            self.at += 1;
            found.push(self.sequence());
        }
        found
    }

    fn sequence(&mut self) -> Part {
        let left = self.grammar.state(Role::Plain, self.rule);
        let mut nodes = Vec::new();
        let mut last = left;
        while let Some(word) = self.words.get(self.at).copied().filter(|word| *word != "|" && !word.starts_with(')')) {
            self.at += 1;
            last = match word {
                "(" => self.bracket(last, &mut nodes),
                _ => self.word(word, last, &mut nodes),
            };
        }
        (nodes, left, last)
    }

    fn word(&mut self, word: &str, state: usize, nodes: &mut Vec<Node>) -> usize {
        let next = self.grammar.state(Role::Plain, self.rule);
        if let Some(level) = word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
            self.grammar.states[state].edges.push(Edge::Precedence(level.parse().unwrap_or(0), next));
            return next;
        }
        let (name, precedence) =
            word.rsplit_once(':').filter(|(name, _)| !name.starts_with('\'')).unwrap_or((word, "0"));
        match RULES.iter().position(|(rule, _)| *rule == name) {
            Some(rule) => {
                self.grammar.states[state].edges.push(Edge::Call { rule, follow: next });
                let precedence = precedence.parse().unwrap_or(0);
                nodes.push(Node::Call { state, rule, precedence, follow: next });
            }
            None => {
                let numbers = word.split('~').filter_map(|name| NAMES.iter().position(|known| *known == name));
                let set = numbers.fold(0, |set, number| set | 1 << number);
                self.grammar.states[state].edges.push(Edge::Match(set, next));
                nodes.push(Node::Match { state, set });
            }
        }
        next
    }

    fn bracket(&mut self, before: usize, nodes: &mut Vec<Node>) -> usize {
        let alternatives = self.alternatives();
        let suffix = self.words.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        let after = self.grammar.state(Role::Plain, self.rule);
        let start = self.grammar.state(Role::Choice, self.rule);
        if suffix == ")?" {
            self.grammar.join(before, start);
            let alternatives = self.branch(start, after, alternatives);
            self.grammar.join(start, after);
            nodes.push(Node::Block { state: start, optional: true, alternatives });
            return after;
        }
        let back = self.grammar.state(Role::Back, self.rule);
        let mut bodies = self.branch(start, back, alternatives);
        let body = match bodies.len() {
            1 => bodies.remove(0),
            _ => vec![Node::Block { state: start, optional: false, alternatives: bodies }],
        };
        if suffix == ")+" {
            self.grammar.join(before, start);
            self.grammar.join(back, start);
            self.grammar.join(back, after);
            nodes.push(Node::Plus { start, back, body });
            return after;
        }
        let entry = self.grammar.state(Role::Choice, self.rule);
        self.grammar.join(before, entry);
        self.grammar.join(entry, start);
        self.grammar.join(entry, after);
        self.grammar.join(back, entry);
        nodes.push(Node::Star { entry, back, body });
        after
    }
}
