//! How the seats of the server are divided among its levels: by nominal shares, lent by quiet levels to busy ones. Pure.

/// What a level has, may lend and borrow, and wanted lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub nominal: u32,
    /// What it keeps, however quiet it is.
    pub least: u32,
    /// What it may have, however busy it is.
    pub most: u32,
    /// The most seats that it wanted at once since the last time.
    pub wanted: u32,
}

/// The seats of each level until the next time.
pub fn allocate(total: u32, levels: &[Demand]) -> Vec<u32> {
    // Everybody keeps its least; who wants more gets up to its nominal share, which nobody else can claim.
    let own = |level: &Demand| level.wanted.clamp(level.least.min(level.nominal), level.nominal.max(level.least));
    let mut seats: Vec<u32> = levels.iter().map(own).collect();
    let mut spare = i64::from(total) - seats.iter().map(|s| i64::from(*s)).sum::<i64>();
    // What is left goes to those who want to borrow, a seat at a time and by their shares, so that none takes all.
    loop {
        let mut wanting: Vec<usize> =
            (0..levels.len()).filter(|at| seats[*at] < levels[*at].wanted.min(levels[*at].most)).collect();
        if spare <= 0 || wanting.is_empty() {
            break;
        }
        wanting.sort_unstable_by_key(|at| (u64::from(seats[*at]) * 1000 / u64::from(levels[*at].nominal.max(1)), *at));
        seats[wanting[0]] += 1;
        spare -= 1;
    }
    // What nobody wants stays with its owners, so that the first of a burst need not wait for the next time.
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

    fn level(nominal: u32, lend: u32, most: u32, wanted: u32) -> Demand {
        Demand { nominal, least: nominal - lend, most, wanted }
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
        fn nobody_goes_below_its_least_nor_above_its_most(
            shares in proptest::collection::vec((1u32..100, 0u32..=100, 0u32..300, 0u32..500), 1..10)
        ) {
            let levels: Vec<Demand> = shares
                .iter()
                .map(|(nominal, lend, borrow, wanted)| level(*nominal, nominal * lend / 100, nominal + borrow, *wanted))
                .collect();
            let total = levels.iter().map(|l| l.nominal).sum();
            let seats = allocate(total, &levels);
            for (level, seats) in levels.iter().zip(&seats) {
                prop_assert!(*seats >= level.least.max(1).min(level.nominal.max(1)));
                prop_assert!(*seats <= level.most.max(1));
                prop_assert!(*seats >= level.wanted.min(level.nominal));
            }
            let least_one = levels.len() as u32;
            prop_assert!(seats.iter().sum::<u32>() <= total + least_one);
        }
    }
}
