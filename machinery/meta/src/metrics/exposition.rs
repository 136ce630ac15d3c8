//! The Prometheus text format, version 0.0.4: families of samples, with label values escaped.

use std::fmt::Write;

use super::Family;

/// A page of metrics that grows family by family.
#[derive(Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family; its samples must follow at once.
    pub fn family(&mut self, family: &Family) {
        let Family { name, kind, help, .. } = family;
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    /// Writes one sample, with the values of the family's labels in their order.
    pub fn sample(&mut self, family: &Family, values: &[&str], value: f64) {
        self.write(family, "", &pairs(family, values), value);
        self.0.push('\n');
    }

    /// Writes one sample with the time of its measurement, in Unix milliseconds.
    pub fn sample_at(&mut self, family: &Family, values: &[&str], value: f64, time: i64) {
        self.write(family, "", &pairs(family, values), value);
        let _ = writeln!(self.0, " {time}");
    }

    /// Writes a family of one sample without labels.
    pub fn single(&mut self, family: &Family, value: f64) {
        self.family(family);
        self.sample(family, &[], value);
    }

    /// Writes one series of a histogram: `counts` are those of each bucket and of the values beyond.
    pub fn histogram(&mut self, family: &Family, values: &[&str], counts: impl IntoIterator<Item = u64>, sum: f64) {
        let labels = pairs(family, values);
        let mut total = 0;
        let bounds = family.bounds().iter().map(|bound| number(*bound)).chain(["+Inf".to_owned()]);
        for (count, bound) in counts.into_iter().zip(bounds) {
            total += count;
            let mut labels = labels.clone();
            labels.push(("le", &bound));
            self.write(family, "_bucket", &labels, total as f64);
            self.0.push('\n');
        }
        self.write(family, "_sum", &labels, sum);
        self.0.push('\n');
        self.write(family, "_count", &labels, total as f64);
        self.0.push('\n');
    }

    fn write(&mut self, family: &Family, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(family.name);
        self.0.push_str(suffix);
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
        let _ = write!(self.0, " {}", number(value));
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

fn pairs<'a>(family: &Family, values: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    family.labels.iter().copied().zip(values.iter().copied()).collect()
}

/// Formats a number as upstream's library does: very small and large ones have a sign and two digits in the exponent.
fn number(value: f64) -> String {
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

    static COUNT: Family =
        Family { name: "a_total", kind: super::super::Kind::Counter, labels: &["x", "y"], help: "[BETA] Something." };

    #[test]
    fn values_are_escaped() {
        let mut out = Exposition::default();
        out.family(&COUNT);
        out.sample(&COUNT, &["1\"2\\3\n4", ""], 2.0);
        out.sample_at(&COUNT, &[], 0.5, 7);
        let expected = "# HELP a_total [BETA] Something.\n# TYPE a_total counter\n\
                        a_total{x=\"1\\\"2\\\\3\\n4\",y=\"\"} 2\na_total 0.5 7\n";
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
            (604_800.0, "604800"),
            (1_000_000.0, "1e+06"),
            (2_592_000.0, "2.592e+06"),
            (-1.5e21, "-1.5e+21"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
