//! The rules for names that users choose: DNS labels and subdomains, label keys and values, port and variable names.
//! Each rule returns a list of errors, in upstream's words; an empty list means valid.

const DNS1123_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_MESSAGE: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// The reserved words of CEL, which no variable may have as its name.
#[rustfmt::skip]
pub const CEL_WORDS: [&str; 21] = [
    "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop", "namespace",
    "null", "package", "return", "true", "var", "void", "while",
];

pub const DNS1123_LABEL_MAX_LENGTH: usize = 63;
pub const DNS1123_SUBDOMAIN_MAX_LENGTH: usize = 253;
pub const LABEL_VALUE_MAX_LENGTH: usize = 63;

/// Returns the message for most names that are too long.
pub fn max_length_message(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Returns the message for label keys and values that are too long.
fn max_bytes_message(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Returns the message for a name that does not match a pattern.
pub fn regex_message(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

/// Returns the message for a number outside of a range.
pub fn inclusive_range_message(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// Reports whether `first` accepts the first byte, `last` the last, and `middle` all bytes between.
fn shaped(text: &str, first: fn(u8) -> bool, middle: fn(u8) -> bool, last: fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => first(*only) && last(*only),
        [head, body @ .., tail] => first(*head) && last(*tail) && body.iter().all(|b| middle(*b)),
    }
}

fn lower_alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}
fn label_middle(b: u8) -> bool {
    lower_alphanumeric(b) || b == b'-'
}
fn alphanumeric(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}
fn key_middle(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')
}

fn is_dns1123_label(text: &str) -> bool {
    shaped(text, lower_alphanumeric, label_middle, lower_alphanumeric)
}
fn is_dns1123_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns1123_label)
}
fn is_label_name(text: &str) -> bool {
    shaped(text, alphanumeric, key_middle, alphanumeric)
}

/// Validates a DNS label: lower case letters, digits and inner hyphens, at most 63.
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_LABEL_MAX_LENGTH {
        errors.push(max_length_message(DNS1123_LABEL_MAX_LENGTH));
    }
    if !is_dns1123_label(text) {
        if is_dns1123_subdomain(text) {
            errors.push("must not contain dots".into());
        } else {
            errors.push(regex_message(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                DNS1123_LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

/// Validates dot separated DNS labels, at most 253 characters: the name of most objects.
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    subdomain(text, max_length_message(DNS1123_SUBDOMAIN_MAX_LENGTH))
}

fn subdomain(text: &str, too_long: String) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX_LENGTH {
        errors.push(too_long);
    }
    if !is_dns1123_subdomain(text) {
        errors.push(regex_message(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            DNS1123_SUBDOMAIN,
            &["example.com"],
        ));
    }
    errors
}

/// Validates `*.` and a DNS subdomain, as the host of an Ingress rule may be.
pub fn wildcard_dns1123_subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX_LENGTH {
        errors.push(max_length_message(DNS1123_SUBDOMAIN_MAX_LENGTH));
    }
    if !text.strip_prefix("*.").is_some_and(is_dns1123_subdomain) {
        errors.push(regex_message(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!("\\*\\.{DNS1123_SUBDOMAIN}"),
            &["*.example.com"],
        ));
    }
    errors
}

/// Validates a DNS label that starts with a letter: the name of a Service.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_LABEL_MAX_LENGTH {
        errors.push(max_length_message(DNS1123_LABEL_MAX_LENGTH));
    }
    if !shaped(text, |b| b.is_ascii_lowercase(), label_middle, lower_alphanumeric) {
        errors.push(regex_message(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            DNS1035_LABEL,
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// Validates a label key: a name of at most 63 characters with an optional DNS subdomain and `/` before it.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let message = || regex_message(LABEL_KEY_MESSAGE, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".into());
            } else {
                let of_prefix = subdomain(prefix, max_bytes_message(DNS1123_SUBDOMAIN_MAX_LENGTH));
                errors.extend(of_prefix.into_iter().map(|e| format!("prefix part {e}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                message()
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_bytes_message(63)));
    }
    if !is_label_name(name) {
        errors.push(format!("name part {}", message()));
    }
    errors
}

/// Validates a label value: empty, or as the name of a label key.
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_VALUE_MAX_LENGTH {
        errors.push(max_bytes_message(LABEL_VALUE_MAX_LENGTH));
    }
    if !text.is_empty() && !is_label_name(text) {
        errors.push(regex_message(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({LABEL_KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// Validates a C identifier.
pub fn c_identifier(text: &str) -> Vec<String> {
    let rest = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if shaped(text, |b| b.is_ascii_alphabetic() || b == b'_', rest, rest) {
        return Vec::new();
    }
    vec![regex_message(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// Validates the relaxed form of an environment variable's name: printable ASCII other than `=`.
pub fn relaxed_env_var_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".into()];
    }
    if text.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".into()]
}

/// Validates a key of a ConfigMap or Secret.
pub fn config_map_key(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX_LENGTH {
        errors.push(max_length_message(DNS1123_SUBDOMAIN_MAX_LENGTH));
    }
    if text.is_empty() || !text.bytes().all(key_middle) {
        errors.push(regex_message(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    errors.extend(parent_directory(text));
    errors
}

fn parent_directory(text: &str) -> Option<String> {
    match text {
        "." => Some("must not be '.'".into()),
        ".." => Some("must not be '..'".into()),
        _ if text.starts_with("..") => Some("must not start with '..'".into()),
        _ => None,
    }
}

/// Validates the name of a port: an IANA service name.
pub fn port_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push(max_length_message(15));
    }
    if text.is_empty() || !text.bytes().all(label_middle) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".into());
    }
    errors
}

/// Validates a port number that is not zero.
pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

fn in_range(value: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&value) { Vec::new() } else { vec![inclusive_range_message(low, high)] }
}

/// Validates a percentage such as `10%`.
pub fn percent(text: &str) -> Vec<String> {
    let number = text.strip_suffix('%').unwrap_or_default();
    if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    vec![regex_message(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// Validates the name of an HTTP header.
pub fn http_header_name(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![regex_message(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// Validates a name that becomes a path segment of a URL: roles and their bindings may have any such name.
pub fn path_segment_name(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"].iter().filter(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses() {
        let long = "a".repeat(64);
        type Rule = fn(&str) -> Vec<String>;
        for (rule, good, bad) in [
            (dns1123_label as Rule, vec!["a", "0", "a-b", "1-a"], vec!["", "-a", "a-", "A", "a.b", "a_b", &long]),
            (dns1123_subdomain, vec!["a", "a.b", "0.1-x", &long], vec!["", ".", "a.", "a..b", "A.b", "a/b"]),
            (dns1035_label, vec!["a", "a1", "a-b"], vec!["1a", "", "a-", "a.b"]),
            (wildcard_dns1123_subdomain, vec!["*.a", "*.a.b"], vec!["*", "*a", "*.*.a", "a.b", "*."]),
            (
                qualified_name,
                vec!["a", "A_b.c-1", "example.com/a", "1"],
                vec!["", "/a", "a/", "a/b/c", "-a", "Upper.com/a", &long],
            ),
            (label_value, vec!["", "a", "A_b.c"], vec!["-a", "a-", "a b", &long]),
            (c_identifier, vec!["a", "_", "A1"], vec!["1a", "a-b", ""]),
            (relaxed_env_var_name, vec!["1a", "a b", "-"], vec!["", "a=b", "é"]),
            (config_map_key, vec!["a", ".a", "1"], vec!["", "a/b", ".", "..", "..a"]),
            (port_name, vec!["http", "a1", "1-a"], vec!["", "1", "a--b", "-a", "A", "this-is-too-long-a-name"]),
            (percent, vec!["0%", "100%"], vec!["%", "1", "a%", "-1%"]),
            (http_header_name, vec!["X-A"], vec!["", "a b", "a_b"]),
            (path_segment_name, vec!["system:node", "a b"], vec![".", "..", "a/b", "a%b"]),
        ] {
            for text in good {
                assert_eq!(rule(text), Vec::<String>::new(), "{text:?}");
            }
            for text in bad {
                assert!(!rule(text).is_empty(), "{text:?}");
            }
        }
    }

    #[test]
    fn messages_are_upstreams() {
        assert_eq!(
            dns1123_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
        assert!(qualified_name("a/b/c")[0].starts_with("a valid label key must consist of"));
    }
}
