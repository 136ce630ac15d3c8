//! IntOrString fields that are a number or a percentage of the replicas.

use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Returns the number, or the percentage of the total, rounded up or down; without a value, 25% of the total.
pub fn scaled(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    let percent = match value {
        Some(IntOrString::Int(number)) => return *number,
        Some(IntOrString::String(text)) => {
            text.strip_suffix('%').and_then(|number| number.parse::<i64>().ok()).unwrap_or(0)
        }
        None => 25,
    };
    let product = i128::from(percent) * i128::from(total);
    let share = if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
    i32::try_from(share).unwrap_or(i32::MAX)
}
