//! Sets of completion indexes in the format of a Job: `1,3-5,7`.
//!
//! A set is kept as ranges, never as members: a user may write `0-2147483646` into a success policy, and that must cost
//! no more than its characters.

use std::collections::BTreeMap;
use std::fmt;

use crate::runtime::PodRow;

pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The last index of each range, by its first. Ranges do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(BTreeMap<i32, i32>);

impl Indexes {
    /// Parses a set; skips invalid parts, since the API has validated them.
    pub fn parse(text: &str) -> Indexes {
        let mut all = Indexes::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
                all.insert_run(first, last);
            }
        }
        all
    }

    pub fn insert(&mut self, index: i32) {
        self.insert_run(index, index);
    }

    /// Adds a range, and merges the ranges that it overlaps or touches.
    fn insert_run(&mut self, mut first: i32, mut last: i32) {
        if first > last {
            return;
        }
        while let Some((start, end)) = self.0.range(..=last.saturating_add(1)).next_back().map(|(a, b)| (*a, *b)) {
            if end < first.saturating_sub(1) {
                break;
            }
            self.0.remove(&start);
            first = first.min(start);
            last = last.max(end);
        }
        self.0.insert(first, last);
    }

    pub fn contains(&self, index: i32) -> bool {
        self.0.range(..=index).next_back().is_some_and(|(_, last)| *last >= index)
    }

    /// Returns the number of indexes.
    pub fn len(&self) -> i32 {
        let members = self.0.iter().map(|(first, last)| i64::from(*last) - i64::from(*first) + 1).sum::<i64>();
        i32::try_from(members).unwrap_or(i32::MAX)
    }

    /// Returns the indexes below an end.
    pub fn below(&self, end: i32) -> Indexes {
        let runs = self.0.range(..end).map(|(first, last)| (*first, (*last).min(end - 1)));
        Indexes(runs.collect())
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(mut self, other: &Indexes) -> Indexes {
        other.0.iter().for_each(|(first, last)| self.insert_run(*first, *last));
        self
    }

    /// Returns the intersection of both sets.
    pub fn common(&self, other: &Indexes) -> Indexes {
        let mut common = Indexes::default();
        for (first, last) in &self.0 {
            let overlapping = other.0.range(..=last).rev().take_while(|(_, end)| *end >= first);
            for (start, end) in overlapping {
                common.insert_run(*first.max(start), *last.min(end));
            }
        }
        common
    }

    /// Returns the first index from this one on that is not in the set.
    pub fn first_absent(&self, from: i32) -> i32 {
        match self.0.range(..=from).next_back() {
            Some((_, last)) if *last >= from => last.saturating_add(1),
            _ => from,
        }
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<T: IntoIterator<Item = i32>>(indexes: T) -> Indexes {
        let mut all = Indexes::default();
        indexes.into_iter().for_each(|index| all.insert(index));
        all
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |(first, last): (&i32, &i32)| match i64::from(*last) - i64::from(*first) {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        };
        f.write_str(&self.0.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

/// Returns the completion index of a pod.
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

    #[test]
    fn runs_that_overlap_or_touch_become_one() {
        for (text, written) in
            [("3-5,1-2", "1-5"), ("1,3,2", "1-3"), ("0-9,3-4", "0-9"), ("5,1-3,4-9", "1-9"), ("5-3,x,-1", "")]
        {
            assert_eq!(Indexes::parse(text).to_string(), written, "{text}");
        }
    }

    #[test]
    fn a_set_costs_its_runs_and_not_its_members() {
        let all = Indexes::parse("0-2147483647");
        assert_eq!((all.len(), all.to_string().as_str()), (i32::MAX, "0-2147483647"));
        assert!(all.contains(7) && !all.contains(-1));
        assert_eq!(all.below(3).to_string(), "0-2");
        assert_eq!(all.first_absent(5), i32::MAX);
        assert_eq!(all.common(&Indexes::parse("1,5-7")).to_string(), "1,5-7");
        assert_eq!(Indexes::parse("0-4,8-9").common(&Indexes::parse("3-8,20")).to_string(), "3,4,8");
        assert_eq!(Indexes::parse("0-1,3").first_absent(0), 2);
    }
}
