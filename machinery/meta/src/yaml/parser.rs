//! The step from tokens to a tree of nodes, with their anchors and tags.

use super::Failed;
use super::scanner::{Kind, Scanner, Token};
use super::text::Mark;
use std::collections::HashMap;
use std::rc::Rc;

/// The maximal nesting of nodes.
pub const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub struct Node {
    pub line: usize,
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    Scalar {
        text: String,
        /// The full tag; empty if there is none.
        tag: String,
        /// Whether the content determines the type, because there are neither quotes nor a tag.
        implicit: bool,
    },
    Sequence(Vec<Rc<Node>>),
    Mapping(Vec<(Rc<Node>, Rc<Node>)>),
    Alias(String, Anchored),
}

/// The target of an anchor: a node, or one that is still being read.
#[derive(Debug, Clone)]
pub enum Anchored {
    Node(Rc<Node>),
    Open,
}

pub struct Parser<'a> {
    scanner: Scanner<'a>,
    anchors: HashMap<String, Anchored>,
    tags: Vec<(String, String)>,
    depth: usize,
    is_first: bool,
}

type Parsed<T> = Result<T, Failed>;

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Parser<'a> {
        let anchors = HashMap::new();
        let tags = Vec::new();
        Parser { scanner: Scanner::new(text), anchors, tags, depth: 0, is_first: true }
    }

    /// Reads the next document, if there is one.
    pub fn document(&mut self) -> Parsed<Option<Rc<Node>>> {
        let is_first = std::mem::take(&mut self.is_first);
        while !is_first && self.peek()? == Kind::DocumentEnd {
            self.scanner.next()?;
        }
        let begins = |kind: &Kind| matches!(kind, Kind::Version(..) | Kind::TagDirective(..) | Kind::DocumentStart);
        self.anchors.clear();
        let node = match self.peek()? {
            Kind::End => return Ok(None),
            kind if is_first && !begins(&kind) => {
                self.directives()?;
                self.node(true, false)?
            }
            _ => {
                self.directives()?;
                let token = self.scanner.next()?;
                if token.kind != Kind::DocumentStart {
                    return fail(Mark::default(), "did not find expected <document start>", &token);
                }
                match self.scanner.peek()? {
                    next if begins(&next.kind) || matches!(next.kind, Kind::DocumentEnd | Kind::End) => {
                        empty(next.start)
                    }
                    _ => self.node(true, false)?,
                }
            }
        };
        if self.peek()? == Kind::DocumentEnd {
            self.scanner.next()?;
        }
        self.tags.clear();
        Ok(Some(node))
    }

    fn peek(&mut self) -> Parsed<Kind> {
        Ok(self.scanner.peek()?.kind.clone())
    }

    fn directives(&mut self) -> Parsed<()> {
        let mut has_version = false;
        while matches!(self.peek()?, Kind::Version(..) | Kind::TagDirective(..)) {
            let token = self.scanner.next()?;
            let has_tag = |handle: &String| self.tags.iter().any(|(known, _)| known == handle);
            let problem = match &token.kind {
                Kind::Version(..) if has_version => "found duplicate %YAML directive",
                Kind::Version(major, minor) if !is_one(major) || !is_one(minor) => "found incompatible YAML document",
                Kind::TagDirective(handle, _) if has_tag(handle) => "found duplicate %TAG directive",
                _ => "",
            };
            if !problem.is_empty() {
                return fail(Mark::default(), problem, &token);
            }
            match token.kind {
                Kind::TagDirective(handle, prefix) => self.tags.push((handle, prefix)),
                _ => has_version = true,
            }
        }
        for (handle, prefix) in [("!", "!"), ("!!", "tag:yaml.org,2002:")] {
            self.tags.push((handle.to_owned(), prefix.to_owned()));
        }
        Ok(())
    }

    /// Reads a node; in a block if `block`, and with a list that is no deeper than its key if `indentless`.
    fn node(&mut self, block: bool, indentless: bool) -> Parsed<Rc<Node>> {
        let first = self.scanner.peek()?.clone();
        if let Kind::Alias(name) = first.kind {
            self.scanner.next()?;
            let target = self.anchors.get(&name).cloned();
            let Some(target) = target else { return Err(Failed::of(format!("unknown anchor '{name}' referenced"))) };
            return Ok(Rc::new(Node { line: first.start.line, content: Content::Alias(name, target) }));
        }
        let mut anchor = None;
        let mut tag = String::new();
        let mut has_tag = false;
        for _ in 0..2 {
            match self.peek()? {
                Kind::Anchor(name) if anchor.is_none() => anchor = Some(name),
                Kind::Tag(handle, suffix) if !has_tag => {
                    has_tag = true;
                    tag = self.full_tag(&handle, &suffix, first.start)?;
                }
                _ => break,
            }
            self.scanner.next()?;
        }
        if let Some(name) = &anchor {
            self.anchors.insert(name.clone(), Anchored::Open);
        }
        let deeper = usize::from(!matches!(self.peek()?, Kind::Scalar(..)));
        self.depth += deeper;
        if self.depth > MAX_DEPTH {
            return Err(Failed::of(format!("exceeded max depth of {MAX_DEPTH}")));
        }
        let content = self.content(block, indentless, anchor.is_some(), tag, first.start)?;
        self.depth -= deeper;
        let node = Rc::new(Node { line: first.start.line, content });
        // A nested node may have redefined the anchor.
        if let Some(open @ Anchored::Open) = anchor.and_then(|name| self.anchors.get_mut(&name)) {
            *open = Anchored::Node(node.clone());
        }
        Ok(node)
    }

    fn full_tag(&mut self, handle: &str, suffix: &str, context: Mark) -> Parsed<String> {
        let known = self.tags.iter().find(|(known, _)| known == handle);
        match known {
            _ if handle.is_empty() => Ok(suffix.to_owned()),
            Some((_, prefix)) => Ok(format!("{prefix}{suffix}")),
            None => fail(context, "found undefined tag handle", self.scanner.peek()?),
        }
    }

    fn content(&mut self, block: bool, indentless: bool, anchored: bool, tag: String, start: Mark) -> Parsed<Content> {
        match self.peek()? {
            Kind::BlockEntry if indentless => self.indentless_sequence(),
            Kind::Scalar(text, plain) => {
                self.scanner.next()?;
                let implicit = tag.is_empty() && plain || tag == "!";
                Ok(Content::Scalar { text, tag, implicit })
            }
            Kind::FlowSequence => self.flow_sequence(),
            Kind::FlowMapping => self.flow_mapping(),
            Kind::BlockSequence if block => self.block_sequence(),
            Kind::BlockMapping if block => self.block_mapping(),
            _ if anchored || !tag.is_empty() => {
                Ok(Content::Scalar { text: String::new(), implicit: tag.is_empty(), tag })
            }
            _ => fail(start, "did not find expected node content", self.scanner.peek()?),
        }
    }

    /// Reads a node, or makes an empty one if one of `ends` comes first.
    fn node_unless(&mut self, ends: &[Kind], block: bool, indentless: bool, at: Mark) -> Parsed<Rc<Node>> {
        if ends.contains(&self.scanner.peek()?.kind) { Ok(empty(at)) } else { self.node(block, indentless) }
    }

    fn block_sequence(&mut self) -> Parsed<Content> {
        let start = self.scanner.next()?.start;
        let mut items = Vec::new();
        loop {
            let token = self.scanner.next()?;
            match token.kind {
                Kind::BlockEntry => {
                    items.push(self.node_unless(&[Kind::BlockEntry, Kind::BlockEnd], true, false, token.end)?);
                }
                Kind::BlockEnd => return Ok(Content::Sequence(items)),
                _ => return fail(start, "did not find expected '-' indicator", &token),
            }
        }
    }

    fn indentless_sequence(&mut self) -> Parsed<Content> {
        let mut items = Vec::new();
        while self.peek()? == Kind::BlockEntry {
            let token = self.scanner.next()?;
            let ends = [Kind::BlockEntry, Kind::Key, Kind::Value, Kind::BlockEnd];
            items.push(self.node_unless(&ends, true, false, token.end)?);
        }
        Ok(Content::Sequence(items))
    }

    fn block_mapping(&mut self) -> Parsed<Content> {
        const ENDS: [Kind; 3] = [Kind::Key, Kind::Value, Kind::BlockEnd];
        let start = self.scanner.next()?.start;
        let mut entries = Vec::new();
        loop {
            let token = self.scanner.next()?;
            match token.kind {
                Kind::Key => {}
                Kind::BlockEnd => return Ok(Content::Mapping(entries)),
                _ => return fail(start, "did not find expected key", &token),
            }
            let key = self.node_unless(&ENDS, true, true, token.end)?;
            let next = self.scanner.peek()?.clone();
            let value = if next.kind == Kind::Value {
                self.scanner.next()?;
                self.node_unless(&ENDS, true, true, next.end)?
            } else {
                empty(next.start)
            };
            entries.push((key, value));
        }
    }

    fn flow_sequence(&mut self) -> Parsed<Content> {
        let start = self.scanner.next()?.start;
        let mut items = Vec::new();
        loop {
            self.separator(&Kind::FlowSequenceEnd, items.is_empty(), start, "did not find expected ',' or ']'")?;
            let token = self.scanner.peek()?.clone();
            match token.kind {
                Kind::FlowSequenceEnd => {
                    self.scanner.next()?;
                    return Ok(Content::Sequence(items));
                }
                // A single entry of a map.
                Kind::Key => {
                    self.scanner.next()?;
                    let ends = [Kind::Value, Kind::FlowEntry, Kind::FlowSequenceEnd];
                    let entry = self.flow_entry(&ends)?;
                    let content = Content::Mapping(vec![entry]);
                    items.push(Rc::new(Node { line: token.start.line, content }));
                }
                _ => items.push(self.node(false, false)?),
            }
        }
    }

    fn flow_mapping(&mut self) -> Parsed<Content> {
        let start = self.scanner.next()?.start;
        let mut entries = Vec::new();
        loop {
            self.separator(&Kind::FlowMappingEnd, entries.is_empty(), start, "did not find expected ',' or '}'")?;
            match self.peek()? {
                Kind::FlowMappingEnd => {
                    self.scanner.next()?;
                    return Ok(Content::Mapping(entries));
                }
                Kind::Key => {
                    self.scanner.next()?;
                    entries.push(self.flow_entry(&[Kind::Value, Kind::FlowEntry, Kind::FlowMappingEnd])?);
                }
                _ => {
                    let key = self.node(false, false)?;
                    entries.push((key, empty(self.scanner.peek()?.start)));
                }
            }
        }
    }

    /// Reads a comma, unless this is the first entry or the end of the brackets.
    fn separator(&mut self, end: &Kind, is_first: bool, start: Mark, problem: &str) -> Parsed<()> {
        let token = self.scanner.peek()?;
        if is_first || token.kind == *end {
            return Ok(());
        }
        if token.kind != Kind::FlowEntry {
            return fail(start, problem, token);
        }
        self.scanner.next().map(drop)
    }

    /// Reads a key and its value, either of which may be missing.
    fn flow_entry(&mut self, ends: &[Kind]) -> Parsed<(Rc<Node>, Rc<Node>)> {
        let at = self.scanner.peek()?.start;
        let key = self.node_unless(ends, false, false, at)?;
        let next = self.scanner.peek()?.clone();
        if next.kind == Kind::Value {
            self.scanner.next()?;
            let at = self.scanner.peek()?.start;
            let value = self.node_unless(&ends[1..], false, false, at)?;
            return Ok((key, value));
        }
        Ok((key, empty(next.start)))
    }
}

fn is_one(number: &str) -> bool {
    number.trim_start_matches('0') == "1"
}

fn empty(at: Mark) -> Rc<Node> {
    let content = Content::Scalar { text: String::new(), tag: String::new(), implicit: true };
    Rc::new(Node { line: at.line, content })
}

fn fail<T>(context: Mark, problem: &str, token: &Token) -> Parsed<T> {
    Err(Failed::parsing(token.start, context, problem))
}
