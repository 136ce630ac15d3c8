//! Sets of completion indexes as a Job writes them: `1,3-5,7`.

use std::collections::BTreeSet;
use std::fmt;

use crate::runtime::PodRow;

pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(BTreeSet<i32>);

impl Indexes {
    /// What does not parse is left out: the status is ours, and was written by this.
    pub fn parse(text: &str) -> Indexes {
        let mut all = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                all.extend(first..=last);
            }
        }
        Indexes(all)
    }

    pub fn insert(&mut self, index: i32) {
        self.0.insert(index);
    }

    pub fn contains(&self, index: i32) -> bool {
        self.0.contains(&index)
    }

    pub fn len(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }

    pub fn iter(&self) -> impl Iterator<Item = i32> {
        self.0.iter().copied()
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<T: IntoIterator<Item = i32>>(indexes: T) -> Indexes {
        Indexes(indexes.into_iter().collect())
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(i32, i32)> = Vec::new();
        for index in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *index => *last = *index,
                _ => runs.push((*index, *index)),
            }
        }
        let text = |(first, last): (i32, i32)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        };
        f.write_str(&runs.into_iter().map(text).collect::<Vec<_>>().join(","))
    }
}

/// The index a pod works on.
pub fn index_of(pod: &PodRow) -> Option<i32> {
    pod.facts.completion_index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_runs_and_read_back() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7", "0,1,5-9"] {
            assert_eq!(Indexes::parse(text).to_string(), text);
        }
        assert_eq!(Indexes::parse("3-5").len(), 3);
    }
}
