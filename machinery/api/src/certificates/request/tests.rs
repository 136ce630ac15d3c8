//! Tests of requests put together by hand, each with one element that a lenient reader skips.

use super::*;

/// Encodes one element with a short or a two-byte length.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u8::try_from(content.len()).ok();
    let header = match length {
        Some(short @ 0..=0x7f) => vec![tag, short],
        Some(long) => vec![tag, 0x81, long],
        None => [&[tag, 0x82][..], &u16::try_from(content.len()).unwrap().to_be_bytes()].concat(),
    };
    [header, content].concat()
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(der::SEQUENCE, parts)
}

fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    sequence(&[&element(der::OBJECT_IDENTIFIER, &[kind]), &element(tag, &[value])])
}

/// Encodes a subject with a separate name for each attribute.
fn subject(attributes: &[Vec<u8>]) -> Vec<u8> {
    let names: Vec<Vec<u8>> = attributes.iter().map(|one| element(der::SET, &[one])).collect();
    sequence(&[&names.concat()])
}

fn extension(kind: &[u8], is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if is_critical { &[der::BOOLEAN, 1, 0xff] } else { &[] };
    sequence(&[&element(der::OBJECT_IDENTIFIER, &[kind]), critical, &element(der::OCTET_STRING, &[value])])
}

fn extension_request(extensions: &[Vec<u8>]) -> Vec<u8> {
    let values = element(der::SET, &[&sequence(&[&extensions.concat()])]);
    sequence(&[&element(der::OBJECT_IDENTIFIER, &[EXTENSION_REQUEST]), &values])
}

fn der_of(subject: &[u8], attributes: &[Vec<u8>]) -> Vec<u8> {
    let info =
        sequence(&[&element(der::INTEGER, &[&[0]]), subject, &sequence(&[]), &element(0xa0, &[&attributes.concat()])]);
    sequence(&[&info, &sequence(&[]), &element(der::BIT_STRING, &[&[0]])])
}

fn pem_of(der: &[u8]) -> String {
    format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(der))
}

fn read(subject: &[u8], attributes: &[Vec<u8>]) -> Result<CertificateRequest, RequestError> {
    CertificateRequest::parse(pem_of(&der_of(subject, attributes)).as_bytes())
}

fn node() -> Vec<u8> {
    let organization = attribute(ORGANIZATION, PRINTABLE_STRING, b"system:nodes");
    subject(&[organization, attribute(COMMON_NAME, UTF8_STRING, b"system:node:a")])
}

fn names(list: &[(u8, &[u8])]) -> Vec<u8> {
    let list: Vec<Vec<u8>> = list.iter().map(|(tag, value)| element(*tag, &[value])).collect();
    extension(SUBJECT_ALTERNATIVE_NAME, false, &sequence(&[&list.concat()]))
}

#[test]
fn subject_names_and_key_are_read() {
    let names = names(&[(0x82, b"a"), (0x87, &[10, 0, 0, 1]), (0x81, b"a@b"), (0x86, b"spiffe://a")]);
    let request = read(&node(), &[extension_request(&[names])]).unwrap();
    assert_eq!(request.common_name, "system:node:a");
    assert_eq!(request.organizations, ["system:nodes"]);
    assert!(!request.has_other_attributes);
    assert_eq!(request.dns_names().collect::<Vec<_>>(), ["a"]);
    assert_eq!(request.addresses().collect::<Vec<_>>(), [IpAddr::from([10, 0, 0, 1])]);
    assert_eq!(request.names.len(), 4);
    assert_eq!(request.subject, node());
    assert_eq!(request.public_key, sequence(&[]));
}

/// Go's library writes all organizations as one name of several values.
#[test]
fn names_of_several_values_are_read() {
    let organizations = [b"a", b"b"].map(|one| attribute(ORGANIZATION, UTF8_STRING, one));
    let subject = sequence(&[&element(der::SET, &[&organizations.concat()])]);
    assert_eq!(read(&subject, &[]).unwrap().organizations, ["a", "b"]);
}

#[test]
fn unknown_elements_are_refused() {
    let organization = |tag: u8, value: &[u8]| {
        let organizations =
            [attribute(ORGANIZATION, UTF8_STRING, b"system:nodes"), attribute(ORGANIZATION, tag, value)];
        read(&subject(&organizations), &[])
    };
    let bmp = 0x1e;
    let t61 = 0x14;
    let universal = 0x1c;
    for (tag, value) in [
        (bmp, &b"\0s\0y\0s\0t\0e\0m\0:\0m\0a\0s\0t\0e\0r\0s"[..]),
        (t61, b"system:masters"),
        (universal, b"\0\0\0s"),
        (der::OCTET_STRING, b"system:masters"),
        (PRINTABLE_STRING, b"\xff"),
        (UTF8_STRING, b"\xff"),
        (UTF8_STRING, b"system:masters\0"),
    ] {
        assert_eq!(organization(tag, value), Err(RequestError::SubjectString), "{tag:x}");
    }
    let common = |value: &[u8]| attribute(COMMON_NAME, UTF8_STRING, value);
    assert_eq!(read(&subject(&[common(b"a"), common(b"b")]), &[]), Err(RequestError::CommonNames));
    let together = sequence(&[&element(der::SET, &[&common(b"a"), &common(b"b")])]);
    assert_eq!(read(&together, &[]), Err(RequestError::CommonNames));

    let with = |extensions: &[Vec<u8>]| read(&node(), &[extension_request(extensions)]);
    let dns = names(&[(0x82, b"a")]);
    assert_eq!(with(&[dns.clone(), dns.clone()]), Err(RequestError::DuplicateExtension));
    assert_eq!(with(&[extension(&[0x2a, 0x03], true, b"")]), Err(RequestError::UnknownExtension));
    assert_eq!(with(&[extension(&[0x2a, 0x03], false, b"")]), Err(RequestError::UnknownExtension));
    let authority = sequence(&[&[der::BOOLEAN, 1, 0xff]]);
    assert_eq!(with(&[extension(BASIC_CONSTRAINTS, true, &authority)]), Err(RequestError::Authority));
    for (tag, value) in [
        (0xa0, &b"other"[..]),
        (0xa4, b""),
        (0x88, b"\x2a\x03"),
        (0x87, &[10, 0, 0]),
        (0x87, &[10, 0, 0, 0, 255, 0, 0, 0]),
        (0x82, b"a\0b"),
        (0x82, b"\xff"),
        (0x82, b"a b"),
    ] {
        assert_eq!(with(&[names(&[(tag, value)])]), Err(RequestError::AlternativeName), "{tag:x} {value:x?}");
    }
}

#[test]
fn extensions_are_requested_once() {
    let one = extension_request(&[names(&[(0x82, b"a")])]);
    assert_eq!(read(&node(), &[one.clone(), one]), Err(RequestError::ExtensionRequests));
    let list = sequence(&[&names(&[(0x82, b"a")])]);
    let values = element(der::SET, &[&list, &list]);
    let two = sequence(&[&element(der::OBJECT_IDENTIFIER, &[EXTENSION_REQUEST]), &values]);
    assert_eq!(read(&node(), &[two]), Err(RequestError::ExtensionRequests));
}

/// `openssl req` writes a password and usages; neither becomes part of a certificate.
#[test]
fn parts_that_a_signer_ignores_are_accepted() {
    let password = sequence(&[
        &element(der::OBJECT_IDENTIFIER, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x07]]),
        &element(der::SET, &[&element(UTF8_STRING, &[b"secret"])]),
    ]);
    let usages = extension(KEY_USAGE, true, &element(der::BIT_STRING, &[&[5, 0xa0]]));
    let constraints = extension(BASIC_CONSTRAINTS, false, &sequence(&[]));
    assert!(read(&node(), &[password, extension_request(&[usages, constraints])]).is_ok());
}

#[test]
fn nothing_follows_a_request() {
    let request = der_of(&node(), &[]);
    assert_eq!(
        CertificateRequest::parse(pem_of(&[&request[..], &[0, 0]].concat()).as_bytes()),
        Err(Malformed("trailing bytes").into())
    );
    let twice = pem_of(&request).repeat(2);
    assert_eq!(CertificateRequest::parse(twice.as_bytes()), Err(RequestError::Pem));
    assert_eq!(CertificateRequest::parse(&[b' '; MAX_BYTES + 1]), Err(RequestError::TooLarge));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = CertificateRequest::parse(&noise);
        let _ = CertificateRequest::parse(pem_of(&noise).as_bytes());
    }

    /// A changed byte never adds a name or an organization unnoticed: the request is refused or reads as it is encoded.
    #[test]
    fn a_changed_byte_is_refused_or_seen(at in 0usize..200, value: u8) {
        let mut der = der_of(&node(), &[extension_request(&[names(&[(0x82, b"a"), (0x87, &[10, 0, 0, 1])])])]);
        let at = at % der.len();
        der[at] = value;
        if let Ok(request) = CertificateRequest::parse(pem_of(&der).as_bytes()) {
            proptest::prop_assert_eq!(request.der, der);
        }
    }
}
