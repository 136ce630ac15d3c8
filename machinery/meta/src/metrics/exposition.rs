//! The Prometheus text format, version 0.0.4: families of samples, with label values escaped.

use std::fmt::Write;

/// A text of metrics that grows family by family.
#[derive(Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family; its samples must follow at once.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; labels in the order given.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        if !labels.is_empty() {
            self.0.push('{');
            for (index, (label, text)) in labels.iter().enumerate() {
                if index > 0 {
                    self.0.push(',');
                }
                let _ = write!(self.0, "{label}=\"");
                self.escape(text);
                self.0.push('"');
            }
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {}", number(value));
    }

    fn escape(&mut self, text: &str) {
        for letter in text.chars() {
            match letter {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
    }

    pub fn finish(self) -> String {
        self.0
    }
}

/// A number as upstream's library writes it: very small ones with an exponent of at least two digits.
pub fn number(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-4 {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) if exponent.len() < 2 => format!("{digits}e-0{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let mut out = Exposition::default();
        out.family("a_total", "counter", "Something.");
        out.sample("a_total", &[("x", "1\"2\\3\n4"), ("y", "")], 2.0);
        out.sample("a_total", &[], 0.5);
        let expected = "# HELP a_total Something.\n# TYPE a_total counter\n\
                        a_total{x=\"1\\\"2\\\\3\\n4\",y=\"\"} 2\na_total 0.5\n";
        assert_eq!(out.finish(), expected);
    }

    #[test]
    fn numbers_are_written_as_upstream_does() {
        for (value, expected) in [
            (0.0, "0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (0.000_022_5, "2.25e-05"),
            (1e-12, "1e-12"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
