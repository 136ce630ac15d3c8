//! A CPU set in the kernel's list format: `0-3,8`. Pure.

use std::collections::BTreeSet;

pub type CpuSet = BTreeSet<u32>;

/// Parses a list; `None` if it is invalid.
pub fn parse(text: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // No machine has more CPUs, and a list must not fill the memory.
        if last < first || last > 65_535 {
            return None;
        }
        set.extend(first..=last);
    }
    Some(set)
}

pub fn format(set: &CpuSet) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in set {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let written = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    written.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["", "0", "0-3", "0-3,8", "1,3,5-6"] {
            assert_eq!(format(&parse(text).unwrap()), text);
        }
        assert_eq!(format(&parse("3,1,2").unwrap()), "1-3");
        for wrong in ["a", "3-1", "0-99999999"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
