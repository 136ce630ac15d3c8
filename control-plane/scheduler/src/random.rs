//! A small random number generator that breaks ties.

#[derive(Default)]
pub struct Random {
    seed: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { seed: seed | 1 }
    }

    /// Returns a number below `bound`, by xorshift.
    pub fn below(&mut self, bound: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % bound.max(1) as u64) as usize
    }
}
