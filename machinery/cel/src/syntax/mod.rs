//! What is wrong with the syntax of a text, in the words of cel-go, whose parser is generated: it names what it expected,
//! skips or invents a token, and goes on to the next error. Clients see these words, and people search for them.
//!
//! This runs only on a text that the parser has refused, and makes no tree. It ends soon on any text: recoveries and
//! depth are counted, and each recovery passes tokens or leaves a rule.

mod grammar;
mod predict;

use std::collections::BTreeSet;

use grammar::{END, EPSILON, GRAMMAR, Grammar, NAMES, Node, Role, Tokens};
use predict::Choice;

use crate::lexer::{Lexeme, Token};
use crate::source::Issue;

/// After so many recoveries nothing more is told.
const MAX_RECOVERIES: u32 = 30;
/// So many tokens are skipped at most in one recovery.
const MAX_SKIPPED: u32 = 256;
/// How many rules may be entered within each other.
const MAX_RULES: u32 = 600;
/// Longer texts are not looked at again.
const MAX_TOKENS: usize = 1000;

/// Every syntax error of a text.
pub fn complaints(text: &str, lexemes: &[Lexeme]) -> Vec<Issue> {
    if lexemes.len() > MAX_TOKENS {
        return Vec::new();
    }
    let kinds = lexemes.iter().map(|lexeme| kind(&lexeme.token)).collect();
    let mut reader = Reader {
        grammar: &GRAMMAR,
        text: text.chars().collect(),
        lexemes,
        kinds,
        at: 0,
        state: 0,
        follows: Vec::new(),
        precedence: 0,
        depth: 0,
        is_recovering: false,
        last_error: None,
        last_states: BTreeSet::new(),
        recoveries: 0,
        issues: Vec::new(),
    };
    // What ended it early has been told.
    let _ = reader.rule(0, 0);
    reader.issues
}

/// The number of a token's kind.
fn kind(token: &Token) -> u8 {
    let name = match token {
        Token::End => return 0,
        Token::Ident(word) if matches!(&**word, "true" | "false" | "null" | "in") => &format!("'{word}'"),
        Token::Ident(_) => "IDENTIFIER",
        Token::Quoted(_) => "ESC_IDENTIFIER",
        Token::Int(_) => "NUM_INT",
        Token::Uint(_) => "NUM_UINT",
        Token::Double(_) => "NUM_FLOAT",
        Token::String(_) => "STRING",
        Token::Bytes(_) => "BYTES",
        Token::Sign(sign) => &format!("'{sign}'"),
    };
    NAMES.iter().position(|known| *known == name).and_then(|number| u8::try_from(number).ok()).unwrap_or(0)
}

/// Why a rule is left.
enum Failure {
    Mismatch,
    /// Nothing fits from the first of these tokens to the second.
    NoWay(usize, usize),
    /// Enough was told.
    Limit,
}

struct Reader<'a> {
    grammar: &'static Grammar,
    text: Vec<char>,
    lexemes: &'a [Lexeme],
    kinds: Vec<u8>,
    at: usize,
    state: usize,
    /// Where to go on after the rules that were entered.
    follows: Vec<usize>,
    precedence: u8,
    depth: u32,
    /// An error was told and no token fitted since: what follows from it is not told.
    is_recovering: bool,
    last_error: Option<usize>,
    last_states: BTreeSet<usize>,
    recoveries: u32,
    issues: Vec<Issue>,
}

/// The steps of the grammar.
impl Reader<'_> {
    fn rule(&mut self, rule: usize, precedence: u8) -> Result<(), Failure> {
        self.depth += 1;
        if self.depth > MAX_RULES {
            return Err(Failure::Limit);
        }
        let outer = std::mem::replace(&mut self.precedence, precedence);
        let grammar = self.grammar;
        match self.sequence(&grammar.rules[rule]) {
            Ok(()) => {}
            Err(Failure::Limit) => return Err(Failure::Limit),
            Err(failure) => {
                self.report(&failure);
                self.recover()?;
            }
        }
        self.precedence = outer;
        self.depth -= 1;
        Ok(())
    }

    fn sequence(&mut self, nodes: &[Node]) -> Result<(), Failure> {
        nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &Node) -> Result<(), Failure> {
        match node {
            Node::Match { state, set } => {
                self.state = *state;
                if !has(*set, self.ahead(0)) {
                    return self.recover_inline();
                }
                self.matched();
                self.consume();
                Ok(())
            }
            Node::Call { state, rule, precedence, follow } => {
                self.state = *state;
                self.follows.push(*follow);
                let read = self.rule(*rule, *precedence);
                self.follows.pop();
                self.state = *state;
                read
            }
            Node::Block { state, optional, alternatives } => {
                self.state = *state;
                self.synchronize()?;
                let chosen = self.choose(*state, *optional, false)?;
                alternatives.get(chosen - 1).map_or(Ok(()), |nodes| self.sequence(nodes))
            }
            Node::Star { entry, back, body } => {
                self.state = *entry;
                self.synchronize()?;
                while self.choose(*entry, true, true)? == 1 {
                    self.sequence(body)?;
                    self.state = *back;
                    self.synchronize()?;
                }
                Ok(())
            }
            Node::Plus { start, back, body } => {
                self.state = *start;
                self.synchronize()?;
                loop {
                    self.sequence(body)?;
                    self.state = *back;
                    self.synchronize()?;
                    if self.choose(*back, true, false)? != 1 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Which way to take from a state, counted from one.
    fn choose(&self, state: usize, optional: bool, is_loop: bool) -> Result<usize, Failure> {
        let sets = self.grammar.firsts(state);
        let fitting: Vec<usize> = (0..sets.len()).filter(|index| has(sets[*index], self.ahead(0))).collect();
        let is_recursive = is_loop && self.grammar.is_recursive(self.grammar.states[state].rule);
        match fitting.as_slice() {
            // Whether an operator may stand here is not for the token alone to say.
            [only] if !is_recursive || *only > 0 => return Ok(only + 1),
            [] if is_loop => return Ok(sets.len()),
            [] if self.grammar.is_told_by_one(state) && optional => return Ok(sets.len()),
            [] if self.grammar.is_told_by_one(state) => return Err(Failure::NoWay(self.at, self.at)),
            _ => {}
        }
        let choice = Choice {
            grammar: self.grammar,
            state,
            follows: &self.follows,
            precedence: self.precedence,
            is_recursive,
            tokens: &self.kinds[self.at..],
        };
        let last = self.lexemes.len() - 1;
        choice.predict().map_err(|ahead| Failure::NoWay(self.at, (self.at + ahead).min(last)))
    }

    fn ahead(&self, count: usize) -> u8 {
        self.kinds.get(self.at + count).copied().unwrap_or(0)
    }

    fn consume(&mut self) {
        self.at = (self.at + 1).min(self.lexemes.len() - 1);
    }
}

fn has(set: Tokens, kind: u8) -> bool {
    set & (1 << kind) != 0
}

/// What is done about errors.
impl Reader<'_> {
    fn matched(&mut self) {
        self.is_recovering = false;
        self.last_error = None;
        self.last_states.clear();
    }

    /// At a choice or at the end of a round: a token that fits nowhere is left out, if what follows fits.
    fn synchronize(&mut self) -> Result<(), Failure> {
        let next = self.grammar.next(self.state);
        if self.is_recovering || next & EPSILON != 0 || has(next, self.ahead(0)) {
            return Ok(());
        }
        match self.grammar.states[self.state].role {
            Role::Choice if !self.delete_token() => Err(Failure::Mismatch),
            Role::Back => {
                self.report_unwanted();
                let wanted = self.expected(self.state) | self.recovery_set();
                self.skip_until(wanted, u32::MAX)
            }
            _ => Ok(()),
        }
    }

    fn recover_inline(&mut self) -> Result<(), Failure> {
        self.count_recovery()?;
        if self.delete_token() {
            self.consume();
            return Ok(());
        }
        let next = self.grammar.states[self.state].edges.first().map_or(self.state, |edge| match *edge {
            grammar::Edge::Match(_, target) => target,
            _ => self.state,
        });
        if !has(self.expected(next), self.ahead(0)) {
            return Err(Failure::Mismatch);
        }
        if !self.is_recovering {
            self.is_recovering = true;
            let message = format!("missing {} at {}", listed(self.expected(self.state)), self.shown(self.at));
            self.tell(self.at, &message);
        }
        Ok(())
    }

    /// Leaves out one token if the one after it is expected.
    fn delete_token(&mut self) -> bool {
        if !has(self.expected(self.state), self.ahead(1)) {
            return false;
        }
        self.report_unwanted();
        self.consume();
        self.matched();
        true
    }

    fn recover(&mut self) -> Result<(), Failure> {
        self.count_recovery()?;
        if self.last_error == Some(self.at) && self.last_states.contains(&self.state) {
            self.consume();
        }
        self.last_error = Some(self.at);
        self.last_states.insert(self.state);
        let set = self.recovery_set();
        self.skip_until(set, MAX_SKIPPED)
    }

    fn count_recovery(&mut self) -> Result<(), Failure> {
        self.recoveries += 1;
        if self.recoveries <= MAX_RECOVERIES {
            return Ok(());
        }
        self.tell(self.at, &format!("error recovery attempt limit exceeded: {MAX_RECOVERIES}"));
        Err(Failure::Limit)
    }

    fn skip_until(&mut self, set: Tokens, most: u32) -> Result<(), Failure> {
        let mut skipped = 0;
        while self.ahead(0) != 0 && !has(set, self.ahead(0)) {
            if skipped >= most {
                let message = format!("error recovery token lookahead limit exceeded: {most}");
                self.issues.push(Issue { offset: None, message });
                return Err(Failure::Limit);
            }
            skipped += 1;
            self.consume();
        }
        Ok(())
    }

    /// What may follow the rules that were entered.
    fn recovery_set(&self) -> Tokens {
        self.follows.iter().fold(0, |set, follow| set | self.grammar.next(*follow)) & !EPSILON
    }

    /// What may come at a state, also after the rules that end there.
    fn expected(&self, state: usize) -> Tokens {
        let mut set = self.grammar.next(state);
        for follow in self.follows.iter().rev() {
            if set & EPSILON == 0 {
                return set;
            }
            set = set & !EPSILON | self.grammar.next(*follow);
        }
        if set & EPSILON == 0 { set } else { set & !EPSILON | END }
    }
}

/// What is said.
impl Reader<'_> {
    fn report(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.is_recovering, true) {
            return;
        }
        match *failure {
            Failure::Mismatch => {
                let expected = listed(self.expected(self.state));
                let message = format!("mismatched input {} expecting {expected}", self.shown(self.at));
                self.tell(self.at, &message);
            }
            Failure::NoWay(first, last) => {
                let input = self.between(first, last);
                let word = input.get(1..).filter(|word| matches!(*word, "true" | "false" | "null"));
                let message = match word {
                    Some(word) => format!("mismatched input '{word}' expecting IDENTIFIER"),
                    None => format!("no viable alternative at input {}", quoted(&input)),
                };
                self.tell(last, &message);
            }
            Failure::Limit => {}
        }
    }

    fn report_unwanted(&mut self) {
        if std::mem::replace(&mut self.is_recovering, true) {
            return;
        }
        let expected = listed(self.expected(self.state));
        self.tell(self.at, &format!("extraneous input {} expecting {expected}", self.shown(self.at)));
    }

    fn tell(&mut self, at: usize, message: &str) {
        let message = format!("Syntax error: {message}");
        self.issues.push(Issue { offset: Some(self.lexemes[at].offset), message });
    }

    fn shown(&self, at: usize) -> String {
        quoted(&self.lexemes[at].text)
    }

    /// The text from one token to the end of another, with the blanks between them.
    fn between(&self, first: usize, last: usize) -> String {
        if self.kinds[first] == 0 {
            return "<EOF>".to_owned();
        }
        let mut text = String::new();
        for at in first..=last {
            if self.kinds[at] == 0 {
                break;
            }
            let lexeme = &self.lexemes[at];
            text.push_str(&lexeme.text);
            if at < last {
                let end = lexeme.offset as usize + lexeme.text.chars().count();
                let gap = self.text.get(end..self.lexemes[at + 1].offset as usize).unwrap_or_default();
                // What was no token is gone; blanks are there, though nobody looks at them.
                text.extend(gap.iter().filter(|letter| letter.is_whitespace()));
            }
        }
        text
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r"))
}

/// A set of tokens by their names.
fn listed(set: Tokens) -> String {
    let names: Vec<&str> =
        NAMES.iter().enumerate().filter(|(number, _)| set & (1 << number) != 0).map(|(_, name)| *name).collect();
    match names.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("{{{}}}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests;
