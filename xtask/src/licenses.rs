//! The licences that dependencies may have, and the expressions in which packages state them.

/// The licences under which this project may ship a dependency: none of them affects our own code.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    // Requires only that changes to its own files are published; we change none.
    "MPL-2.0+",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Returns the expression in SPDX syntax: older packages write a slash for a choice.
pub fn expression(stated: &str) -> String {
    let spaced = stated.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    words.join(" ").replace("( ", "(").replace(" )", ")")
}

/// Reports whether one choice of the expression is allowed.
pub fn is_allowed(stated: &str) -> bool {
    let spaced = expression(stated).replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words };
    let is_allowed = reader.choice();
    is_allowed == Some(true) && reader.words.is_empty()
}

/// A parser of expressions; `None` for an invalid one.
struct Reader<'a> {
    words: &'a [&'a str],
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    fn choice(&mut self) -> Option<bool> {
        let mut is_allowed = self.all()?;
        while self.takes("OR") {
            is_allowed |= self.all()?;
        }
        Some(is_allowed)
    }

    fn all(&mut self) -> Option<bool> {
        let mut is_allowed = self.one()?;
        while self.takes("AND") {
            is_allowed &= self.one()?;
        }
        Some(is_allowed)
    }

    fn one(&mut self) -> Option<bool> {
        if self.takes("(") {
            let is_allowed = self.choice()?;
            return self.takes(")").then_some(is_allowed);
        }
        let license = self.next()?;
        if !self.takes("WITH") {
            return Some(ALLOWED.contains(&license));
        }
        let exception = self.next()?;
        Some(ALLOWED.contains(&format!("{license} WITH {exception}").as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_choice_must_be_allowed_and_every_part_of_it() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "MIT WITH other", "(MIT", "MIT OR", "MIT Apache-2.0"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn old_expressions_are_written_as_spdx_does() {
        assert_eq!(expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(expression("(MIT OR Apache-2.0) AND ISC"), "(MIT OR Apache-2.0) AND ISC");
    }
}
