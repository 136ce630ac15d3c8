//! Warnings for the client: each once, and no more than its headers hold.

/// How many letters all warnings have; with more, each is cut short.
const TOTAL: usize = 4096;
/// How many letters are left of one that is cut short.
const EACH: usize = 256;

/// The warnings of a request.
#[derive(Default)]
pub struct Warnings {
    told: Vec<String>,
    letters: usize,
    are_cut: bool,
}

impl Warnings {
    /// Adds a warning. Those that come when there is no more room are lost.
    pub fn add(&mut self, warning: String) {
        let is_full = self.are_cut && self.letters >= TOTAL;
        if warning.is_empty() || is_full || self.told.contains(&warning) {
            return;
        }
        let letters = warning.chars().count();
        self.told.push(warning);
        self.letters += if self.are_cut { letters.min(EACH) } else { letters };
        if !self.are_cut && self.letters > TOTAL {
            self.are_cut = true;
            self.letters = self.texts().map(|text| text.chars().count()).sum();
        }
    }

    /// What the client is told.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.told.iter().map(|text| match text.char_indices().nth(EACH) {
            Some((end, _)) if self.are_cut => &text[..end],
            _ => text.as_str(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(warnings: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut all = Warnings::default();
        warnings.into_iter().for_each(|warning| all.add(warning));
        all.texts().map(str::to_owned).collect()
    }

    #[test]
    fn each_is_told_once() {
        let given = ["a", "", "b", "a"].map(str::to_owned);
        assert_eq!(told(given), ["a", "b"]);
    }

    #[test]
    fn many_are_cut_short_and_then_lost() {
        let long = |letter: char| letter.to_string().repeat(1000);
        assert_eq!(told(('a'..='d').map(long)), ('a'..='d').map(long).collect::<Vec<String>>());
        let cut = |letter: char| letter.to_string().repeat(EACH);
        assert_eq!(told(('a'..='e').map(long)), ('a'..='e').map(cut).collect::<Vec<String>>());
        assert_eq!(told(('\u{e0}'..='\u{ff}').map(long)), ('\u{e0}'..='\u{ef}').map(cut).collect::<Vec<String>>());
    }
}
