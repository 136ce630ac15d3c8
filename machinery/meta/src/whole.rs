//! Whole numbers of any length, held in sixteen bytes as long as they fit: what amounts are counted in.
//!
//! Nothing here takes more time than numbers of [`MAX_DIGITS`] digits need, whoever wrote them.

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive};
use std::cmp::Ordering;
use std::fmt;

/// The most digits that are kept, and the greatest power of ten that a number is raised by.
pub const MAX_DIGITS: usize = 1000;

/// A whole number. Invariant: it is big only if it does not fit otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Whole {
    Small(i128),
    Big(Box<BigInt>),
}

use Whole::{Big, Small};

impl Whole {
    pub const ZERO: Whole = Small(0);

    fn new(number: BigInt) -> Whole {
        number.to_i128().map_or_else(|| Big(Box::new(number)), Small)
    }

    fn big(&self) -> BigInt {
        match self {
            Small(number) => BigInt::from(*number),
            Big(number) => (**number).clone(),
        }
    }

    /// Reads digits. What is more than is kept is rounded up, and counted.
    pub fn read(digits: &str) -> (Whole, usize) {
        let digits = digits.trim_start_matches('0');
        let (kept, dropped) = digits.split_at(digits.len().min(MAX_DIGITS));
        let number = match kept.parse() {
            Ok(number) => Small(number),
            Err(_) => kept.parse().map_or(Whole::ZERO, Whole::new),
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

    pub fn plus(&self, other: &Whole) -> Whole {
        match (self, other) {
            (Small(a), Small(b)) if a.checked_add(*b).is_some() => Small(a + b),
            _ => Whole::new(self.big() + other.big()),
        }
    }

    pub fn times(&self, factor: i128) -> Whole {
        match self {
            Small(number) if number.checked_mul(factor).is_some() => Small(number * factor),
            _ => Whole::new(self.big() * factor),
        }
    }

    /// The number times a power of ten, unless that is too much.
    pub fn raised(&self, power: i32) -> Option<Whole> {
        let power = u32::try_from(power).ok()?;
        match self {
            Small(0) => Some(Whole::ZERO),
            _ if power as usize > MAX_DIGITS => None,
            _ => Some(match 10i128.checked_pow(power) {
                Some(factor) => self.times(factor),
                None => Whole::new(self.big() * BigInt::from(10).pow(power)),
            }),
        }
    }

    /// The number divided by a power of ten, rounded away from zero.
    pub fn lowered(&self, power: u32) -> Whole {
        match (self, 10i128.checked_pow(power)) {
            (Small(number), Some(divisor)) => Small(number / divisor + (number % divisor).signum()),
            _ if power as usize > MAX_DIGITS => Small(i128::from(self.signum())),
            _ => {
                let divisor = BigInt::from(10).pow(power);
                let (number, rest) = (self.big(), self.big() % &divisor);
                Whole::new(number / divisor + rest.signum())
            }
        }
    }

    /// The number without the zeros at its end, and how many these are.
    pub fn trimmed(self) -> (Whole, i32) {
        match self {
            Small(0) => (Whole::ZERO, 0),
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
                (kept.parse().map_or(Whole::ZERO, Whole::new), zeros)
            }
        }
    }

    /// The number, or the end of the range that it is beyond.
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

    /// The lowest 64 bits.
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

impl std::ops::Neg for Whole {
    type Output = Whole;
    fn neg(self) -> Whole {
        self.times(-1)
    }
}

impl Ord for Whole {
    fn cmp(&self, other: &Whole) -> Ordering {
        match (self, other) {
            (Small(a), Small(b)) => a.cmp(b),
            _ => self.big().cmp(&other.big()),
        }
    }
}
impl PartialOrd for Whole {
    fn partial_cmp(&self, other: &Whole) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Whole {
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
        let (number, dropped) = Whole::read(&nines);
        assert_eq!((number.to_string(), dropped), (nines.clone(), 0));
        assert_eq!(number.plus(&Small(1)).trimmed(), (Small(1), 50));
        assert_eq!(number.lowered(49).to_string(), "10");
        assert_eq!(number.raised(3).unwrap().to_string(), nines + "000");
        assert_eq!(number.raised(1001), None);
        assert_eq!((-number.clone()).lowered(2000), Small(-1));
        assert_eq!(number.plus(&-number.clone()), Whole::ZERO);
        let (cut, dropped) = Whole::read(&("1".repeat(1000) + "5"));
        assert_eq!((cut.to_string(), dropped), ("1".repeat(999) + "2", 1));
    }

    proptest! {
        /// What fits is the same, however it was computed.
        #[test]
        fn big_and_small_agree(a: i64, b: i64, power in 0i32..18) {
            let (one, other) = (Small(a.into()), Small(b.into()));
            let (large, shift) = (one.raised(100).unwrap(), other.raised(100).unwrap());
            prop_assert_eq!(large.cmp(&shift), a.cmp(&b));
            prop_assert_eq!(large.plus(&shift).lowered(100), one.plus(&other));
            let raised = one.raised(power).unwrap();
            prop_assert_eq!(raised.lowest(), (a as i128 * 10i128.pow(power as u32)) as i64);
            prop_assert_eq!(raised.raised(60).unwrap().lowered(60 + power as u32), one);
        }
    }
}
