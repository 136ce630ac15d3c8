//! The check that a certificate and a private key belong together, in the words of Go's `crypto/tls`, for warnings
//! about a Secret of the type `kubernetes.io/tls`. Keys are compared by their public parts; nothing is verified, and a
//! private key without its public part passes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ELLIPTIC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// The public part of a key.
#[derive(Debug, PartialEq, Eq)]
enum Public<'a> {
    Rsa(&'a [u8]),
    Elliptic(&'a [u8]),
    /// A key of a type that is not compared.
    Other,
}

/// Returns the error of a certificate and a key in PEM.
pub(super) fn problem(certificate: &[u8], key: &[u8]) -> Option<String> {
    let certificate = match find(certificate, |kind| kind == "CERTIFICATE") {
        Ok(der) => der,
        Err(skipped) => return Some(no_certificate(&skipped)),
    };
    let key = match find(key, |kind| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY")) {
        Ok(der) => der,
        Err(skipped) => return Some(no_key(&skipped)),
    };
    let Some(public) = of_certificate(&certificate) else { return Some("x509: malformed certificate".to_owned()) };
    let Some(private) = of_key(&key) else { return Some("tls: failed to parse private key".to_owned()) };
    match (&public, &private) {
        (Public::Other, _) | (_, Public::Other) => None,
        (Public::Rsa(a), Public::Rsa(b)) | (Public::Elliptic(a), Public::Elliptic(b)) if a == b => None,
        (Public::Rsa(_), Public::Rsa(_)) | (Public::Elliptic(_), Public::Elliptic(_)) => {
            Some("tls: private key does not match public key".to_owned())
        }
        _ => Some("tls: private key type does not match public key type".to_owned()),
    }
}

fn no_certificate(skipped: &[String]) -> String {
    match skipped {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.ends_with("PRIVATE KEY") => "tls: failed to find certificate PEM data in certificate input, but \
            did find a private key; PEM inputs may have been switched"
            .to_owned(),
        many => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
             following types: [{}]",
            many.join(" ")
        ),
    }
}

fn no_key(skipped: &[String]) -> String {
    match skipped {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if one == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        many => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks \
             of the following types: [{}]",
            many.join(" ")
        ),
    }
}

/// Returns the first block of a wanted type, or the types of the existing blocks.
fn find(text: &[u8], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, Vec<String>> {
    let text = String::from_utf8_lossy(text);
    let mut skipped = Vec::new();
    for block in text.split("-----BEGIN ").skip(1) {
        let Some((kind, rest)) = block.split_once("-----") else { continue };
        let Some((body, _)) = rest.split_once(&format!("-----END {kind}-----")) else { continue };
        let characters: String =
            body.lines().filter(|line| !line.contains(':')).flat_map(|line| line.trim().chars()).collect();
        let Ok(der) = STANDARD.decode(characters) else { continue };
        if is_wanted(kind) {
            return Ok(der);
        }
        skipped.push(kind.to_owned());
    }
    Err(skipped)
}

/// Returns the elements of a structure, each with its tag.
fn parts(mut der: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let Some((tag, content, rest)) = part(der) {
        found.push((tag, content));
        der = rest;
    }
    found
}

fn part(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (digits, after) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(digits, _)| digits.len() <= 4)?;
        length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn sequence(der: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    part(der).filter(|(tag, ..)| *tag == SEQUENCE).map(|(_, content, _)| parts(content))
}

fn of_certificate(der: &[u8]) -> Option<Public<'_>> {
    let elements = sequence(der)?;
    let mut signed = parts(elements.first()?.1);
    // The version is optional.
    if signed.first()?.0 == 0xa0 {
        signed.remove(0);
    }
    let key = parts(signed.get(5)?.1);
    let (algorithm, bits) = (parts(key.first()?.1), key.get(1).filter(|(tag, _)| *tag == BITS)?.1);
    let bits = bits.get(1..)?;
    match algorithm.first()?.1 {
        RSA => Some(Public::Rsa(sequence(bits)?.first()?.1)),
        ELLIPTIC => Some(Public::Elliptic(bits)),
        _ => Some(Public::Other),
    }
}

fn of_key(der: &[u8]) -> Option<Public<'_>> {
    let elements = sequence(der)?;
    match (elements.get(1)?, elements.get(2)) {
        ((INTEGER, modulus), Some((INTEGER, _))) => Some(Public::Rsa(modulus)),
        ((OCTETS, _), _) => Some(of_elliptic(&elements)),
        ((SEQUENCE, algorithm), Some((OCTETS, inner))) => match parts(algorithm).first()?.1 {
            RSA => Some(Public::Rsa(sequence(inner)?.get(1)?.1)),
            ELLIPTIC => Some(of_elliptic(&sequence(inner)?)),
            _ => Some(Public::Other),
        },
        _ => None,
    }
}

fn of_elliptic<'a>(key: &[(u8, &'a [u8])]) -> Public<'a> {
    let written = key.iter().find(|(tag, _)| *tag == 0xa1).and_then(|(_, content)| part(content));
    written.and_then(|(_, bits, _)| bits.get(1..)).map_or(Public::Other, Public::Elliptic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "MIIBbzCCARWgAwIBAgIUWddq/E3h2Rq1S0wYS4i6d4kxawswCgYIKoZIzj0EAwIwDDEKMAgGA1UEAwwBYTAgFw0yNjExMTYwMzM0MzVaGA8yMTI2MTAyMzAzMzQzNVowDDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKxUDO9jPe3w5Y+jrUCWcJ1yHrVCtD3vaLD/vNRWQvupH2BvbPFlNysNEAKAFty2bio17EGjI60g8/Jvy93AJKOjUzBRMB0GA1UdDgQWBBTg0KMxW+/7+1vNUHI2/nN7iesHVzAfBgNVHSMEGDAWgBTg0KMxW+/7+1vNUHI2/nN7iesHVzAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIEWRMIuNHgW3Ao/FEvqoYLpbY4EZyJ1pjPBYS0GN8LnwAiEAj68e59pePxvRDLp3QK9BVgGo9PsVBmxpf00LQrJiizs=";
    const KEY: &str = "MHcCAQEEIAlO5OUCno4op0OWXx5h82iFdGlxnAQhMQqF8LOktk9zoAoGCCqGSM49AwEHoUQDQgAErFQM72M97fDlj6OtQJZwnXIetUK0Pe9osP+81FZC+6kfYG9s8WU3Kw0QAoAW3LZuKjXsQaMjrSDz8m/L3cAkow==";
    const WRAPPED: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgCU7k5QKejiinQ5ZfHmHzaIV0aXGcBCExCoXws6S2T3OhRANCAASsVAzvYz3t8OWPo61AlnCdch61QrQ972iw/7zUVkL7qR9gb2zxZTcrDRACgBbctm4qNexBoyOtIPPyb8vdwCSj";
    const OTHER: &str = "MHcCAQEEIC55m7b6KcioSpnBs5smu0DX6IZnEtybIl3c6WV0hWf3oAoGCCqGSM49AwEHoUQDQgAEdMqyd1pAOUX5hKu/HuN8sSrW6R9pYxC/MU32ptsn/+u/hLHdieh/H3noSAVNMWe7qcdlKsP+3CyKwa2mN7HO/Q==";

    fn pem(kind: &str, body: &str) -> Vec<u8> {
        format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n").into_bytes()
    }

    #[test]
    fn a_pair_belongs_together() {
        let certificate = pem("CERTIFICATE", CERTIFICATE);
        let messages = |certificate: &[u8], key: &[u8]| problem(certificate, key).unwrap_or_default();
        for (certificate, key, wanted) in [
            (&certificate, pem("EC PRIVATE KEY", KEY), ""),
            (&certificate, pem("PRIVATE KEY", WRAPPED), ""),
            (&certificate, pem("EC PRIVATE KEY", OTHER), "tls: private key does not match public key"),
            (&certificate, pem("PRIVATE KEY", "AAAA"), "tls: failed to parse private key"),
            (&certificate, Vec::new(), "tls: failed to find any PEM data in key input"),
            (&Vec::new(), Vec::new(), "tls: failed to find any PEM data in certificate input"),
            (&pem("CERTIFICATE", "AAAA"), pem("EC PRIVATE KEY", KEY), "x509: malformed certificate"),
            (
                &pem("EC PRIVATE KEY", KEY),
                certificate.clone(),
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
            ),
            (
                &certificate,
                certificate.clone(),
                "tls: found a certificate rather than a key in the PEM for the private key",
            ),
        ] {
            assert_eq!(messages(certificate, &key), wanted);
        }
        // RSA keys are compared by their modulus, which both have.
        let rsa = |modulus: u8| vec![0x30, 9, INTEGER, 1, 0, INTEGER, 1, modulus, INTEGER, 1, 3];
        assert_eq!(of_key(&rsa(7)), Some(Public::Rsa(&[7])));
    }
}
