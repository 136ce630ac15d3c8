//! Resource quantities: `100m`, `1.5Gi`, `1e3`. Exact decimal arithmetic down to a billionth; printed in the same
//! canonical form, and with the same format kept, as every other Kubernetes component prints them.

use crate::Error;
use crate::integer::Integer;
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// The family of suffixes that a quantity is written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
    /// `12e6`
    DecimalExponent,
}

/// A fixed-point number with a format. Equality and order are by value: `1` equals `1000m`.
///
/// Invariant: the value is `mantissa * 10^exponent`, `exponent >= -9`, and the mantissa has no trailing decimal zero
/// (zero is `0 * 10^0`), so equal values have equal representations.
#[derive(Debug, Clone)]
pub struct Quantity {
    mantissa: Integer,
    exponent: i32,
    format: Format,
    held: Held,
    /// Whether upstream keeps the string that the quantity was read from.
    keeps_text: bool,
    /// That string, where it is not canonical (`1.500`, `+1`).
    text: Option<Box<str>>,
}

/// Upstream's internal form of a quantity. It decides the result of [`Quantity::value`] beyond an `i64`, and whether
/// two quantities of equal value are equal as Go values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// An `i64` and its power of ten.
    Small(i32),
    /// An `i64` that became a decimal number because it was compared with one.
    Compared(i32),
    /// A decimal number of any length.
    Big,
}

const INVALID_FORMAT: Error =
    Error::Quantity("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'");
const INVALID_SUFFIX: Error = Error::Quantity("unable to parse quantity's suffix");
const INVALID_NUMBER: Error = Error::Quantity("unable to parse numeric part of quantity");

/// The smallest power of ten: quantities are exact to a billionth.
const NANO: i32 = -9;

/// The greatest power of ten.
const MAX_POWER: i32 = 1_000_000;

/// The number of digits up to which upstream's estimate says that a number fits an int64 and keeps its string.
const MAX_INT64_DIGITS: usize = 18;

/// The greatest value that fits an `i64` in thousandths.
pub const MAX_MILLI_VALUE: i64 = i64::MAX / 1000;

impl Quantity {
    pub fn zero() -> Quantity {
        Quantity::normal(Integer::ZERO, 0, Format::DecimalSi)
    }

    /// Normalizes a value, rounding away from zero below a billionth.
    fn normal(mantissa: Integer, exponent: i32, format: Format) -> Quantity {
        let mut mantissa = mantissa;
        let mut exponent = exponent;
        if exponent < NANO {
            mantissa = mantissa.lowered(exponent.abs_diff(NANO));
            exponent = NANO;
        }
        let (mantissa, zeros) = mantissa.trimmed();
        exponent = if mantissa.is_zero() { 0 } else { exponent + zeros };
        Quantity { mantissa, exponent, format, held: Held::Small(exponent), keeps_text: false, text: None }
    }

    pub fn parse(text: &str) -> Result<Quantity, Error> {
        let parts = Parts::split(text)?;
        let number = &text[..text.len() - parts.suffix.len()];
        let (scale, format) = interpret(parts.suffix).ok_or(INVALID_SUFFIX)?;
        let digits = parts.whole.len() + parts.fraction.len();
        let (mut mantissa, dropped) = Integer::read(&format!("{}{}", parts.whole, parts.fraction));
        let [dropped, fraction] = [dropped, parts.fraction.len()].map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        let mut exponent = dropped - fraction;
        match scale {
            Scale::Decimal(power) => exponent = exponent.saturating_add(power),
            Scale::Binary(power) => mantissa = mantissa.times(1 << power),
        }
        let mut quantity = Quantity::normal(mantissa, exponent, format);
        quantity.held = held(&parts, scale);
        if quantity.held == Held::Big && !number.contains(|c: char| c.is_ascii_digit()) {
            return Err(INVALID_NUMBER);
        }
        if format == Format::BinarySi {
            quantity = cap_binary(quantity, &parts);
        }
        if parts.negative {
            quantity = Quantity { mantissa: -quantity.mantissa, ..quantity };
        }
        quantity.keeps_text = text == "0" || keeps_text(&parts, scale, digits);
        if quantity.keeps_text && quantity.canonical() != text {
            quantity.text = Some(text.into());
        }
        Ok(quantity)
    }

    pub fn from_value(value: i64, format: Format) -> Quantity {
        Quantity::normal(Integer::Small(value.into()), 0, format)
    }

    pub fn from_milli(milli: i128, format: Format) -> Quantity {
        Quantity::normal(Integer::Small(milli), -3, format)
    }

    /// Returns the quantity in whole thousandths, rounded away from zero.
    #[must_use]
    pub fn rounded_to_milli(&self) -> Quantity {
        let Some(milli) = self.scaled(-3) else { return self.clone() };
        let rounded = Quantity::normal(milli, -3, self.format);
        if self.held == Held::Big { Quantity { held: Held::Big, ..rounded } } else { rounded }
    }

    /// Returns a string that preserves the value and its internal form. The canonical string loses them if the value is
    /// too large for upstream's integers or suffixes.
    pub fn exact(&self) -> String {
        let text = self.to_string();
        let is_exact = |read: Quantity| read == *self && (read.held == self.held || !self.is_counted_otherwise());
        if Quantity::parse(&text).is_ok_and(is_exact) {
            return text;
        }
        // Leading zeros make it long enough for the decimal form.
        let suffix = if self.format == Format::DecimalExponent { "e-3" } else { "m" };
        self.scaled(-3).map_or(text, |milli| format!("{milli}.{:0<1$}{suffix}", "", MAX_INT64_DIGITS))
    }

    /// Makes a quantity of bytes, printed with `Ki`, `Mi`, `Gi`.
    pub fn from_bytes(bytes: i64) -> Quantity {
        Quantity::from_value(bytes, Format::BinarySi)
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Reads a JSON value: a string, which may have spaces around it, or a bare number as YAML has it.
    pub fn from_json(value: &serde_json::Value) -> Result<Quantity, Error> {
        match value {
            serde_json::Value::String(text) => Quantity::parse(text.trim()),
            serde_json::Value::Number(number) => Quantity::parse(&number.to_string()),
            serde_json::Value::Null => Ok(Quantity::zero()),
            _ => Err(INVALID_FORMAT),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.mantissa.is_zero()
    }

    /// Returns -1, 0 or 1.
    pub fn sign(&self) -> i8 {
        self.mantissa.signum()
    }

    /// Returns the value in units as upstream's `Value()` does: rounded away from zero, and wrong beyond an `i64`.
    pub fn value(&self) -> i64 {
        self.counted(0)
    }

    /// Returns the value in thousandths as upstream's `MilliValue()` does.
    pub fn milli_value(&self) -> i64 {
        self.counted(-3)
    }

    /// Scales the value as upstream does, within an `i64`: an overflow keeps the lowest bits or, multiplied step by
    /// step, becomes 0. A negative value held as a decimal number is truncated before it is divided.
    fn counted(&self, power: i32) -> i64 {
        let lowest =
            |mantissa: &Integer, shift: i32| mantissa.lowest().wrapping_mul(10i64.wrapping_pow(shift.unsigned_abs()));
        let exact = self.scaled(power);
        let shift = self.exponent - power;
        let small = exact.as_ref().and_then(|exact| i64::try_from(exact.saturated()).ok());
        match self.held {
            Held::Big if self.sign() < 0 => {
                let cut = self.scaled(-3).unwrap_or(Integer::ZERO).lowest();
                if power == 0 { cut / 1000 + i64::from(cut % 1000 != 0) } else { cut }
            }
            _ if let Some(small) = small => small,
            Held::Small(scale) if matches!(scale - power, 1 | 2 | 3 | 6 | 9) => lowest(&self.mantissa, shift),
            Held::Small(_) => 0,
            // The power itself may overflow, to the least integer.
            Held::Compared(scale) if scale - power > 18 => {
                lowest(&self.mantissa, self.exponent - scale).wrapping_mul(i64::MIN)
            }
            Held::Compared(_) => lowest(&self.mantissa, shift),
            Held::Big if shift >= 0 => lowest(&self.mantissa, shift),
            Held::Big => exact.unwrap_or(Integer::ZERO).lowest(),
        }
    }

    /// Returns the internal form after upstream compared this quantity with others: a comparison with a decimal number
    /// converts it.
    #[must_use]
    pub fn compared_with<'a>(&self, others: impl IntoIterator<Item = &'a Quantity>) -> Quantity {
        let held = match self.held {
            Held::Small(scale) if others.into_iter().any(|other| other.held == Held::Big) => Held::Compared(scale),
            held => held,
        };
        Quantity { held, ..self.clone() }
    }

    /// Reports whether the value does not fit an `i64` in thousandths.
    pub fn is_beyond_milli(&self) -> bool {
        i64::try_from(self.as_milli()).is_err()
    }

    /// Reports whether upstream's `Value()` or `MilliValue()` differs from the value. That depends on the internal
    /// form.
    pub fn is_counted_otherwise(&self) -> bool {
        self.is_beyond_milli() || self.held == Held::Big && self.sign() < 0
    }

    /// Reports whether it is not a whole number of thousandths.
    pub fn is_finer_than_milli(&self) -> bool {
        self.exponent < -3
    }

    /// Reports whether two quantities are equal as Go values: also in their internal form and format.
    pub fn is_held_as(&self, other: &Quantity) -> bool {
        let form = |of: &Quantity| (of.held, of.format, of.keeps_text, of.text.clone());
        self == other && form(self) == form(other)
    }

    /// Returns the value in units, rounded away from zero; saturates.
    pub fn as_value(&self) -> i128 {
        self.saturated(0)
    }

    /// Returns the value in thousandths, rounded away from zero; saturates.
    pub fn as_milli(&self) -> i128 {
        self.saturated(-3)
    }

    /// Returns the value in units as an `i64`; saturates.
    pub fn as_i64(&self) -> i64 {
        self.as_value().clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    pub fn as_f64(&self) -> f64 {
        self.mantissa.as_f64() * 10f64.powi(self.exponent)
    }

    /// Returns the value in units of `10^power`, rounded away from zero, unless it is too long.
    fn scaled(&self, power: i32) -> Option<Integer> {
        let shift = self.exponent - power;
        if shift < 0 { Some(self.mantissa.lowered(shift.unsigned_abs())) } else { self.mantissa.raised(shift) }
    }

    fn saturated(&self, power: i32) -> i128 {
        let end = if self.sign() < 0 { i128::MIN } else { i128::MAX };
        self.scaled(power).map_or(end, |scaled| scaled.saturated())
    }

    /// Returns both mantissas at the smaller exponent, unless they are too far apart.
    fn align(&self, other: &Quantity) -> Option<(Integer, Integer, i32)> {
        let exponent = self.exponent.min(other.exponent);
        let left = self.mantissa.raised(self.exponent - exponent)?;
        let right = other.mantissa.raised(other.exponent - exponent)?;
        Some((left, right, exponent))
    }

    /// Returns the sum, or the operand that is larger by far.
    fn plus(&self, other: &Quantity) -> Quantity {
        // Zero takes the format of the first quantity that is added.
        let format = if self.is_zero() { other.format } else { self.format };
        match self.align(other) {
            Some((a, b, exponent)) => Quantity::normal(a.plus(&b), exponent, format),
            None => {
                let larger = if self.exponent > other.exponent { self } else { other };
                Quantity { format, keeps_text: false, text: None, ..larger.clone() }
            }
        }
    }

    fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".into();
        }
        match self.format {
            Format::BinarySi => self.binary_text().unwrap_or_else(|| self.decimal_text(Format::DecimalSi)),
            other => self.decimal_text(other),
        }
    }

    /// Formats mantissa and exponent with the exponent a multiple of three.
    fn decimal_text(&self, format: Format) -> String {
        let exponent = self.exponent.div_euclid(3) * 3;
        let mantissa = self.mantissa.times(10i128.pow(self.exponent.abs_diff(exponent)));
        let suffix = match (format, exponent) {
            (_, 0) => String::new(),
            (Format::DecimalExponent, e) => format!("e{e}"),
            // Upstream writes no suffix beyond the known ones, and so writes `1000E` as `1`.
            (_, e) => DECIMAL_SUFFIXES.iter().find(|s| s.1 == e).map(|s| s.0.to_owned()).unwrap_or_default(),
        };
        format!("{mantissa}{suffix}")
    }

    /// Formats with a binary suffix. `None` if the number is small or has a fraction: then it is printed as a decimal
    /// one.
    fn binary_text(&self) -> Option<String> {
        if self.exponent < 0 {
            return None;
        }
        let Some(Integer::Small(mut value)) = self.scaled(0) else { return None };
        if value.abs() < 1024 {
            return None;
        }
        let mut suffix = "";
        for (name, _) in BINARY_SUFFIXES {
            if value % 1024 != 0 {
                break;
            }
            value /= 1024;
            suffix = name;
        }
        Some(format!("{value}{suffix}"))
    }
}

/// The parts of a quantity's string: sign, digits before and after the point, suffix.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Parts<'a>, Error> {
        if text.is_empty() {
            return Err(INVALID_FORMAT);
        }
        let negative = text.starts_with('-');
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let rest = rest.trim_start_matches('0');
        let (whole, rest) = split_digits(rest);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        let tail = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
        if !tail.bytes().all(|b| b.is_ascii_digit()) {
            return Err(INVALID_FORMAT);
        }
        Ok(Parts { negative, whole, fraction, suffix })
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()))
}

#[derive(Clone, Copy)]
enum Scale {
    /// A power of ten.
    Decimal(i32),
    /// A power of two.
    Binary(u32),
}

const DECIMAL_SUFFIXES: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_SUFFIXES: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

fn interpret(suffix: &str) -> Option<(Scale, Format)> {
    if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|s| s.0 == suffix) {
        return Some((Scale::Decimal(*power), Format::DecimalSi));
    }
    if let Some((_, power)) = BINARY_SUFFIXES.iter().find(|s| s.0 == suffix) {
        return Some((Scale::Binary(*power), Format::BinarySi));
    }
    // Upstream keeps the lowest bits of an exponent that overflows.
    let power = suffix.strip_prefix(['e', 'E'])?.parse::<i64>().ok()? as i32;
    Some((Scale::Decimal(power.clamp(-MAX_POWER, MAX_POWER)), Format::DecimalExponent))
}

/// Caps a binary quantity at the greatest int64. A binary quantity below one becomes decimal.
fn cap_binary(quantity: Quantity, parts: &Parts<'_>) -> Quantity {
    let limit = Quantity::from_value(i64::MAX, Format::BinarySi);
    if quantity > limit {
        return Quantity { held: quantity.held, ..limit };
    }
    let fractional = !parts.fraction.is_empty() && quantity.exponent < 0;
    let below_one = fractional && quantity < Quantity::from_value(1, Format::BinarySi);
    if below_one { Quantity { format: Format::DecimalSi, ..quantity } } else { quantity }
}

/// Returns the internal form by upstream's estimate of the digits: an `i64` if it fits.
fn held(parts: &Parts<'_>, scale: Scale) -> Held {
    let whole = parts.whole.len().max(1);
    match scale {
        Scale::Decimal(power) => {
            let fraction = parts.fraction.len();
            let scale = power.saturating_sub(i32::try_from(fraction).unwrap_or(i32::MAX));
            if whole + fraction <= MAX_INT64_DIGITS && scale >= NANO { Held::Small(scale) } else { Held::Big }
        }
        Scale::Binary(power) => {
            let fits =
                || parts.whole.parse::<i64>().map_or(parts.whole.is_empty(), |v| v.checked_mul(1 << power).is_some());
            let is_small = parts.fraction.is_empty() && binary_digits_left(whole, power) >= 0 && fits();
            if is_small { Held::Small(0) } else { Held::Big }
        }
    }
}

/// Returns upstream's estimate of the digits that are left of an `i64`.
fn binary_digits_left(digits: usize, power: u32) -> i64 {
    15 - digits as i64 - (power as f32 * 3.0 / 10.0) as i64 - 1
}

/// Reports whether upstream keeps the string as it was read, because a quick check says that it is canonical. The check
/// is imprecise, and clients see its result.
fn keeps_text(parts: &Parts<'_>, scale: Scale, digits: usize) -> bool {
    match scale {
        Scale::Decimal(power) => {
            let exponent = power - parts.fraction.len() as i32;
            // An integer part of only zeros counts as one digit "0".
            digits.max(1) <= MAX_INT64_DIGITS
                && exponent >= NANO
                && exponent % 3 == 0
                && !parts.whole.is_empty()
                && !format!("{}{}", parts.whole, parts.fraction).ends_with("000")
        }
        Scale::Binary(power) => {
            parts.fraction.is_empty()
                && binary_digits_left(parts.whole.len().max(1), power) >= 0
                && parts
                    .whole
                    .parse::<i64>()
                    .is_ok_and(|value| value & 7 != 0 && value.checked_mul(1 << power).is_some())
        }
    }
}

impl Default for Quantity {
    fn default() -> Quantity {
        Quantity::zero()
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = Error;
    fn from_str(text: &str) -> Result<Quantity, Error> {
        Quantity::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.mantissa == other.mantissa && self.exponent == other.exponent
    }
}
impl Eq for Quantity {}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.mantissa, self.exponent).hash(state);
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        match self.align(other) {
            Some((left, right, _)) => left.cmp(&right),
            // The values are too far apart to align: signs and then powers decide.
            None => self.sign().cmp(&other.sign()).then_with(|| match self.sign() {
                1 => self.exponent.cmp(&other.exponent),
                _ => other.exponent.cmp(&self.exponent),
            }),
        }
    }
}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Neg for Quantity {
    type Output = Quantity;
    fn neg(self) -> Quantity {
        Quantity { mantissa: -self.mantissa, keeps_text: false, text: None, ..self }
    }
}
impl Add for Quantity {
    type Output = Quantity;
    fn add(self, other: Quantity) -> Quantity {
        self.plus(&other)
    }
}
impl Sub for Quantity {
    type Output = Quantity;
    fn sub(self, other: Quantity) -> Quantity {
        self.plus(&-other)
    }
}
impl AddAssign<&Quantity> for Quantity {
    fn add_assign(&mut self, other: &Quantity) {
        *self = self.plus(other);
    }
}
impl SubAssign<&Quantity> for Quantity {
    fn sub_assign(&mut self, other: &Quantity) {
        *self = self.plus(&-other.clone());
    }
}
impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(items: I) -> Quantity {
        items.fold(Quantity::zero(), Add::add)
    }
}
