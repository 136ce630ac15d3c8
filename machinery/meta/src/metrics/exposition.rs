//! The Prometheus text format, version 0.0.4: families of samples, with label values escaped.

use std::fmt::Write;

/// A page of metrics that grows family by family.
#[derive(Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family; its samples must follow at once.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {}\n# TYPE {name} {kind}", described(name, help));
    }

    /// Writes one sample with its labels in the given order.
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
        for character in text.chars() {
            match character {
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

/// The stability level, name and help of the families of upstream's components.
const PROMISED: &str = include_str!("promised.tbl");

/// The prefixes of the names of upstream's other families.
const COMPONENTS: &[&str] = &[
    "aggregator_",
    "apiserver_",
    "authentication_",
    "authorization_",
    "etcd_",
    "pod_security_",
    "rest_client_",
    "scheduler_",
    "serviceaccount_",
    "version_info",
];

/// Returns the stability level of a family and upstream's help for it.
fn promise(name: &str) -> Option<(&'static str, &'static str)> {
    PROMISED.lines().find_map(|line| {
        let (level, rest) = line.split_once(' ')?;
        let (of, help) = rest.split_once(' ')?;
        (of == name).then_some((level, help))
    })
}

/// Returns the help of a family as upstream's library writes it. A family with a stability level has upstream's help;
/// any other keeps the component's.
fn described(name: &str, help: &str) -> String {
    match promise(name) {
        Some((level, help)) => format!("[{level}] {help}"),
        None if COMPONENTS.iter().any(|component| name.starts_with(component)) => format!("[ALPHA] {help}"),
        None => help.to_owned(),
    }
}

/// Formats a number as upstream's library does: very small and large ones have a sign and two digits in the exponent.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || (1e-4..1e6).contains(&value.abs()) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
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
    fn help_begins_with_the_stability_level() {
        for (name, expected) in [
            ("job_controller_job_syncs_total", "[STABLE] The number of job syncs"),
            ("workqueue_depth", "[BETA] Current depth of workqueue"),
            ("apiserver_storage_revision", "[ALPHA] own words"),
            ("process_open_fds", "own words"),
        ] {
            assert_eq!(described(name, "own words"), expected, "{name}");
        }
        assert!(PROMISED.lines().skip(1).all(|line| line.starts_with("STABLE ") || line.starts_with("BETA ")));
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
            (604_800.0, "604800"),
            (1_000_000.0, "1e+06"),
            (2_592_000.0, "2.592e+06"),
            (-1.5e21, "-1.5e+21"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
