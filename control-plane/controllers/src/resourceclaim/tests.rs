//! The names of claims.

use super::*;

#[test]
fn a_long_name_is_cut_in_proportion() {
    let name = prefix(&"p".repeat(60), &"c".repeat(20));
    assert!(name.len() <= MAX_PREFIX && name.contains("-ccc"), "{name}");
    assert_eq!(prefix("p", "c"), "p-c-");
}
