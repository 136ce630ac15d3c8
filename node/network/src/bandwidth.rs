//! The bandwidth limits of a pod, from its annotations.
//!
//! Each direction is one token bucket: ingress is shaped at the node's end of the link, egress at the pod's own.

use std::collections::BTreeMap;

use corten_meta::Quantity;

use crate::error::Error;

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The limits that upstream accepts: from a kilobit to a petabit a second.
const LEAST: i64 = 1_000;
const MOST: i64 = 1_000_000_000_000_000;

/// Limits in bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub ingress: Option<u64>,
    pub egress: Option<u64>,
}

impl Limits {
    /// Reads the limits of a pod's annotations.
    pub fn of(annotations: &BTreeMap<String, String>) -> Result<Limits, Error> {
        let limit = |name: &str| annotations.get(name).map(|value| parse(name, value)).transpose();
        Ok(Limits { ingress: limit(INGRESS)?, egress: limit(EGRESS)? })
    }
}

fn parse(name: &str, value: &str) -> Result<u64, Error> {
    let refuse =
        |reason: &str| Error::Bandwidth { annotation: format!("{name}: {value:?}"), reason: reason.to_owned() };
    let quantity = Quantity::parse(value).map_err(|error| refuse(&error.to_string()))?;
    let value = quantity.as_i64();
    if value < LEAST {
        return Err(refuse("resource is unreasonably small (< 1kbit)"));
    }
    if value > MOST {
        return Err(refuse("resource is unreasonably large (> 1Pbit)"));
    }
    u64::try_from(value).map_err(|_| refuse("it is negative"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_annotations() {
        let of = |pairs: &[(&str, &str)]| {
            Limits::of(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        assert_eq!(of(&[]).unwrap(), Limits::default());
        let both = of(&[(INGRESS, "10M"), (EGRESS, "1Gi")]).unwrap();
        assert_eq!(both, Limits { ingress: Some(10_000_000), egress: Some(1 << 30) });
        for bad in ["999", "2P", "fast", "-1M"] {
            assert!(of(&[(EGRESS, bad)]).is_err(), "{bad}");
        }
    }
}
