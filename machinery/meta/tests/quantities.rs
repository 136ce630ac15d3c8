//! Tests of quantities: upstream's canonical forms, errors and arithmetic.

use corten_meta::Quantity;
use corten_meta::quantity::Format;
use proptest::prelude::*;

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

#[test]
fn canonical_forms() {
    for (text, printed) in [
        ("0", "0"),
        ("0n", "0"),
        ("0Ki", "0"),
        ("-", "0"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.5", "1500m"),
        ("1", "1"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("10000", "10k"),
        ("123456", "123456"),
        ("1Ki", "1Ki"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1023Ki", "1023Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("0.5Mi", "512Ki"),
        ("0.25Ki", "256"),
        ("0.0001Ki", "102400u"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1e-3", "1e-3"),
        ("10e3", "10e3"),
        ("100e1", "1e3"),
        ("12.345678", "12.345678"),
        ("1.500", "1.500"),
        ("+1", "+1"),
        ("-1.5", "-1500m"),
        ("-1Gi", "-1Gi"),
        ("0.0000000001", "1n"),
        ("1.0000000001", "1000000001n"),
        ("8Ei", "9223372036854775807"),
        ("100E", "100E"),
        ("1000E", "1"),
        ("1200000000000000000000000", "1200"),
        ("1e300", "1e300"),
        ("1e-2147483648", "1e-9"),
        ("340282366920938463463374607431768211456k", "340282366920938463463374607431768211456k"),
        (
            "+42328059832468203417684878706524706900592.00000000001e392",
            "4232805983246820341768487870652470690059200000000001e381",
        ),
        ("-999999999999999999999999999999999999.00000000001E9", "-999999999999999999999999999999999999000000000010e-3"),
        ("99999999999999999999999999999999999999999.0000000001", "99999999999999999999999999999999999999999000000001n"),
        (
            "00000000000000000000000000000000000000000000000000000000005",
            "00000000000000000000000000000000000000000000000000000000005",
        ),
        ("1e4294967299", "1e4294967299"),
        ("1P", "1P"),
        ("5T", "5T"),
        ("3u", "3u"),
        ("1.", "1."),
    ] {
        assert_eq!(quantity(text).to_string(), printed, "{text:?}");
    }
}

#[test]
fn refuses() {
    let format = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let suffix = "unable to parse quantity's suffix";
    for (text, message) in [
        ("", format),
        ("1 ", format),
        ("1.1.1", format),
        ("1x", format),
        ("abc", format),
        ("1i", suffix),
        ("1ki", suffix),
        ("1Ki5", suffix),
        ("1e", suffix),
        ("1ee3", suffix),
    ] {
        assert_eq!(Quantity::parse(text).expect_err(text).to_string(), message, "{text:?}");
    }
}

#[test]
fn values_round_away_from_zero() {
    for (text, value, milli) in [
        ("1", 1, 1000),
        ("100m", 1, 100),
        ("1500m", 2, 1500),
        ("-1500m", -2, -1500),
        ("1n", 1, 1),
        ("-1n", -1, -1),
        ("1Gi", 1 << 30, (1 << 30) * 1000),
        ("0", 0, 0),
        ("1e3", 1000, 1_000_000),
    ] {
        assert_eq!((quantity(text).as_value(), quantity(text).as_milli()), (value, milli), "{text}");
    }
    assert_eq!(quantity("1e300").as_value(), i128::MAX);
    assert_eq!(quantity("1e300").as_i64(), i64::MAX);
}

#[test]
fn values_beyond_an_integer_overflow_as_upstreams() {
    for (text, value, milli) in [
        ("1500m", 2, 1500),
        ("9223372036854775807", i64::MAX, -1000),
        ("9223372036854775808", i64::MIN, 0),
        ("18446744073709551617", 1, 1000),
        ("10000000000000000000", -8_446_744_073_709_551_616, 1_864_712_049_423_024_128),
        // Held as an integer with a power of ten: multiplied step by step, it becomes 0.
        ("10E", 0, 0),
        ("1e19", 0, 0),
        ("1e16", 10_000_000_000_000_000, 0),
        // Multiplied at once, it keeps its lowest bits.
        ("10000000000000001", 10_000_000_000_000_001, -8_446_744_073_709_550_616),
        ("8Ei", i64::MAX, -1000),
        ("1e300", 0, 0),
        ("-9223372036854775809", -1, -1000),
    ] {
        assert_eq!((quantity(text).value(), quantity(text).milli_value()), (value, milli), "{text}");
    }
}

#[test]
fn a_comparison_changes_the_value() {
    for (text, other, value) in [
        ("1e19", "1", 0),
        ("1e19", "9223372036854775808", i64::MIN),
        ("2e19", "9223372036854775808", 0),
        ("10E", "9223372036854775808", -8_446_744_073_709_551_616),
        ("3", "9223372036854775808", 3),
    ] {
        assert_eq!(quantity(text).compared_with([&quantity(other)]).value(), value, "{text} {other}");
    }
}

#[test]
fn equal_quantities_may_have_different_internal_forms() {
    for (sent, stored, is_same) in [
        ("1", "1", true),
        ("1000m", "1", false),
        ("1e3", "1e3", true),
        ("1000", "1k", false),
        ("0.5", "500m", false),
        ("0.5Gi", "512Mi", false),
        ("1024Mi", "1Gi", false),
        ("16384Ki", "16Mi", true),
        ("0m", "0", false),
        ("+1", "+1", true),
    ] {
        assert_eq!(quantity(sent).is_held_as(&quantity(stored)), is_same, "{sent} {stored}");
    }
}

#[test]
fn sums_keep_a_format() {
    for (a, b, sum, difference) in [
        ("1Gi", "512Mi", "1536Mi", "512Mi"),
        ("100m", "1", "1100m", "-900m"),
        ("0", "1Gi", "1Gi", "-1Gi"),
        ("1Gi", "1", "1073741825", "1073741823"),
        ("1Gi", "1Gi", "2Gi", "0"),
        ("1k", "1Ki", "2024", "-24"),
    ] {
        assert_eq!((quantity(a) + quantity(b)).to_string(), sum, "{a} + {b}");
        assert_eq!((quantity(a) - quantity(b)).to_string(), difference, "{a} - {b}");
    }
    let total: Quantity = ["250m", "250m", "500m"].map(quantity).into_iter().sum();
    assert_eq!(total.to_string(), "1");
    assert_eq!(Quantity::from_bytes(1 << 20).to_string(), "1Mi");
    assert_eq!(Quantity::from_milli(1500, Format::DecimalSi).to_string(), "1500m");
}

#[test]
fn order_is_by_value() {
    let sorted = ["-1Ki", "-1", "0", "1n", "1m", "999m", "1", "1001m", "1k", "1Ki", "1M", "1Mi", "1e30", "1e200"];
    for pair in sorted.windows(2) {
        assert!(quantity(pair[0]) < quantity(pair[1]), "{pair:?}");
    }
    assert_eq!(quantity("1000m"), quantity("1"));
    assert_eq!(quantity("1Ki"), quantity("1024"));
    assert_eq!(quantity("1e3"), quantity("1k"));
}

fn text() -> impl Strategy<Value = String> {
    let suffix =
        prop::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "e-2", "E6"]);
    ("-?[0-9]{1,6}(\\.[0-9]{1,4})?", suffix).prop_map(|(number, suffix)| number + suffix)
}

proptest! {
    #[test]
    fn text_round_trips(text in text()) {
        let first = quantity(&text);
        let again = quantity(&first.to_string());
        prop_assert_eq!(&again, &first);
        prop_assert_eq!(again.to_string(), first.to_string());
    }

    #[test]
    fn order_agrees_with_difference(a in text(), b in text()) {
        let a = quantity(&a);
        let b = quantity(&b);
        prop_assert_eq!(a.cmp(&b), (a.clone() - b.clone()).sign().cmp(&0));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        prop_assert_eq!(a.clone() - b.clone() + b, a);
    }

    #[test]
    fn never_panics(text in "[-+0-9.eEinumkKMGTP]{0,60}") {
        if let Ok(quantity) = Quantity::parse(&text) {
            let _ = (quantity.to_string(), quantity.as_milli(), quantity.as_value());
        }
    }
}
