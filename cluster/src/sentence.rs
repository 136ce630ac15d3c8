//! The sentence of an error for people: what failed and why, each cause once.

/// Returns an error with its causes. One that repeats what was said before is left out.
pub fn of(error: &anyhow::Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.ends_with(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fmt::{self, Display, Formatter};
    use std::io;

    use anyhow::Context;

    use super::*;

    /// An error whose sentence ends with its cause.
    #[derive(Debug)]
    struct Full {
        source: io::Error,
    }

    impl Display for Full {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            write!(f, "cannot write b: {}", self.source)
        }
    }

    impl Error for Full {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.source)
        }
    }

    #[test]
    fn a_cause_is_printed_once() {
        let full = || Full { source: io::Error::other("no space") };
        assert_eq!(of(&full().into()), "cannot write b: no space");
        let error = Err::<(), _>(full()).context("no backup").unwrap_err();
        assert_eq!(of(&error), "no backup: cannot write b: no space");
        let error = Err::<(), _>(io::Error::other("refused")).context("no answer").unwrap_err();
        assert_eq!(of(&error), "no answer: refused");
    }
}
