//! The step from characters to tokens: indentation becomes brackets, and a scalar before a colon becomes a key.
//!
//! Only the colon behind a scalar shows that it is a key, so tokens wait until it is decided. A key without a question
//! mark is on one line and has at most 1,024 characters.

use super::Failed;
use super::text::{Mark, Text, is_blank, is_blank_or_end, is_break_or_end, is_word};
use std::collections::VecDeque;

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Version(String, String),
    /// A handle and the prefix that it stands for.
    TagDirective(String, String),
    DocumentStart,
    DocumentEnd,
    BlockSequence,
    BlockMapping,
    BlockEnd,
    FlowSequence,
    FlowSequenceEnd,
    FlowMapping,
    FlowMappingEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(String),
    Anchor(String),
    /// A handle and a suffix.
    Tag(String, String),
    /// A scalar, and whether it is plain (without quotes).
    Scalar(String, bool),
    End,
}

#[derive(Debug, Clone)]
pub struct Token {
    pub kind: Kind,
    pub start: Mark,
    pub end: Mark,
}

/// A position that may turn out to begin a key.
#[derive(Clone, Copy)]
struct Candidate {
    /// The number of the key's first token.
    number: usize,
    /// Whether only a key can be here.
    required: bool,
    mark: Mark,
}

pub struct Scanner<'a> {
    pub(super) text: Text<'a>,
    tokens: VecDeque<Token>,
    taken: usize,
    /// The column of the innermost block, or -1, and those of the blocks around it.
    pub(super) indent: isize,
    indents: Vec<isize>,
    /// One candidate for each open bracket, and one for the level outside of them.
    candidates: Vec<Option<Candidate>>,
    pub(super) key_allowed: bool,
    ended: bool,
}

type Scanned<T> = Result<T, Failed>;

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Scanner<'a> {
        Scanner {
            text: Text::new(text),
            tokens: VecDeque::new(),
            taken: 0,
            indent: -1,
            indents: Vec::new(),
            candidates: vec![None],
            key_allowed: true,
            ended: false,
        }
    }

    /// Returns the next token without taking it.
    pub fn peek(&mut self) -> Scanned<&Token> {
        while !self.ended && (self.tokens.is_empty() || self.is_undecided()?) {
            self.fetch()?;
        }
        Ok(&self.tokens[0])
    }

    /// Takes the token that was peeked at.
    pub fn next(&mut self) -> Scanned<Token> {
        let token = self.peek()?.clone();
        if token.kind != Kind::End {
            self.tokens.pop_front();
            self.taken += 1;
        }
        Ok(token)
    }

    pub(super) fn in_flow(&self) -> bool {
        self.candidates.len() > 1
    }

    pub(super) fn fail<T>(&self, context: Mark, problem: &str) -> Scanned<T> {
        Err(Failed::scanning(self.text.mark, context, problem))
    }

    /// Reports whether the next token may still turn out to begin a key.
    fn is_undecided(&mut self) -> Scanned<bool> {
        let level = self.candidates.iter().position(|key| key.is_some_and(|key| key.number == self.taken));
        level.map_or(Ok(false), |level| self.is_still_possible(level))
    }

    fn is_still_possible(&mut self, level: usize) -> Scanned<bool> {
        let (Some(key), here) = (self.candidates[level], self.text.mark) else { return Ok(false) };
        if key.mark.line >= here.line && key.mark.index + 1024 >= here.index {
            return Ok(true);
        }
        self.give_up(level)?;
        Ok(false)
    }

    /// Removes the key candidate of a level.
    fn give_up(&mut self, level: usize) -> Scanned<()> {
        match self.candidates[level].take() {
            Some(key) if key.required => self.fail(key.mark, "could not find expected ':'"),
            _ => Ok(()),
        }
    }

    fn no_key(&mut self) -> Scanned<()> {
        self.give_up(self.candidates.len() - 1)
    }

    /// Records that a key may begin here.
    fn may_be_key(&mut self) -> Scanned<()> {
        if self.key_allowed {
            let required = !self.in_flow() && self.indent == self.column();
            self.no_key()?;
            let key = Candidate { number: self.taken + self.tokens.len(), required, mark: self.text.mark };
            *self.candidates.last_mut().expect("there is always one") = Some(key);
        }
        Ok(())
    }

    fn column(&self) -> isize {
        isize::try_from(self.text.mark.column).unwrap_or(isize::MAX)
    }

    fn push(&mut self, kind: Kind, start: Mark) {
        self.tokens.push_back(Token { kind, start, end: self.text.mark });
    }

    /// Opens a block if this column is deeper than the one around it.
    fn open_block(&mut self, mark: Mark, number: Option<usize>, kind: Kind) {
        let column = isize::try_from(mark.column).unwrap_or(isize::MAX);
        if self.in_flow() || self.indent >= column {
            return;
        }
        self.indents.push(self.indent);
        self.indent = column;
        let at = number.map_or(self.tokens.len(), |number| number - self.taken);
        self.tokens.insert(at, Token { kind, start: mark, end: mark });
    }

    /// Closes the blocks that are deeper than a column.
    fn close_blocks(&mut self, column: isize) {
        while !self.in_flow() && self.indent > column {
            self.push(Kind::BlockEnd, self.text.mark);
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    fn fetch(&mut self) -> Scanned<()> {
        self.skip_to_token();
        self.close_blocks(self.column());
        let start = self.text.mark;
        let character = self.text.peek();
        let next = self.text.peek_at(1);
        let stands_alone = is_blank_or_end(next);
        match character {
            '\0' => self.end(),
            '%' if start.column == 0 => {
                self.end_of_content()?;
                let kind = self.directive(start)?;
                self.push(kind, start);
                Ok(())
            }
            '-' if self.text.is_document_mark("---") => self.document_mark(Kind::DocumentStart),
            '.' if self.text.is_document_mark("...") => self.document_mark(Kind::DocumentEnd),
            '[' | '{' => {
                self.may_be_key()?;
                self.candidates.push(None);
                self.key_allowed = true;
                self.indicator(if character == '[' { Kind::FlowSequence } else { Kind::FlowMapping })
            }
            ']' | '}' => {
                self.no_key()?;
                if self.in_flow() {
                    self.candidates.pop();
                }
                self.key_allowed = false;
                self.indicator(if character == ']' { Kind::FlowSequenceEnd } else { Kind::FlowMappingEnd })
            }
            ',' => {
                self.no_key()?;
                self.key_allowed = true;
                self.indicator(Kind::FlowEntry)
            }
            '-' if stands_alone => {
                self.begin_in_block(Kind::BlockSequence, "block sequence entries are not allowed in this context")?;
                self.no_key()?;
                self.key_allowed = true;
                self.indicator(Kind::BlockEntry)
            }
            '?' if stands_alone || self.in_flow() => {
                self.begin_in_block(Kind::BlockMapping, "mapping keys are not allowed in this context")?;
                self.no_key()?;
                self.key_allowed = !self.in_flow();
                self.indicator(Kind::Key)
            }
            ':' if stands_alone || self.in_flow() => self.value(),
            '*' | '&' | '!' | '\'' | '"' => self.key_or_value(character),
            '|' | '>' if !self.in_flow() => {
                self.no_key()?;
                self.key_allowed = true;
                let text = self.block_scalar(character == '|')?;
                self.push(Kind::Scalar(text, false), start);
                Ok(())
            }
            _ if self.begins_plain(character, next) => self.key_or_value(character),
            _ => self.fail(start, "found character that cannot start any token"),
        }
    }

    fn begins_plain(&self, character: char, next: char) -> bool {
        match character {
            '-' => !is_blank(next),
            '?' | ':' => !self.in_flow() && !is_blank_or_end(next),
            _ => !is_blank_or_end(character) && !",[]{}#&*!|>'\"%@`".contains(character),
        }
    }

    /// Reads a token that may be a key as well as a value.
    fn key_or_value(&mut self, character: char) -> Scanned<()> {
        let start = self.text.mark;
        self.may_be_key()?;
        self.key_allowed = false;
        let kind = match character {
            '*' => Kind::Alias(self.anchor()?),
            '&' => Kind::Anchor(self.anchor()?),
            '!' => self.tag()?,
            '\'' | '"' => Kind::Scalar(self.quoted(character)?, false),
            _ => Kind::Scalar(self.plain()?, true),
        };
        self.push(kind, start);
        Ok(())
    }

    fn indicator(&mut self, kind: Kind) -> Scanned<()> {
        let start = self.text.mark;
        self.text.take();
        self.push(kind, start);
        Ok(())
    }

    /// Reads a block indicator, which is only allowed where a key is, and opens the block.
    fn begin_in_block(&mut self, kind: Kind, problem: &str) -> Scanned<()> {
        if !self.in_flow() {
            if !self.key_allowed {
                return self.fail(self.text.mark, problem);
            }
            self.open_block(self.text.mark, None, kind);
        }
        Ok(())
    }

    fn value(&mut self) -> Scanned<()> {
        let level = self.candidates.len() - 1;
        if self.is_still_possible(level)?
            && let Some(key) = self.candidates[level].take()
        {
            self.tokens.insert(key.number - self.taken, Token { kind: Kind::Key, start: key.mark, end: key.mark });
            self.open_block(key.mark, Some(key.number), Kind::BlockMapping);
            self.key_allowed = false;
        } else {
            self.begin_in_block(Kind::BlockMapping, "mapping values are not allowed in this context")?;
            self.key_allowed = !self.in_flow();
        }
        self.indicator(Kind::Value)
    }

    fn end_of_content(&mut self) -> Scanned<()> {
        self.close_blocks(-1);
        self.no_key()?;
        self.key_allowed = false;
        Ok(())
    }

    fn document_mark(&mut self, kind: Kind) -> Scanned<()> {
        self.end_of_content()?;
        let start = self.text.mark;
        self.text.skip(3);
        self.push(kind, start);
        Ok(())
    }

    fn end(&mut self) -> Scanned<()> {
        if self.text.mark.column != 0 {
            self.text.mark.column = 0;
            self.text.mark.line += 1;
        }
        self.end_of_content()?;
        self.push(Kind::End, self.text.mark);
        self.ended = true;
        Ok(())
    }

    /// Skips blanks and comments. A tab is no blank where a key may stand in a block.
    fn skip_to_token(&mut self) {
        loop {
            let tabs = self.in_flow() || !self.key_allowed;
            self.text.skip_while(|character| character == ' ' || character == '\t' && tabs);
            if self.text.peek() == '#' {
                self.text.skip_while(|character| !is_break_or_end(character));
            }
            if self.text.take_break().is_none() {
                return;
            }
            self.key_allowed |= !self.in_flow();
        }
    }

    fn anchor(&mut self) -> Scanned<String> {
        let start = self.text.mark;
        self.text.take();
        let name = self.text.take_while(is_word);
        let ends = |character| is_blank_or_end(character) || "?:,]}%@`".contains(character);
        if name.is_empty() || !self.text.is(ends) {
            return self.fail(start, "did not find expected alphabetic or numeric character");
        }
        Ok(name)
    }
}
