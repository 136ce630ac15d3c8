//! The choice of a free node port.

/// Chooses a free port of the range: a random one of the upper part, then any, so that the lower part stays free for
/// Services that set their nodePort.
pub fn choose_port((first, last): (u16, u16), random: u64, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
    let size = u64::from(last.checked_sub(first)?) + 1;
    let lower = (size / 32).clamp(16, 128).min(size);
    let scan = |from: u64, count: u64| {
        let start = if count == 0 { 0 } else { random % count };
        (0..count).map(|i| first + (from + (start + i) % count) as u16).find(|port| !is_taken(*port))
    };
    scan(lower, size - lower).or_else(|| scan(0, lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_stay_in_range_and_run_out() {
        let mut taken = Vec::new();
        for random in 0..40 {
            let port = choose_port((30000, 30039), random * 7, |p| taken.contains(&p)).unwrap();
            assert!((30000..=30039).contains(&port) && !taken.contains(&port));
            taken.push(port);
        }
        assert_eq!(choose_port((30000, 30039), 0, |p| taken.contains(&p)), None);
        assert_eq!(choose_port((30000, 32767), 0, |_| false), Some(30086));
    }
}
