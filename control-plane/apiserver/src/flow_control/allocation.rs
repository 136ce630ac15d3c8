//! Divides the server's seats among its priority levels: by nominal shares, lent by quiet levels to busy ones. Pure.

/// The seats of a level, its bounds for lending and borrowing, and its recent demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub nominal: u32,
    /// The minimum seats, which it never lends.
    pub min: u32,
    /// The maximum seats, including borrowed ones.
    pub max: u32,
    /// The peak demand for seats since the last allocation.
    pub wanted: u32,
}

/// Returns the seats of each level until the next allocation.
pub fn allocate(total: u32, levels: &[Demand]) -> Vec<u32> {
    // Each level keeps its minimum; with more demand, it gets up to its nominal share, which no other level can claim.
    let own = |level: &Demand| level.wanted.clamp(level.min.min(level.nominal), level.nominal.max(level.min));
    let mut seats: Vec<u32> = levels.iter().map(own).collect();
    let mut spare = i64::from(total) - seats.iter().map(|s| i64::from(*s)).sum::<i64>();
    // The remaining seats go to levels that borrow, one at a time and by their shares, so that none takes all.
    loop {
        let mut borrowers: Vec<usize> =
            (0..levels.len()).filter(|at| seats[*at] < levels[*at].wanted.min(levels[*at].max)).collect();
        if spare <= 0 || borrowers.is_empty() {
            break;
        }
        borrowers
            .sort_unstable_by_key(|at| (u64::from(seats[*at]) * 1000 / u64::from(levels[*at].nominal.max(1)), *at));
        seats[borrowers[0]] += 1;
        spare -= 1;
    }
    // Seats without demand stay with their owners, so that the start of a burst need not wait for the next allocation.
    for (at, level) in levels.iter().enumerate() {
        let back = i64::from(level.nominal.saturating_sub(seats[at])).min(spare.max(0));
        seats[at] += u32::try_from(back).unwrap_or(0);
        spare -= back;
    }
    seats.into_iter().map(|s| s.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn level(nominal: u32, lend: u32, max: u32, wanted: u32) -> Demand {
        Demand { nominal, min: nominal - lend, max, wanted }
    }

    #[test]
    fn quiet_levels_lend() {
        for (levels, expected) in [
            (vec![level(50, 25, 100, 0), level(50, 25, 100, 0)], vec![50, 50]),
            (vec![level(50, 25, 100, 0), level(50, 25, 100, 200)], vec![25, 75]),
            (vec![level(50, 25, 100, 200), level(50, 25, 100, 200)], vec![50, 50]),
            (vec![level(50, 0, 100, 0), level(50, 25, 100, 200)], vec![50, 50]),
            (vec![level(50, 50, 100, 10), level(50, 25, 60, 200)], vec![40, 60]),
        ] {
            assert_eq!(allocate(100, &levels), expected, "{levels:?}");
        }
    }

    proptest! {
        #[test]
        fn no_level_goes_below_its_minimum_nor_above_its_maximum(
            shares in proptest::collection::vec((1u32..100, 0u32..=100, 0u32..300, 0u32..500), 1..10)
        ) {
            let levels: Vec<Demand> = shares
                .iter()
                .map(|(nominal, lend, borrow, wanted)| level(*nominal, nominal * lend / 100, nominal + borrow, *wanted))
                .collect();
            let total = levels.iter().map(|l| l.nominal).sum();
            let seats = allocate(total, &levels);
            for (level, seats) in levels.iter().zip(&seats) {
                prop_assert!(*seats >= level.min.max(1).min(level.nominal.max(1)));
                prop_assert!(*seats <= level.max.max(1));
                prop_assert!(*seats >= level.wanted.min(level.nominal));
            }
            let least_one = levels.len() as u32;
            prop_assert!(seats.iter().sum::<u32>() <= total + least_one);
        }
    }
}
