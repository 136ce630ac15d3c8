//! The formats that a schema can demand of a text. Pure; formats that are not known demand nothing.

use std::net::IpAddr;

use base64::Engine;
use corten_cel::library::regex::compile;
use corten_meta::names::{self, address::parse_sloppy};

/// Whether a text has a format. Dashes in the name of a format mean nothing.
pub fn has(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => is_date_time(text),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "ipv4" => text.contains('.') && parse_sloppy(text).is_some(),
        "ipv6" => text.contains(':') && parse_sloppy(text).is_some(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "k8sshortname" => names::dns1123_label(text).is_empty(),
        "k8slongname" => names::dns1123_subdomain(text).is_empty(),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "bsonobjectid" => text.len() == 24 && is_hex(text),
        "byte" => is_base64(text),
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

/// A name of one label, or of several with a top-level domain behind them. Symbols are as good as letters.
fn is_hostname(text: &str) -> bool {
    let is_of = |class: &str, text: &str| compile(class).is_ok_and(|class| class.is_match(text));
    let is_word = |text: &str| is_of(r"^[a-zA-Z0-9\p{S}\p{L}]+$", text);
    let is_label = |text: &str| is_word(&text.replace('-', "")) && !text.starts_with('-') && !text.ends_with('-');
    let is_short = text.len() <= 255 && text.split('.').all(|label| label.len() <= 63);
    let fits = match text.rsplit_once('.') {
        Some((labels, top)) => {
            is_of(r"^[a-zA-Z\p{L}]+$", top) && top.chars().nth(1).is_some() && labels.split('.').all(is_label)
        }
        // The only label may have one dash, behind its first letter, and end with it.
        None => {
            let second = text.chars().next().map_or(0, char::len_utf8);
            let (first, rest) = text.split_at(second);
            let rest = rest.strip_prefix('-').unwrap_or(rest);
            is_word(first) && (rest.is_empty() || is_word(rest))
        }
    };
    fits && is_short
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

/// Six, eight or twenty bytes, in groups of one or two with one mark between them, or all in one.
fn is_mac(text: &str) -> bool {
    let (mark, length) = match (text.as_bytes().get(2), text.as_bytes().get(4)) {
        (Some(mark @ (b':' | b'-')), _) => (char::from(*mark), 2),
        (_, Some(b'.')) => ('.', 4),
        _ => return matches!(text.len(), 12 | 16 | 40) && is_hex(text),
    };
    let groups: Vec<&str> = text.split(mark).collect();
    matches!(groups.len() * length / 2, 6 | 8 | 20) && groups.iter().all(|group| group.len() == length && is_hex(group))
}

/// Bits that are left over behind the last byte may be set.
fn is_base64(text: &str) -> bool {
    use base64::alphabet::STANDARD;
    use base64::engine::general_purpose::{GeneralPurpose, PAD};
    const LENIENT: GeneralPurpose = GeneralPurpose::new(&STANDARD, PAD.with_decode_allow_trailing_bits(true));
    !text.is_empty() && LENIENT.decode(text).is_ok()
}

/// A day and a time with a zone. Upstream judges by the look: letters may be small, the zone may be any, whatever one
/// letter may stand before the fraction, and what follows another `t` is not looked at.
fn is_date_time(text: &str) -> bool {
    const TIME: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$";
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    let [day, time] = [(); 2].map(|()| parts.next().unwrap_or_default());
    has("date", day) && compile(TIME).is_ok_and(|look| look.is_match(time))
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
        && has_sound_port(host)
}

/// Brackets end, and a port is a number.
fn has_sound_port(host: &str) -> bool {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((_, "")) => return true,
            Some((_, behind)) => behind.strip_prefix(':'),
            None => None,
        },
        None => Some(host.rsplit_once(':').map_or("", |(_, port)| port)),
    };
    port.is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// `local@domain`, also behind a name: `Name <local@domain>`. A remark may stand behind it.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let remark = text.strip_suffix(')').and_then(|text| text.split_once('('));
    let text = remark.map_or(text, |(text, _)| text.trim_end());
    let address = match text.strip_suffix('>') {
        Some(named) => match named.rsplit_once('<') {
            Some((name, address)) if name.contains('"') || !name.contains([',', ';', ':', '@', '[', ']']) => address,
            _ => return false,
        },
        None => text,
    };
    let is_literal = |domain: &str| {
        let address = domain.strip_prefix('[').and_then(|domain| domain.strip_suffix(']'));
        address.is_some_and(|address| address.parse::<IpAddr>().is_ok())
    };
    let is_atom = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let is_dotted = |text: &str| text.split('.').all(is_atom);
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
        (quoted || is_dotted(local)) && (is_dotted(domain) || is_literal(domain))
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
    let parts: Vec<&str> = text.split(['-', ' ']).collect();
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([3, 2, 4]) && parts.iter().all(is_number)
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
            ("email", "a@[1.2.3.4]", "A, B <a@b.c>"),
            ("email", "a@b.c (x)", "a@"),
            ("hostname", "a-b.cc", "a_b"),
            ("hostname", "a+b", "a.1"),
            ("hostname", "ü.com", "1-2-3"),
            ("date-time", "2024-01-02t03:04:05z", "2024-01-02 03:04:05Z"),
            ("date-time", "2024-01-02T03:04:05,5Z", "2024-01-02T3:04:05Z"),
            ("date-time", "2024-01-02T03:04:05.5+99:99", "2024-01-02T03:04:05.Z"),
            ("date-time", "2024-01-02T03:04:05+01:00", "2024-01-02T03:04:60Z"),
            ("ipv4", "01.2.3.4", "::1"),
            ("ipv4", "::ffff:1.2.3.4", "1"),
            ("mac", "0000.5e00.5301", "00:00-5e:00:53:01"),
            ("mac", "00005e005301", "00005e0053"),
            ("uri", "http://[::1]:80", "http://[::1"),
            ("uri", "http://a:", "http://a:b"),
            ("byte", "Y+/=", "Y"),
            ("ssn", "123 45 6789", "123456789"),
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
