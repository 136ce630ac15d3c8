//! Warnings for the client: each once, and no more than the headers hold.

/// The characters of all warnings together; with more, each warning is truncated.
const TOTAL: usize = 4096;
/// The characters of a truncated warning.
const EACH: usize = 256;

/// The warnings of a request.
#[derive(Default)]
pub struct Warnings {
    warnings: Vec<String>,
    characters: usize,
    are_truncated: bool,
}

impl Warnings {
    /// Adds a warning. Warnings after the limit are dropped.
    pub fn add(&mut self, warning: String) {
        let is_full = self.are_truncated && self.characters >= TOTAL;
        if warning.is_empty() || is_full || self.warnings.contains(&warning) {
            return;
        }
        let characters = warning.chars().count();
        self.warnings.push(warning);
        self.characters += if self.are_truncated { characters.min(EACH) } else { characters };
        if !self.are_truncated && self.characters > TOTAL {
            self.are_truncated = true;
            self.characters = self.messages().map(|text| text.chars().count()).sum();
        }
    }

    /// Returns the warnings for the client.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(|text| match text.char_indices().nth(EACH) {
            Some((end, _)) if self.are_truncated => &text[..end],
            _ => text.as_str(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(warnings: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut all = Warnings::default();
        warnings.into_iter().for_each(|warning| all.add(warning));
        all.messages().map(str::to_owned).collect()
    }

    #[test]
    fn each_warning_is_sent_once() {
        let warnings = ["a", "", "b", "a"].map(str::to_owned);
        assert_eq!(sent(warnings), ["a", "b"]);
    }

    #[test]
    fn many_warnings_are_truncated_and_then_dropped() {
        let long = |character: char| character.to_string().repeat(1000);
        assert_eq!(sent(('a'..='d').map(long)), ('a'..='d').map(long).collect::<Vec<String>>());
        let cut = |character: char| character.to_string().repeat(EACH);
        assert_eq!(sent(('a'..='e').map(long)), ('a'..='e').map(cut).collect::<Vec<String>>());
        assert_eq!(sent(('\u{e0}'..='\u{ff}').map(long)), ('\u{e0}'..='\u{ef}').map(cut).collect::<Vec<String>>());
    }
}
