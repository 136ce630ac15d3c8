//! Ranges of costs and sizes. They saturate instead of overflowing.

use std::ops::Add;

/// The range of a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostEstimate {
    pub min: u64,
    pub max: u64,
}

/// The range of a size: characters, bytes, items or entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub min: u64,
    pub max: u64,
}

pub const ZERO: CostEstimate = CostEstimate { min: 0, max: 0 };
pub const ONE: CostEstimate = CostEstimate { min: 1, max: 1 };

/// Returns a share of a number, rounded up.
pub fn share(number: u64, factor: f64) -> u64 {
    let product = (number as f64 * factor).ceil();
    if product >= u64::MAX as f64 { u64::MAX } else { product as u64 }
}

impl CostEstimate {
    pub fn fixed(cost: u64) -> CostEstimate {
        CostEstimate { min: cost, max: cost }
    }

    pub fn union(self, other: CostEstimate) -> CostEstimate {
        CostEstimate { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub fn product(self, other: CostEstimate) -> CostEstimate {
        CostEstimate { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub fn share(self, factor: f64) -> CostEstimate {
        CostEstimate { min: share(self.min, factor), max: share(self.max, factor) }
    }
}

impl Add for CostEstimate {
    type Output = CostEstimate;

    fn add(self, other: CostEstimate) -> CostEstimate {
        CostEstimate { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }
}

impl Size {
    pub const UNKNOWN: Size = Size { min: 0, max: u64::MAX };

    pub fn fixed(size: u64) -> Size {
        Size { min: size, max: size }
    }

    pub fn union(self, other: Size) -> Size {
        Size { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub fn plus(self, other: Size) -> Size {
        Size { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub fn product(self, other: Size) -> Size {
        Size { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Returns the cost of `factor` for each.
    pub fn share(self, factor: f64) -> CostEstimate {
        CostEstimate { min: share(self.min, factor), max: share(self.max, factor) }
    }

    /// Returns the cost of repeating something.
    pub fn times(self, cost: CostEstimate) -> CostEstimate {
        CostEstimate { min: self.min.saturating_mul(cost.min), max: self.max.saturating_mul(cost.max) }
    }
}
