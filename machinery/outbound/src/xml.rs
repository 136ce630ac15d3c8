//! A reader of the XML documents that AWS's APIs answer with: elements and their text, within limits.
//!
//! Attributes, comments and processing instructions are skipped; namespaces stay part of a name. A document type is
//! refused: no answer has one, and entities of its own could grow without bound.

/// The most elements inside each other.
const MOST_DEPTH: usize = 32;

/// An element: its text, or the elements in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    pub name: String,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// Returns the text of the first element at a path of names below this one; empty if there is none.
    pub fn get(&self, path: &str) -> &str {
        self.at(path).map_or("", |element| element.text.as_str())
    }

    /// Returns the first element at a path of names below this one.
    pub fn at(&self, path: &str) -> Option<&Element> {
        path.split('/').try_fold(self, |element, name| element.children.iter().find(|child| child.name == name))
    }

    /// Returns all elements with the last name of a path, in the first element at the rest of it.
    pub fn all<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Element> {
        let (parent, name) = match path.rsplit_once('/') {
            Some((parent, name)) => (self.at(parent), name),
            None => (Some(self), path),
        };
        parent.into_iter().flat_map(|parent| &parent.children).filter(move |child| child.name == name)
    }

    /// Returns the first element of a name at any depth.
    pub fn find(&self, name: &str) -> Option<&Element> {
        let is_found = |element: &&Element| element.name == name;
        self.children.iter().find(is_found).or_else(|| self.children.iter().find_map(|child| child.find(name)))
    }
}

/// Returns the text of the first element of a name in a document; none if the document is no XML.
pub fn first(document: &str, name: &str) -> Option<String> {
    parse(document).ok()?.find(name).map(|element| element.text.clone())
}

/// Escapes a text for a document.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Reads a document. The element that is returned has no name; the document's own is its child.
pub fn parse(document: &str) -> Result<Element, String> {
    let mut open = vec![Element::default()];
    let mut rest = document;
    while let Some(begin) = rest.find('<') {
        let (text, tag) = rest.split_at(begin);
        append(&mut open, &unescape(text)?);
        rest = match tag {
            _ if tag.starts_with("<?") => after(tag, "?>")?,
            _ if tag.starts_with("<!--") => after(tag, "-->")?,
            _ if tag.starts_with("<![CDATA[") => {
                let rest = after(tag, "]]>")?;
                append(&mut open, &tag["<![CDATA[".len()..tag.len() - rest.len() - "]]>".len()]);
                rest
            }
            _ if tag.starts_with("<!") => return Err("the document has a document type".to_owned()),
            _ => {
                let rest = after(tag, ">")?;
                enter(&mut open, &tag[1..tag.len() - rest.len() - 1])?;
                rest
            }
        };
    }
    if !rest.trim().is_empty() {
        return Err("the document has text after its end".to_owned());
    }
    match open.pop() {
        Some(root) if open.is_empty() && root.children.len() == 1 => Ok(root),
        _ => Err("the document is not closed, or empty".to_owned()),
    }
}

/// Opens or closes an element by the content of its tag.
fn enter(open: &mut Vec<Element>, tag: &str) -> Result<(), String> {
    if let Some(name) = tag.strip_prefix('/') {
        let is_open = open.len() > 1 && open.last().is_some_and(|element| element.name == name.trim());
        return match is_open {
            true => {
                close(open);
                Ok(())
            }
            false => Err(format!("</{}> closes nothing", name.trim())),
        };
    }
    let is_empty = tag.ends_with('/');
    let name = tag.trim_end_matches('/').split_ascii_whitespace().next().unwrap_or_default();
    let is_name = |one: char| one.is_alphanumeric() || ['-', '_', '.', ':'].contains(&one);
    if name.is_empty() || !name.chars().all(is_name) {
        return Err("an element has no name".to_owned());
    }
    if open.len() > MOST_DEPTH {
        return Err(format!("more than {MOST_DEPTH} elements are inside each other"));
    }
    open.push(Element { name: name.to_owned(), ..Element::default() });
    if is_empty {
        close(open);
    }
    Ok(())
}

/// Puts the innermost open element into the one around it. Text between elements is no content.
fn close(open: &mut Vec<Element>) {
    let Some(mut element) = open.pop() else { return };
    if !element.children.is_empty() {
        element.text.clear();
    }
    if let Some(parent) = open.last_mut() {
        parent.children.push(element);
    }
}

fn append(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

fn after<'a>(text: &'a str, end: &str) -> Result<&'a str, String> {
    let (_, rest) = text.split_once(end).ok_or_else(|| format!("the document ends before {end}"))?;
    Ok(rest)
}

/// Replaces the entities of XML and references to characters.
fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, entity)) = rest.split_once('&') {
        plain.push_str(before);
        let (name, after) = entity.split_once(';').ok_or("an entity does not end")?;
        let number = match name.strip_prefix("#x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => name.strip_prefix('#').and_then(|decimal| decimal.parse().ok()),
        };
        let character = match name {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => number.and_then(char::from_u32),
        };
        plain.push(character.ok_or_else(|| format!("&{}; is no entity", name.chars().take(16).collect::<String>()))?);
        rest = after;
    }
    plain.push_str(rest);
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_their_paths() {
        let document = "<?xml version=\"1.0\"?><!-- c --><R xmlns=\"x\"><set><item><id>a&amp;b</id><set><item><id>no</id>\
                        </item></set></item><item a='1'><id>&#99;</id><none/></item></set><t><![CDATA[<&>]]></t></R>\n";
        let root = parse(document).unwrap();
        let ids: Vec<&str> = root.all("R/set/item").map(|item| item.get("id")).collect();
        assert_eq!(ids, ["a&b", "c"]);
        assert_eq!(root.get("R/t"), "<&>");
        assert_eq!(root.find("none").map(|none| none.text.as_str()), Some(""));
        assert_eq!(root.get("R/other/item"), "");
        assert_eq!(first(document, "id"), Some("a&b".to_owned()));
        assert_eq!(escape("\"a<b>&\""), "\"a&lt;b&gt;&amp;\"");
    }

    #[test]
    fn bad_documents_are_refused() {
        let deep = "<a>".repeat(100);
        let bad = [
            "",
            "x",
            "<a>",
            "<a></b>",
            "</a>",
            "<a>&x;</a>",
            "<a>&",
            "<!DOCTYPE a><a/>",
            "<a/>x",
            "<",
            "< >",
            "<a/ b>",
            &deep,
        ];
        for document in bad {
            assert!(parse(document).is_err(), "{document}");
        }
    }
}
