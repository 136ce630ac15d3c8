//! The formats of strings in a schema. Pure; unknown formats accept every string.

use std::net::IpAddr;

use base64::Engine;
use corten_cel::library::regex::compile;
use corten_meta::names::{self, address::parse_sloppy};

/// Reports whether a string has a format. Dashes in the name of a format are ignored.
pub fn has(format: &str, string: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => is_date_time(string),
        "date" => string.len() == 10 && string.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(string),
        "ipv4" => string.contains('.') && parse_sloppy(string).is_some(),
        "ipv6" => string.contains(':') && parse_sloppy(string).is_some(),
        "cidr" => is_cidr(string),
        "mac" => is_mac(string),
        "uri" => is_request_uri(string),
        "email" => is_email(string),
        "hostname" => is_hostname(string),
        "k8sshortname" => names::dns1123_label(string).is_empty(),
        "k8slongname" => names::dns1123_subdomain(string).is_empty(),
        "uuid" => is_uuid(string, None),
        "uuid3" => is_uuid(string, Some('3')),
        "uuid4" => is_uuid(string, Some('4')),
        "uuid5" => is_uuid(string, Some('5')),
        "bsonobjectid" => string.len() == 24 && is_hex(string),
        "byte" => is_base64(string),
        "isbn" => is_isbn10(string) || is_isbn13(string),
        "isbn10" => is_isbn10(string),
        "isbn13" => is_isbn13(string),
        "creditcard" => is_credit_card(string),
        "ssn" => is_social_security_number(string),
        "hexcolor" => is_hex_color(string),
        "rgbcolor" => is_rgb_color(string),
        _ => true,
    }
}

/// Reports whether a string is one label, or several labels and a top-level domain. Symbols are allowed as letters are.
fn is_hostname(string: &str) -> bool {
    let is_of = |class: &str, string: &str| compile(class).is_ok_and(|class| class.is_match(string));
    let is_word = |string: &str| is_of(r"^[a-zA-Z0-9\p{S}\p{L}]+$", string);
    let is_label =
        |string: &str| is_word(&string.replace('-', "")) && !string.starts_with('-') && !string.ends_with('-');
    let is_short = string.len() <= 255 && string.split('.').all(|label| label.len() <= 63);
    let fits = match string.rsplit_once('.') {
        Some((labels, top)) => {
            is_of(r"^[a-zA-Z\p{L}]+$", top) && top.chars().nth(1).is_some() && labels.split('.').all(is_label)
        }
        // A single label may have one dash, after its first character, and end with it.
        None => {
            let second = string.chars().next().map_or(0, char::len_utf8);
            let (first, rest) = string.split_at(second);
            let rest = rest.strip_prefix('-').unwrap_or(rest);
            is_word(first) && (rest.is_empty() || is_word(rest))
        }
    };
    fits && is_short
}

fn is_hex(string: &str) -> bool {
    string.bytes().all(|b| b.is_ascii_hexdigit())
}

fn digits(string: &str) -> Vec<u32> {
    string.chars().filter_map(|c| c.to_digit(10)).collect()
}

fn is_cidr(string: &str) -> bool {
    string.split_once('/').is_some_and(|(address, length)| {
        let max = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        length.parse::<u8>().is_ok_and(|length| length <= max)
    })
}

/// Reports whether a string is six, eight or twenty bytes, in groups of one or two with a separator, or without
/// separators.
fn is_mac(string: &str) -> bool {
    let (separator, length) = match (string.as_bytes().get(2), string.as_bytes().get(4)) {
        (Some(separator @ (b':' | b'-')), _) => (char::from(*separator), 2),
        (_, Some(b'.')) => ('.', 4),
        _ => return matches!(string.len(), 12 | 16 | 40) && is_hex(string),
    };
    let groups: Vec<&str> = string.split(separator).collect();
    matches!(groups.len() * length / 2, 6 | 8 | 20) && groups.iter().all(|group| group.len() == length && is_hex(group))
}

/// Reports whether a string is base64. The unused bits after the last byte may be set.
fn is_base64(string: &str) -> bool {
    use base64::alphabet::STANDARD;
    use base64::engine::general_purpose::{GeneralPurpose, PAD};
    const LENIENT: GeneralPurpose = GeneralPurpose::new(&STANDARD, PAD.with_decode_allow_trailing_bits(true));
    !string.is_empty() && LENIENT.decode(string).is_ok()
}

/// Reports whether a string is a date and a time with a zone. Upstream checks it loosely: characters may be lower case,
/// the zone may be any, any character may precede the fraction, and the rest after a second `t` is ignored.
fn is_date_time(string: &str) -> bool {
    const TIME: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$";
    let string = string.to_lowercase();
    let mut parts = string.split('t');
    let [day, time] = [(); 2].map(|()| parts.next().unwrap_or_default());
    has("date", day) && compile(TIME).is_ok_and(|look| look.is_match(time))
}

/// Reports whether a string is a duration of Go, or numbers with units in words: `2 hours 5 min`.
fn is_duration(string: &str) -> bool {
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
    if corten_meta::go::duration_error(string).is_none() {
        return true;
    }
    let is_unit = |word: &str| {
        let names = |unit: &&[&str]| unit.contains(&word) || unit.last().is_some_and(|last| word.starts_with(last));
        UNITS.iter().any(names)
    };
    // Every word after a number counts, and one that is a unit is enough.
    let lower = string.to_lowercase();
    lower.split(|c: char| c.is_ascii_digit()).skip(1).any(|behind| {
        let word: String = behind.trim_start().chars().take_while(|c| c.is_ascii_lowercase() || *c == 'µ').collect();
        is_unit(&word)
    })
}

/// Reports whether a string is a path, or a URL with a scheme; anything may follow the scheme that does not begin with
/// a slash.
fn is_request_uri(string: &str) -> bool {
    let rest = match string.split_once(':') {
        _ if string.starts_with('/') => string,
        Some((scheme, rest))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
        {
            rest
        }
        _ => return string == "*",
    };
    let is_plain = !string.chars().any(|c| c.is_ascii_control());
    if !rest.starts_with('/') {
        return is_plain;
    }
    let escapes = rest.split('?').next().unwrap_or_default().split('%').skip(1);
    let is_escape = |after: &str| after.get(..2).is_some_and(is_hex);
    let host = rest.strip_prefix("//").and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
    is_plain
        && escapes.into_iter().all(is_escape)
        && !host.contains([' ', '<', '>', '"', '^', '`', '{', '}', '|', '\\'])
        && has_valid_port(host)
}

/// Reports whether brackets are closed and the port is a number.
fn has_valid_port(host: &str) -> bool {
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

/// Reports whether a string is `local@domain`, also after a name: `Name <local@domain>`. A comment may follow it.
fn is_email(string: &str) -> bool {
    let string = string.trim();
    let comment = string.strip_suffix(')').and_then(|string| string.split_once('('));
    let string = comment.map_or(string, |(string, _)| string.trim_end());
    let address = match string.strip_suffix('>') {
        Some(named) => match named.rsplit_once('<') {
            Some((name, address)) if name.contains('"') || !name.contains([',', ';', ':', '@', '[', ']']) => address,
            _ => return false,
        },
        None => string,
    };
    let is_literal = |domain: &str| {
        let address = domain.strip_prefix('[').and_then(|domain| domain.strip_suffix(']'));
        address.is_some_and(|address| address.parse::<IpAddr>().is_ok())
    };
    let is_atom = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let is_dotted = |string: &str| string.split('.').all(is_atom);
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
        (quoted || is_dotted(local)) && (is_dotted(domain) || is_literal(domain))
    })
}

/// Reports whether a string is a UUID, with or without dashes. With a version, the third group begins with its number,
/// and the fourth with one of four digits.
fn is_uuid(string: &str, version: Option<char>) -> bool {
    let mut rest = string.to_ascii_lowercase();
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

fn is_isbn10(string: &str) -> bool {
    let plain: Vec<char> = string.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    let values: Vec<u32> = plain
        .iter()
        .enumerate()
        .filter_map(|(at, c)| if at == 9 && *c == 'X' { Some(10) } else { c.to_digit(10) })
        .collect();
    let sum: u32 = values.iter().zip(1..).map(|(value, weight): (&u32, u32)| value * weight).sum();
    plain.len() == 10 && values.len() == 10 && sum.is_multiple_of(11)
}

fn is_isbn13(string: &str) -> bool {
    let plain = string.chars().filter(|c| !matches!(c, '-' | ' ')).count();
    let values = digits(string);
    let sum: u32 = values.iter().enumerate().map(|(at, value)| value * if at % 2 == 0 { 1 } else { 3 }).sum();
    plain == 13 && values.len() == 13 && sum.is_multiple_of(10)
}

fn is_credit_card(string: &str) -> bool {
    let values = digits(string);
    let number: String = string.chars().filter(char::is_ascii_digit).collect();
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

fn is_social_security_number(string: &str) -> bool {
    let parts: Vec<&str> = string.split(['-', ' ']).collect();
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([3, 2, 4]) && parts.iter().all(is_number)
}

fn is_hex_color(string: &str) -> bool {
    let plain = string.strip_prefix('#').unwrap_or(string);
    matches!(plain.len(), 3 | 6) && is_hex(plain)
}

fn is_rgb_color(string: &str) -> bool {
    let inner = string.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')'));
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
    fn strings_have_their_formats() {
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
        /// Every format accepts or refuses any string without a panic.
        #[test]
        fn any_string_is_accepted_or_refused(string in "\\PC{0,40}", at in 0usize..8) {
            let formats = ["uri", "email", "uuid4", "duration", "isbn", "ssn", "rgbcolor", "mac"];
            has(formats[at], &string);
        }
    }
}
