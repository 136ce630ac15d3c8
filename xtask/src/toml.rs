//! A parser of the part of TOML that the tables in `conformance/` use: sections `[[name]]` whose fields are strings and
//! lists of strings, and comments.
//!
//! A parser of all of TOML would be a dependency with dependencies. Unknown syntax is an error with its line, never
//! skipped.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// A section `[[kind]]` with its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    pub kind: String,
    pub line: usize,
    fields: BTreeMap<String, Vec<String>>,
}

impl Section {
    /// Returns a required field.
    pub fn text(&self, name: &str) -> Result<&str> {
        let [text] = self.list(name) else {
            bail!("the [[{}]] at line {} needs one {name}", self.kind, self.line);
        };
        Ok(text)
    }

    /// Returns an optional field.
    pub fn list(&self, name: &str) -> &[String] {
        self.fields.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Refuses unknown fields: most are misspelled.
    pub fn expect(&self, names: &[&str]) -> Result<()> {
        let stray = self.fields.keys().find(|name| !names.contains(&name.as_str()));
        ensure!(stray.is_none(), "the [[{}]] at line {} has an unknown field {stray:?}", self.kind, self.line);
        Ok(())
    }
}

/// Reads all sections, in their order.
pub fn parse(text: &str) -> Result<Vec<Section>> {
    let mut reader = Reader { rest: text, line: 1 };
    let mut sections: Vec<Section> = Vec::new();
    loop {
        reader.skip_blank();
        if reader.rest.is_empty() {
            return Ok(sections);
        }
        let line = reader.line;
        let read = reader.section_or_field();
        match read.with_context(|| format!("line {line}"))? {
            Read::Section(kind) => sections.push(Section { kind, line, fields: BTreeMap::new() }),
            Read::Field(name, values) => {
                let section = sections.last_mut().with_context(|| format!("line {line}: a field before a section"))?;
                let before = section.fields.insert(name.clone(), values);
                ensure!(before.is_none(), "line {line}: {name} is there twice");
            }
        }
    }
}

enum Read {
    Section(String),
    Field(String, Vec<String>),
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn section_or_field(&mut self) -> Result<Read> {
        if self.take("[[") {
            let name = self.until("]]")?;
            return Ok(Read::Section(name));
        }
        let name = self.until("=")?.trim().to_owned();
        ensure!(!name.contains('\n') && !name.is_empty(), "neither a section nor a field");
        self.skip_blank();
        if !self.take("[") {
            return Ok(Read::Field(name, vec![self.string()?]));
        }
        let mut values = Vec::new();
        loop {
            self.skip_blank();
            if self.take("]") {
                return Ok(Read::Field(name, values));
            }
            values.push(self.string()?);
            self.skip_blank();
            if !self.take(",") {
                ensure!(self.rest.starts_with(']'), "a list needs a comma here");
            }
        }
    }

    /// Reads a string: literal ('…'), of many lines ('''…''') or with escapes ("…").
    fn string(&mut self) -> Result<String> {
        if self.take("'''") {
            let text = self.until("'''")?;
            return Ok(text.strip_prefix('\n').unwrap_or(&text).to_owned());
        }
        if self.take("'") {
            let text = self.until("'")?;
            ensure!(!text.contains('\n'), "a string without an end");
            return Ok(text);
        }
        ensure!(self.take("\""), "a string is wanted here");
        let text = self.until("\"")?;
        ensure!(!text.contains(['\n', '\\']), "escapes are not read: write the string in single quotes");
        Ok(text)
    }

    fn take(&mut self, prefix: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(prefix) else { return false };
        self.rest = rest;
        true
    }

    fn until(&mut self, end: &str) -> Result<String> {
        let (text, rest) = self.rest.split_once(end).with_context(|| format!("no {end} follows"))?;
        self.line += text.matches('\n').count();
        self.rest = rest;
        Ok(text.to_owned())
    }

    /// Skips blanks, line ends and comments.
    fn skip_blank(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            self.line += self.rest[..self.rest.len() - trimmed.len()].matches('\n').count();
            self.rest = trimmed;
            if !trimmed.starts_with('#') {
                return;
            }
            self.rest = trimmed.find('\n').map_or("", |end| &trimmed[end..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_fields_are_read() {
        let text = "# all\n[[a]]\nid = \"x\" # why\nmatch = [\n  '\\[b\\]', # first\n  'c',\n]\n\n[[b]]\ntext = '''\none\ntwo\n'''\n";
        let sections = parse(text).unwrap();
        assert_eq!((sections[0].kind.as_str(), sections[0].line), ("a", 2));
        assert_eq!(sections[0].text("id").unwrap(), "x");
        assert_eq!(sections[0].list("match"), ["\\[b\\]", "c"]);
        assert_eq!(sections[1].text("text").unwrap(), "one\ntwo\n");
        assert_eq!(sections[1].list("absent"), [""; 0]);
        assert!(sections[1].text("absent").is_err());
        assert!(sections[0].expect(&["id"]).is_err());
    }

    #[test]
    fn unknown_syntax_is_refused() {
        for text in ["a = 'b'", "[[a]]\nb = 1", "[[a]]\nb = ['c' 'd']", "[[a]]\nb = 'c", "[[a]]\nb = 'c'\nb = 'd'", "x"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
