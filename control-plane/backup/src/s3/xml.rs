//! The few elements of S3's answers, and the escaping of its documents.
//!
//! The answers are flat lists of elements without attributes that matter. An element is found by its tags; a document
//! of another form has none of the elements, which its caller reports.

/// Returns the text of the first element of this name.
pub fn element(document: &str, name: &str) -> Option<String> {
    elements(document, name).next().map(unescape)
}

/// Returns the content of every element of this name, in order.
pub fn elements<'a>(document: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let open = format!("<{name}>");
    let close = format!("</{name}>");
    let mut rest = document;
    std::iter::from_fn(move || {
        let start = rest.find(&open)? + open.len();
        let length = rest[start..].find(&close)?;
        let content = &rest[start..start + length];
        rest = &rest[start + length + close.len()..];
        Some(content)
    })
}

/// Escapes a text for a document.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn unescape(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&#39;", "'")];
    let text = pairs.iter().fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain));
    text.replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_in_order() {
        let document = "<?xml?><R xmlns=\"x\"><Contents><Key>a&amp;b</Key><Size>1</Size></Contents>\
                        <Contents><Key>c</Key></Contents></R>";
        let keys: Vec<Option<String>> = elements(document, "Contents").map(|part| element(part, "Key")).collect();
        assert_eq!(keys, [Some("a&b".to_owned()), Some("c".to_owned())]);
        assert_eq!(element(document, "UploadId"), None);
        assert_eq!(element("<Key>never closed", "Key"), None);
        assert_eq!(escape("\"a<b>&\""), "\"a&lt;b&gt;&amp;\"");
    }
}
