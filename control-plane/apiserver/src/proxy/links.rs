//! The links of a proxied page: links to the backend are rewritten to lead through the API server.
//!
//! Only attributes that a browser follows are rewritten; every other byte stays unchanged.

/// The backend of a page, and the API server that its readers use.
pub struct LinkRewriter<'a> {
    /// The path of the API for the backend's root, without a trailing slash.
    pub prefix: &'a str,
    /// The backend's host and port, as the page may name it.
    pub backend: &'a str,
    /// This server's host, as the reader named it.
    pub server: &'a str,
}

impl LinkRewriter<'_> {
    /// Rewrites a link for the reader. Relative links and links to other hosts stay unchanged.
    pub fn link(&self, link: &str) -> String {
        let (scheme, rest) = match link.split_once("://") {
            Some((scheme, rest)) if scheme.chars().all(|c| c.is_ascii_alphanumeric()) => (Some(scheme), rest),
            _ => (None, link.strip_prefix("//").unwrap_or(link)),
        };
        let has_host = scheme.is_some() || link.starts_with("//");
        let (host, path) = if has_host { rest.split_at(rest.find('/').unwrap_or(rest.len())) } else { ("", rest) };
        if !path.starts_with('/') || (has_host && host != self.backend && host != self.server) {
            return link.to_owned();
        }
        let kept = if has_host && host == self.server { &link[..link.len() - path.len()] } else { "" };
        let is_inside = path.strip_prefix(self.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let prefix = if is_inside { "" } else { self.prefix };
        format!("{kept}{prefix}{path}")
    }

    /// Rewrites the links of a page.
    pub fn page(&self, page: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.len() + page.len() / 8);
        let mut rest = page;
        while let Some(at) = rest.iter().position(|b| *b == b'<') {
            out.extend_from_slice(&rest[..at]);
            rest = &rest[at..];
            let passed = self.markup(rest, &mut out);
            rest = &rest[passed..];
        }
        out.extend_from_slice(rest);
        out
    }

    /// Writes the markup that begins with this `<`; returns the number of bytes read.
    fn markup(&self, html: &[u8], out: &mut Vec<u8>) -> usize {
        if html.starts_with(b"<!--") {
            return copy_until(html, b"-->", out);
        }
        let name_ends = 1 + html[1..].iter().position(|b| !b.is_ascii_alphanumeric()).unwrap_or(html.len() - 1);
        let name = html[1..name_ends].to_ascii_lowercase();
        out.extend_from_slice(&html[..name_ends]);
        if name.is_empty() {
            return name_ends;
        }
        let mut passed = name_ends;
        while passed < html.len() && html[passed] != b'>' {
            passed += self.attribute(&name, &html[passed..], out);
        }
        match name.as_slice() {
            b"script" => passed + copy_until(&html[passed..], b"</script", out),
            b"style" => passed + copy_until(&html[passed..], b"</style", out),
            _ => passed,
        }
    }

    /// Writes an attribute or the bytes between two; returns the number of bytes read, at least one.
    fn attribute(&self, tag: &[u8], html: &[u8], out: &mut Vec<u8>) -> usize {
        let name_ends =
            html.iter().position(|b| b.is_ascii_whitespace() || b"=/>\"'".contains(b)).unwrap_or(html.len());
        if name_ends == 0 {
            out.push(html[0]);
            return 1;
        }
        let name = html[..name_ends].to_ascii_lowercase();
        let spaces = |from: usize| html[from..].iter().take_while(|b| b.is_ascii_whitespace()).count();
        let equals = name_ends + spaces(name_ends);
        if html.get(equals) != Some(&b'=') {
            out.extend_from_slice(&html[..name_ends]);
            return name_ends;
        }
        let start = equals + 1 + spaces(equals + 1);
        let (start, ends) = match html.get(start) {
            Some(quote @ (b'"' | b'\'')) => (start + 1, html[start + 1..].iter().position(|b| b == quote)),
            _ => (start, html[start..].iter().position(|b| b.is_ascii_whitespace() || *b == b'>')),
        };
        let end = ends.map_or(html.len(), |at| start + at);
        out.extend_from_slice(&html[..start]);
        match std::str::from_utf8(&html[start..end]) {
            Ok(link) if holds_a_link(tag, &name) => out.extend_from_slice(self.link(link).as_bytes()),
            _ => out.extend_from_slice(&html[start..end]),
        }
        // The closing quote is written here too: it must not be parsed as the start of another value.
        let quoted = end < html.len() && start > 0 && html[start - 1] == html[end] && b"\"'".contains(&html[end]);
        if quoted {
            out.push(html[end]);
        }
        end + usize::from(quoted)
    }
}

/// Reports whether a browser follows the value of an attribute.
fn holds_a_link(tag: &[u8], attribute: &[u8]) -> bool {
    match attribute {
        b"href" => matches!(tag, b"a" | b"area" | b"base" | b"link"),
        b"src" => matches!(
            tag,
            b"audio" | b"embed" | b"frame" | b"iframe" | b"img" | b"input" | b"script" | b"source" | b"video"
        ),
        b"cite" => matches!(tag, b"blockquote" | b"del" | b"ins" | b"q"),
        b"longdesc" => matches!(tag, b"frame" | b"iframe" | b"img"),
        b"usemap" => matches!(tag, b"img" | b"input" | b"object"),
        b"formaction" => matches!(tag, b"button" | b"input"),
        b"codebase" => matches!(tag, b"applet" | b"object"),
        b"classid" | b"data" => tag == b"object",
        b"action" => tag == b"form",
        b"background" => tag == b"body",
        b"icon" => tag == b"command",
        b"manifest" => tag == b"html",
        b"poster" => tag == b"video",
        b"profile" => tag == b"head",
        _ => false,
    }
}

/// Copies up to the start of `end` (in any case), or all; returns the number of bytes, at least one.
fn copy_until(html: &[u8], end: &[u8], out: &mut Vec<u8>) -> usize {
    let found = html.windows(end.len()).skip(1).position(|window| window.eq_ignore_ascii_case(end));
    let length = found.map_or(html.len(), |at| at + 1);
    out.extend_from_slice(&html[..length]);
    length
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::LinkRewriter;

    const REWRITER: LinkRewriter<'_> =
        LinkRewriter { prefix: "/api/v1/namespaces/n/pods/p/proxy", backend: "10.0.0.7:80", server: "cluster:6443" };

    #[test]
    fn a_link_to_the_backend_leads_through_the_server() {
        for (link, expected) in [
            ("/", "/api/v1/namespaces/n/pods/p/proxy/"),
            ("/a/b?c=/d#e", "/api/v1/namespaces/n/pods/p/proxy/a/b?c=/d#e"),
            ("http://10.0.0.7:80/a", "/api/v1/namespaces/n/pods/p/proxy/a"),
            ("//10.0.0.7:80/a", "/api/v1/namespaces/n/pods/p/proxy/a"),
            ("https://cluster:6443/a", "https://cluster:6443/api/v1/namespaces/n/pods/p/proxy/a"),
            ("/api/v1/namespaces/n/pods/p/proxy/a", "/api/v1/namespaces/n/pods/p/proxy/a"),
            (
                "/api/v1/namespaces/n/pods/p/proxyist",
                "/api/v1/namespaces/n/pods/p/proxy/api/v1/namespaces/n/pods/p/proxyist",
            ),
            ("a/b", "a/b"),
            ("#top", "#top"),
            ("mailto:x@y", "mailto:x@y"),
            ("http://elsewhere/a", "http://elsewhere/a"),
            ("//elsewhere/a", "//elsewhere/a"),
        ] {
            assert_eq!(REWRITER.link(link), expected, "{link}");
        }
    }

    #[test]
    fn only_links_of_a_page_change() {
        for (page, expected) in [
            (r#"<a href="/x">/y</a>"#, r#"<a href="/api/v1/namespaces/n/pods/p/proxy/x">/y</a>"#),
            ("<IMG alt='/x' SRC = '/y'>", "<IMG alt='/x' SRC = '/api/v1/namespaces/n/pods/p/proxy/y'>"),
            ("<form action=/x method=post>", "<form action=/api/v1/namespaces/n/pods/p/proxy/x method=post>"),
            (r#"<p href="/x">"#, r#"<p href="/x">"#),
            (r#"<!-- <a href="/x"> --><b>"#, r#"<!-- <a href="/x"> --><b>"#),
            (
                r#"<script src="/s">'<a href="/x">'</script><a href="/z">"#,
                r#"<script src="/api/v1/namespaces/n/pods/p/proxy/s">'<a href="/x">'</script><a href="/api/v1/namespaces/n/pods/p/proxy/z">"#,
            ),
            ("1 < 2 <a href", "1 < 2 <a href"),
            (r#"<a href="/x"#, r#"<a href="/api/v1/namespaces/n/pods/p/proxy/x"#),
        ] {
            assert_eq!(String::from_utf8(REWRITER.page(page.as_bytes())).unwrap(), expected);
        }
    }

    proptest! {
        /// For every page, only links change, and the parser terminates.
        #[test]
        fn a_page_without_links_is_unchanged(page in "[<>a-z \"'=!-]{0,200}") {
            prop_assert_eq!(REWRITER.page(page.as_bytes()), page.as_bytes());
        }

        #[test]
        fn any_bytes_are_parsed(page in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(REWRITER.page(&page).len() >= page.len());
        }
    }
}
