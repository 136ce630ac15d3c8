//! Integers of any length for quantities, held in sixteen bytes as long as they fit.
//!
//! No operation takes more time than numbers of [`MAX_DIGITS`] digits need.

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive};
use std::cmp::Ordering;
use std::fmt;

/// The most digits that are kept, and the greatest power of ten that a number is multiplied by.
pub const MAX_DIGITS: usize = 1000;

/// An integer. Invariant: it is big only if it does not fit an `i128`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Integer {
    Small(i128),
    Big(Box<BigInt>),
}

use Integer::{Big, Small};

impl Integer {
    pub const ZERO: Integer = Small(0);

    fn new(number: BigInt) -> Integer {
        number.to_i128().map_or_else(|| Big(Box::new(number)), Small)
    }

    fn big(&self) -> BigInt {
        match self {
            Small(number) => BigInt::from(*number),
            Big(number) => (**number).clone(),
        }
    }

    /// Reads digits. Rounds up beyond [`MAX_DIGITS`], and returns the number of dropped digits.
    pub fn read(digits: &str) -> (Integer, usize) {
        let digits = digits.trim_start_matches('0');
        let (kept, dropped) = digits.split_at(digits.len().min(MAX_DIGITS));
        let number = match kept.parse() {
            Ok(number) => Small(number),
            Err(_) => kept.parse().map_or(Integer::ZERO, Integer::new),
        };
        let rest = i128::from(dropped.contains(|digit| digit != '0'));
        (number.plus(&Small(rest)), dropped.len())
    }

    pub fn signum(&self) -> i8 {
        match self {
            Small(number) => number.signum() as i8,
            Big(number) => {
                if number.is_negative() {
                    -1
                } else {
                    1
                }
            }
        }
    }

    pub fn is_zero(&self) -> bool {
        self.signum() == 0
    }

    pub fn plus(&self, other: &Integer) -> Integer {
        match (self, other) {
            (Small(a), Small(b)) if a.checked_add(*b).is_some() => Small(a + b),
            _ => Integer::new(self.big() + other.big()),
        }
    }

    pub fn times(&self, factor: i128) -> Integer {
        match self {
            Small(number) if number.checked_mul(factor).is_some() => Small(number * factor),
            _ => Integer::new(self.big() * factor),
        }
    }

    /// Returns the number times a power of ten, unless that is too long.
    pub fn raised(&self, power: i32) -> Option<Integer> {
        let power = u32::try_from(power).ok()?;
        match self {
            Small(0) => Some(Integer::ZERO),
            _ if power as usize > MAX_DIGITS => None,
            _ => Some(match 10i128.checked_pow(power) {
                Some(factor) => self.times(factor),
                None => Integer::new(self.big() * BigInt::from(10).pow(power)),
            }),
        }
    }

    /// Returns the number divided by a power of ten, rounded away from zero.
    pub fn lowered(&self, power: u32) -> Integer {
        match (self, 10i128.checked_pow(power)) {
            (Small(number), Some(divisor)) => Small(number / divisor + (number % divisor).signum()),
            _ if power as usize > MAX_DIGITS => Small(i128::from(self.signum())),
            _ => {
                let divisor = BigInt::from(10).pow(power);
                let number = self.big();
                let rest = self.big() % &divisor;
                Integer::new(number / divisor + rest.signum())
            }
        }
    }

    /// Returns the number without its trailing zeros, and their count.
    pub fn trimmed(self) -> (Integer, i32) {
        match self {
            Small(0) => (Integer::ZERO, 0),
            Small(mut number) => {
                let mut zeros = 0;
                while number % 10 == 0 {
                    number /= 10;
                    zeros += 1;
                }
                (Small(number), zeros)
            }
            Big(number) => {
                let text = number.to_string();
                let kept = text.trim_end_matches('0');
                let zeros = i32::try_from(text.len() - kept.len()).unwrap_or(i32::MAX);
                (kept.parse().map_or(Integer::ZERO, Integer::new), zeros)
            }
        }
    }

    /// Returns the number, or the end of the range that it is beyond.
    pub fn saturated(&self) -> i128 {
        match self {
            Small(number) => *number,
            Big(number) => {
                if number.is_negative() {
                    i128::MIN
                } else {
                    i128::MAX
                }
            }
        }
    }

    /// Returns the lowest 64 bits.
    pub fn lowest(&self) -> i64 {
        match self {
            Small(number) => *number as i64,
            Big(number) => {
                let bits = number.iter_u64_digits().next().unwrap_or_default() as i64;
                if number.is_negative() { bits.wrapping_neg() } else { bits }
            }
        }
    }

    pub fn as_f64(&self) -> f64 {
        match self {
            Small(number) => *number as f64,
            Big(number) => number.to_f64().unwrap_or(f64::INFINITY),
        }
    }
}

impl std::ops::Neg for Integer {
    type Output = Integer;
    fn neg(self) -> Integer {
        self.times(-1)
    }
}

impl Ord for Integer {
    fn cmp(&self, other: &Integer) -> Ordering {
        match (self, other) {
            (Small(a), Small(b)) => a.cmp(b),
            _ => self.big().cmp(&other.big()),
        }
    }
}
impl PartialOrd for Integer {
    fn partial_cmp(&self, other: &Integer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Small(number) => number.fmt(f),
            Big(number) => number.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_numbers_are_exact() {
        let nines = "9".repeat(50);
        let (number, dropped) = Integer::read(&nines);
        assert_eq!((number.to_string(), dropped), (nines.clone(), 0));
        assert_eq!(number.plus(&Small(1)).trimmed(), (Small(1), 50));
        assert_eq!(number.lowered(49).to_string(), "10");
        assert_eq!(number.raised(3).unwrap().to_string(), nines + "000");
        assert_eq!(number.raised(1001), None);
        assert_eq!((-number.clone()).lowered(2000), Small(-1));
        assert_eq!(number.plus(&-number.clone()), Integer::ZERO);
        let (cut, dropped) = Integer::read(&("1".repeat(1000) + "5"));
        assert_eq!((cut.to_string(), dropped), ("1".repeat(999) + "2", 1));
    }

    proptest! {
        /// Both representations give the same result.
        #[test]
        fn big_and_small_agree(a: i64, b: i64, power in 0i32..18) {
            let one = Small(a.into());
            let other = Small(b.into());
            let large = one.raised(100).unwrap();
            let shift = other.raised(100).unwrap();
            prop_assert_eq!(large.cmp(&shift), a.cmp(&b));
            prop_assert_eq!(large.plus(&shift).lowered(100), one.plus(&other));
            let raised = one.raised(power).unwrap();
            prop_assert_eq!(raised.lowest(), (a as i128 * 10i128.pow(power as u32)) as i64);
            prop_assert_eq!(raised.raised(60).unwrap().lowered(60 + power as u32), one);
        }
    }
}
