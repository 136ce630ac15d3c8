//! The validity of a certificate, and the time of its renewal.
//!
//! One rule for every certificate of the cluster: it is renewed after 80 % of its lifetime. Times are the wall clock's,
//! which goes on while a machine sleeps.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The time before its signature from which a certificate is valid, because clocks differ. Upstream's signers have the
/// same, and the API server reads the time of the signature from it when a node is revoked.
pub const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// The longest time between two looks at a certificate: clocks may be set, and machines sleep.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    /// Returns the validity of a certificate that is signed now.
    pub fn starting(now: Timestamp, lifetime: Duration) -> Validity {
        let lifetime = SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::MAX);
        let until = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
        Validity { from: now.checked_sub(BACKDATE).unwrap_or(Timestamp::MIN), until }
    }

    /// Reads the validity of the first certificate of a PEM file.
    pub fn of_pem(pem: &[u8]) -> Option<Validity> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
        let validity = pem.parse_x509().ok()?.validity().clone();
        let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Validity { from: at(validity.not_before)?, until: at(validity.not_after)? })
    }

    /// Returns the time at which the certificate was signed.
    pub fn signed(&self) -> Timestamp {
        self.from.checked_add(BACKDATE).unwrap_or(Timestamp::MAX).min(self.until)
    }

    /// Returns the time at which the certificate is renewed.
    pub fn renewal(&self) -> Timestamp {
        let lifetime = self.until.duration_since(self.signed());
        self.signed().checked_add(lifetime / 5 * 4).unwrap_or(self.until)
    }

    /// Reports whether the certificate is near its end: it should have been renewed some time ago.
    pub fn is_ending(&self, now: Timestamp) -> bool {
        let overdue = self.until.duration_since(self.renewal()) / 4;
        now > self.renewal().checked_add(overdue).unwrap_or(self.until)
    }
}

/// Returns the time until a certificate must be renewed; none for a file without one.
pub fn fresh_for(pem: &[u8], now: Timestamp) -> Duration {
    let Some(validity) = Validity::of_pem(pem) else { return Duration::ZERO };
    Duration::try_from(validity.renewal().duration_since(now)).unwrap_or(Duration::ZERO)
}

/// Waits until a time of the wall clock, also if the machine sleeps or the clock is set meanwhile.
pub async fn until(time: Timestamp) {
    loop {
        let left = Duration::try_from(time.duration_since(corten_meta::time::now())).unwrap_or(Duration::ZERO);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST_WAIT)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_certificate_is_renewed_after_80_percent_of_its_lifetime() {
        for (lifetime, renewed) in [(10, 8), (1000, 800), (365 * 86_400, 292 * 86_400)] {
            let validity = Validity::starting(at(1_000_000), Duration::from_secs(lifetime));
            assert_eq!(validity.signed(), at(1_000_000));
            assert_eq!(validity.renewal(), at(1_000_000 + renewed), "{lifetime}");
            assert!(!validity.is_ending(validity.renewal()));
            assert!(validity.is_ending(validity.until));
        }
        assert_eq!(fresh_for(b"no certificate", at(0)), Duration::ZERO);
    }
}
