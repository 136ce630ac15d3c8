//! The formats that a schema can demand of a text. Pure; formats that are not known demand nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use corten_meta::names;

/// Whether a text has a format. Dashes in the name of a format mean nothing.
pub fn has(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => corten_meta::time::parse(text).is_ok(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => text.len() <= 255 && names::dns1123_subdomain(&text.to_lowercase()).is_empty(),
        "k8sshortname" => names::dns1123_label(text).is_empty(),
        "k8slongname" => names::dns1123_subdomain(text).is_empty(),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "bsonobjectid" => text.len() == 24 && is_hex(text),
        "byte" => !text.is_empty() && base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => is_social_security_number(text),
        "hexcolor" => is_hex_color(text),
        "rgbcolor" => is_rgb_color(text),
        _ => true,
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        let max = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        length.parse::<u8>().is_ok_and(|length| length <= max)
    })
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(|part| part.len() == 2 && is_hex(part))
}

/// A duration as Go writes it, or numbers with units in words: `2 hours 5 min`.
fn is_duration(text: &str) -> bool {
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    if corten_meta::go::duration_error(text).is_none() {
        return true;
    }
    let is_unit = |word: &str| {
        let names = |unit: &&[&str]| unit.contains(&word) || unit.last().is_some_and(|last| word.starts_with(last));
        UNITS.iter().any(names)
    };
    // Every word behind a number counts, and one that is a unit is enough.
    let lower = text.to_lowercase();
    lower.split(|c: char| c.is_ascii_digit()).skip(1).any(|behind| {
        let word: String = behind.trim_start().chars().take_while(|c| c.is_ascii_lowercase() || *c == 'µ').collect();
        is_unit(&word)
    })
}

/// A path, or a URL with a scheme, where anything may stand behind it that does not begin with a slash.
fn is_request_uri(text: &str) -> bool {
    let rest = match text.split_once(':') {
        _ if text.starts_with('/') => text,
        Some((scheme, rest))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
        {
            rest
        }
        _ => return text == "*",
    };
    let is_plain = !text.chars().any(|c| c.is_ascii_control());
    if !rest.starts_with('/') {
        return is_plain;
    }
    let escapes = rest.split('?').next().unwrap_or_default().split('%').skip(1);
    let is_escape = |after: &str| after.get(..2).is_some_and(is_hex);
    let host = rest.strip_prefix("//").and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
    is_plain
        && escapes.into_iter().all(is_escape)
        && !host.contains([' ', '<', '>', '"', '^', '`', '{', '}', '|', '\\'])
}

/// `local@domain`, also behind a name: `Name <local@domain>`.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match text.strip_suffix('>') {
        Some(named) => match named.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text,
    };
    let is_atom = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let is_dotted = |text: &str| text.split('.').all(is_atom);
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
        (quoted || is_dotted(local)) && is_dotted(domain)
    })
}

/// With or without dashes. Of a version, the third group begins with its number, and the fourth with one of four.
fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut rest = text.to_ascii_lowercase();
    let mut groups = Vec::new();
    for (at, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if at > 0 && rest.starts_with('-') {
            rest.remove(0);
        }
        if rest.len() < length || !rest.is_char_boundary(length) {
            return false;
        }
        let after = rest.split_off(length);
        groups.push(std::mem::replace(&mut rest, after));
    }
    rest.is_empty()
        && groups.iter().all(|group| is_hex(group))
        && version.is_none_or(|version| groups[2].starts_with(version))
        && (!matches!(version, Some('4' | '5')) || groups[3].starts_with(['8', '9', 'a', 'b']))
}

fn is_isbn10(text: &str) -> bool {
    let plain: Vec<char> = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    let values: Vec<u32> = plain
        .iter()
        .enumerate()
        .filter_map(|(at, c)| if at == 9 && *c == 'X' { Some(10) } else { c.to_digit(10) })
        .collect();
    let sum: u32 = values.iter().zip(1..).map(|(value, weight): (&u32, u32)| value * weight).sum();
    plain.len() == 10 && values.len() == 10 && sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let plain = text.chars().filter(|c| !matches!(c, '-' | ' ')).count();
    let values = digits(text);
    let sum: u32 = values.iter().enumerate().map(|(at, value)| value * if at % 2 == 0 { 1 } else { 3 }).sum();
    plain == 13 && values.len() == 13 && sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let values = digits(text);
    let number: String = text.chars().filter(char::is_ascii_digit).collect();
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| number.starts_with(prefix));
    let is_known = match number.len() {
        13 => begins(&["4"]),
        14 => begins(&["300", "301", "302", "303", "304", "305", "36", "38"]),
        15 => begins(&["34", "37", "2131", "1800"]),
        16 => begins(&["4", "51", "52", "53", "54", "55", "6011", "65", "35"]),
        _ => false,
    };
    let doubled = |value: &u32| if *value > 4 { value * 2 - 9 } else { value * 2 };
    let weighed = |(at, value): (usize, &u32)| if at % 2 == 1 { doubled(value) } else { *value };
    is_known && values.iter().rev().enumerate().map(weighed).sum::<u32>() % 10 == 0
}

fn is_social_security_number(text: &str) -> bool {
    let plain: String = match text.split(['-', ' ']).collect::<Vec<_>>().as_slice() {
        [all] => (*all).to_owned(),
        [area, group, serial] if (area.len(), group.len(), serial.len()) == (3, 2, 4) => {
            format!("{area}{group}{serial}")
        }
        [first, last] if matches!((first.len(), last.len()), (3, 6) | (5, 4)) => format!("{first}{last}"),
        _ => return false,
    };
    plain.len() == 9 && plain.bytes().all(|b| b.is_ascii_digit())
}

fn is_hex_color(text: &str) -> bool {
    let plain = text.strip_prefix('#').unwrap_or(text);
    matches!(plain.len(), 3 | 6) && is_hex(plain)
}

fn is_rgb_color(text: &str) -> bool {
    let inner = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')'));
    inner.is_some_and(|inner| {
        let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
        let is_part = |part: &&str| part.parse::<u8>().is_ok_and(|value| value.to_string() == **part);
        parts.len() == 3 && parts.iter().all(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_formats() {
        for (format, good, bad) in [
            ("date-time", "2024-01-02T03:04:05Z", "2024-01-02"),
            ("date", "2024-02-29", "2023-02-29"),
            ("duration", "1h30m", "soon"),
            ("duration", "2 hours", "2 suns"),
            ("ipv4", "1.2.3.4", "1.2.3"),
            ("ipv6", "::1", "1.2.3.4"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "00:00:5e:00:53:01", "00:00:5e:00:53"),
            ("uri", "https://a.b/c?d=e", "a.b/c"),
            ("uri", "/path", "9a:b"),
            ("uri", "mailto:a@b", ":a"),
            ("uri", "fd00::1", ""),
            ("uri", "http://a/%20", "http://a/%2"),
            ("email", "a@b.c", "a.b.c"),
            ("email", "A B <a@b.c>", "a b@c"),
            ("hostname", "a-b.c", "a_b"),
            ("k8s-short-name", "a-b", "a.b"),
            ("k8s-long-name", "a.b", "A"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-42661417400"),
            ("uuid", "123E4567E89B12D3A456426614174000", "{123e4567-e89b-12d3-a456-426614174000}"),
            ("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
            ("uuid5", "123e4567-e89b-52d3-a456-426614174000", "123e4567-e89b-52d3-c456-426614174000"),
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901"),
            ("byte", "YQ==", "!!"),
            ("isbn10", "0321751043", "0321751044"),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111 1111 1111 1111", "4111 1111 1111 1112"),
            ("ssn", "123-45-6789", "123-456-789"),
            ("hexcolor", "#FFFFFF", "#FFFF"),
            ("rgbcolor", "rgb(255, 0,25)", "rgb(256,0,0)"),
        ] {
            assert!(has(format, good), "{format}: {good}");
            assert!(!has(format, bad), "{format}: {bad}");
        }
        assert!(has("anything", "at all"));
    }

    proptest::proptest! {
        /// Whatever a text holds, a format says yes or no.
        #[test]
        fn any_text_is_judged(text in "\\PC{0,40}", at in 0usize..8) {
            let formats = ["uri", "email", "uuid4", "duration", "isbn", "ssn", "rgbcolor", "mac"];
            has(formats[at], &text);
        }
    }
}
