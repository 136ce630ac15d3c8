//! A URL as Go's `net/url` parses it, with its error messages, for the addresses of webhooks. This module only splits
//! the URL; the rules check its parts.

use corten_meta::quote::quote;

/// The parts of a URL that rules check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    pub scheme: String,
    pub user: Option<&'a str>,
    pub host: &'a str,
    pub query: &'a str,
    pub fragment: &'a str,
}

/// Splits a URL, or returns the error.
pub(crate) fn parse(text: &str) -> Result<Url<'_>, String> {
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let error = |shown: &str, why: String| format!("parse {}: {why}", quote(shown));
    let mut url = parts(rest).map_err(|why| error(rest, why))?;
    check_escapes(fragment).map_err(|why| error(text, why))?;
    url.fragment = fragment;
    Ok(url)
}

/// Splits a request target, which has no fragment.
pub(crate) fn parse_request(text: &str) -> Result<Url<'_>, String> {
    parts(text)
}

fn parts(text: &str) -> Result<Url<'_>, String> {
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (scheme, rest) = scheme(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_lowercase(), query, ..Url::default() };
    if !rest.starts_with('/') {
        let first = rest.split('/').next().unwrap_or_default();
        if scheme.is_empty() && first.contains(':') {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
        if !scheme.is_empty() {
            return Ok(url);
        }
    }
    let mut path = rest;
    if (!scheme.is_empty() || !rest.starts_with("///")) && rest.starts_with("//") {
        let authority = rest[2..].split('/').next().unwrap_or_default();
        path = &rest[2 + authority.len()..];
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        check_host(host)?;
        if let Some(user) = user {
            check_user(user)?;
        }
        (url.user, url.host) = (user, host);
    }
    check_escapes(path)?;
    Ok(url)
}

/// Returns the word before the first colon, if it can be a scheme.
fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match (host.rfind('['), host.rfind(']')) {
        (Some(_), None) => return Err("missing ']' in host".to_owned()),
        (Some(_), Some(close)) => &host[close + 1..],
        _ => host.rfind(':').map_or("", |colon| &host[colon..]),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()));
    if !is_port {
        return Err(format!("invalid port {} after host", corten_meta::Value::from(port)));
    }
    check_escapes(host)?;
    const SAFE: &str = "-_.~!$&'()*+,;=:[]<>\"%";
    let is_good = |c: &char| !c.is_ascii() || c.is_ascii_alphanumeric() || SAFE.contains(*c);
    match host.chars().find(|c| !is_good(c)) {
        Some(c) => Err(format!("invalid character {} in host name", corten_meta::Value::from(c.to_string()))),
        None => Ok(()),
    }
}

fn check_user(user: &str) -> Result<(), String> {
    const SAFE: &str = "-._:~!$&'()*+,;=%@";
    if !user.chars().all(|c| c.is_ascii_alphanumeric() || SAFE.contains(c)) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    check_escapes(user)
}

/// Checks that every percent sign is followed by two hexadecimal digits.
fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let digits = text.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            let shown: String = text[at..].chars().take(3).collect();
            return Err(format!("invalid URL escape {}", quote(&shown)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_upstream_reads_them() {
        let why = |text: &str| parse(text).unwrap_err();
        for (text, wanted) in [
            ("1:2", "parse \"1:2\": first path segment in URL cannot contain colon"),
            (":x", "parse \":x\": missing protocol scheme"),
            ("https://a:b/", "parse \"https://a:b/\": invalid port \":b\" after host"),
            ("https://[::1/", "parse \"https://[::1/\": missing ']' in host"),
            ("https://a b/", "parse \"https://a b/\": invalid character \" \" in host name"),
            ("https://a/%zz", "parse \"https://a/%zz\": invalid URL escape \"%zz\""),
            ("https://u d@a/", "parse \"https://u d@a/\": net/url: invalid userinfo"),
            ("\u{1}<", "parse \"\\x01<\": net/url: invalid control character in URL"),
            ("a\nb", "parse \"a\\nb\": net/url: invalid control character in URL"),
        ] {
            assert_eq!(why(text), wanted);
        }
        let url = parse("HTTPS://u:p@h.io:1/x?q=1#f").expect("a URL");
        assert_eq!(
            url,
            Url { scheme: "https".to_owned(), user: Some("u:p"), host: "h.io:1", query: "q=1", fragment: "f" }
        );
        assert_eq!(parse("fd00::/64").expect("a URL").scheme, "fd00");
        assert_eq!(parse("ä").expect("a URL"), Url::default());
    }
}
