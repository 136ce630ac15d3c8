//! The form of cloud configurations: sections in brackets, and lines of `Key = value`.

/// A line of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The section, such as `Global`, without quotes.
    pub section: String,
    pub key: String,
    pub value: String,
}

/// The most bytes of a configuration.
const MOST_BYTES: usize = 64 << 10;

/// Reads a configuration; the error is a sentence with the line's number.
pub fn parse(text: &str) -> Result<Vec<Line>, String> {
    if text.len() > MOST_BYTES {
        return Err(format!("the cloud configuration has more than {MOST_BYTES} bytes"));
    }
    let mut section = String::new();
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.replace('"', "").trim().to_owned();
            continue;
        }
        let number = index + 1;
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| format!("line {number} of the cloud configuration is no `Key = value`: {line:?}"))?;
        let value = value.trim().trim_matches('"').to_owned();
        lines.push(Line { section: section.clone(), key: key.trim().to_owned(), value });
    }
    Ok(lines)
}

/// Returns the sentence about a line that the provider does not know.
pub fn unknown(line: &Line) -> String {
    format!("the cloud configuration has the unknown key {:?} in section {:?}", line.key, line.section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read_by_sections() {
        let lines = parse("# c\n[Global]\nVPC = vpc-1\n[ServiceOverride \"1\"]\nURL=\"http://x\"\n").unwrap();
        let read: Vec<[&str; 3]> =
            lines.iter().map(|line| [line.section.as_str(), line.key.as_str(), line.value.as_str()]).collect();
        assert_eq!(read, [["Global", "VPC", "vpc-1"], ["ServiceOverride 1", "URL", "http://x"]]);
        assert_eq!(
            parse("[Global]\nVPC").unwrap_err(),
            "line 2 of the cloud configuration is no `Key = value`: \"VPC\""
        );
    }
}
