//! The PKCS#10 request inside a CertificateSigningRequest: its subject, its alternative names and its key.
//!
//! It is the only reader of such requests: admission, approvers and signers see the same fields. A request with
//! anything that this reader does not understand is refused, so that a signer signs nothing that was not checked:
//! strings that servers decode differently, several common names, names of other forms, extensions of unknown types. It
//! does not verify the signature; a signer does.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::der::{self, Malformed, Reader};

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";
/// The largest request that is read, in PEM. One with the longest useful key has a tenth of it.
const MAX_BYTES: usize = 64 << 10;

/// The object identifiers in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
const SUBJECT_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x0e];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];

/// The string types whose content every reader decodes to the same string.
const NUMERIC_STRING: u8 = 0x12;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const UTF8_STRING: u8 = 0x0c;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    #[error("the request is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the subject holds a string of an unsupported type")]
    SubjectString,
    #[error("the subject has more than one common name")]
    CommonNames,
    #[error("more than one extension request")]
    ExtensionRequests,
    #[error("an extension is requested twice")]
    DuplicateExtension,
    #[error("an extension of an unsupported kind is requested")]
    UnknownExtension,
    #[error("a certificate authority is requested")]
    Authority,
    #[error("a subjectAltName has an unsupported form")]
    AlternativeName,
}

/// A subject alternative name. No signer of Kubernetes signs other forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlternativeName {
    Dns(String),
    Address(IpAddr),
    Email(String),
    Uri(String),
}

/// A completely understood request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The common name; empty if the subject has none.
    pub common_name: String,
    pub organizations: Vec<String>,
    /// Whether the subject has attributes beside the common name and organizations.
    pub has_other_attributes: bool,
    pub names: Vec<AlternativeName>,
    /// The complete request in DER.
    pub der: Vec<u8>,
    /// The subject in DER.
    pub subject: Vec<u8>,
    /// The public key with its algorithm, in DER.
    pub public_key: Vec<u8>,
    /// The value of the subjectAltName extension, in DER.
    pub alternative_names: Option<Vec<u8>>,
}

impl CertificateRequest {
    pub fn parse(pem: &[u8]) -> Result<CertificateRequest, RequestError> {
        let der = decode_pem(pem)?;
        let mut outer = Reader::new(&der);
        let mut request = outer.enter(der::SEQUENCE)?;
        outer.end()?;
        let mut info = request.enter(der::SEQUENCE)?;
        request.expect(der::SEQUENCE)?;
        request.expect(der::BIT_STRING)?;
        request.end()?;
        let mut read = CertificateRequest::default();
        if info.expect(der::INTEGER)? != [0] {
            return Err(Malformed("a version that is not 1").into());
        }
        let subject = info.element()?;
        read.subject = subject.raw.to_vec();
        read.read_subject(Reader::new(subject.raw).enter(der::SEQUENCE)?)?;
        let key = info.element()?;
        Reader::new(key.raw).expect(der::SEQUENCE)?;
        read.public_key = key.raw.to_vec();
        // Some programs omit empty attributes.
        if !info.is_empty() {
            read.read_attributes(info.enter(0xa0)?)?;
        }
        info.end()?;
        read.der = der;
        Ok(read)
    }

    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| match name {
            AlternativeName::Dns(name) => Some(name.as_str()),
            _ => None,
        })
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.names.iter().filter_map(|name| match name {
            AlternativeName::Address(address) => Some(*address),
            _ => None,
        })
    }

    fn read_subject(&mut self, mut names: Reader<'_>) -> Result<(), RequestError> {
        while !names.is_empty() {
            let mut attributes = names.enter(der::SET)?;
            while !attributes.is_empty() {
                let mut attribute = attributes.enter(der::SEQUENCE)?;
                let kind = attribute.expect(der::OBJECT_IDENTIFIER)?;
                let value = text(attribute.element()?).ok_or(RequestError::SubjectString)?;
                attribute.end()?;
                self.take_attribute(kind, value)?;
            }
        }
        Ok(())
    }

    fn take_attribute(&mut self, kind: &[u8], value: &str) -> Result<(), RequestError> {
        match kind {
            COMMON_NAME if !self.common_name.is_empty() => return Err(RequestError::CommonNames),
            COMMON_NAME if value.is_empty() => return Err(RequestError::SubjectString),
            COMMON_NAME => self.common_name = value.to_owned(),
            ORGANIZATION => self.organizations.push(value.to_owned()),
            _ => self.has_other_attributes = true,
        }
        Ok(())
    }

    /// Reads the attributes. Those beside the extension request, such as a challenge password, never become part of a
    /// certificate.
    fn read_attributes(&mut self, mut attributes: Reader<'_>) -> Result<(), RequestError> {
        let mut is_read = false;
        while !attributes.is_empty() {
            let mut attribute = attributes.enter(der::SEQUENCE)?;
            let kind = attribute.expect(der::OBJECT_IDENTIFIER)?;
            let mut values = attribute.enter(der::SET)?;
            attribute.end()?;
            if kind != EXTENSION_REQUEST {
                continue;
            }
            if std::mem::replace(&mut is_read, true) {
                return Err(RequestError::ExtensionRequests);
            }
            let extensions = values.enter(der::SEQUENCE)?;
            if values.end().is_err() {
                return Err(RequestError::ExtensionRequests);
            }
            self.read_extensions(extensions)?;
        }
        Ok(())
    }

    fn read_extensions(&mut self, mut extensions: Reader<'_>) -> Result<(), RequestError> {
        let mut seen: Vec<&[u8]> = Vec::new();
        while !extensions.is_empty() {
            let mut extension = extensions.enter(der::SEQUENCE)?;
            let kind = extension.expect(der::OBJECT_IDENTIFIER)?;
            if extension.is_next(der::BOOLEAN) {
                extension.expect(der::BOOLEAN)?;
            }
            let value = extension.expect(der::OCTET_STRING)?;
            extension.end()?;
            if seen.contains(&kind) {
                return Err(RequestError::DuplicateExtension);
            }
            seen.push(kind);
            self.take_extension(kind, value)?;
        }
        Ok(())
    }

    /// Reads an extension. The CertificateSigningRequest itself has the usages: those of this request are not part of
    /// the certificate, and neither is its key identifier.
    fn take_extension(&mut self, kind: &[u8], value: &[u8]) -> Result<(), RequestError> {
        match kind {
            SUBJECT_ALTERNATIVE_NAME => {
                self.names = alternative_names(value)?;
                self.alternative_names = Some(value.to_vec());
                Ok(())
            }
            BASIC_CONSTRAINTS => refuse_authority(value),
            KEY_USAGE | EXTENDED_KEY_USAGE | SUBJECT_KEY_IDENTIFIER => Ok(()),
            _ => Err(RequestError::UnknownExtension),
        }
    }
}

/// Returns the content of the only PEM block.
fn decode_pem(pem: &[u8]) -> Result<Vec<u8>, RequestError> {
    if pem.len() > MAX_BYTES {
        return Err(RequestError::TooLarge);
    }
    let text = std::str::from_utf8(pem).map_err(|_| RequestError::Pem)?;
    let (before, rest) = text.split_once(BEGIN).ok_or(RequestError::Pem)?;
    let (block, after) = rest.split_once(END).ok_or(RequestError::Pem)?;
    if before.contains("-----BEGIN") || after.contains("-----BEGIN") {
        return Err(RequestError::Pem);
    }
    let digits: String = block.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(digits).map_err(|_| RequestError::Pem)
}

/// Returns the value of a string that every reader decodes alike; `None` for other types and for control characters.
fn text(element: der::Element<'_>) -> Option<&str> {
    let is_known = match element.tag {
        UTF8_STRING => true,
        PRINTABLE_STRING | IA5_STRING | NUMERIC_STRING => element.content.is_ascii(),
        _ => false,
    };
    let text = std::str::from_utf8(element.content).ok()?;
    (is_known && !text.chars().any(char::is_control)).then_some(text)
}

fn refuse_authority(value: &[u8]) -> Result<(), RequestError> {
    let mut outer = Reader::new(value);
    let constraints = outer.enter(der::SEQUENCE)?;
    outer.end()?;
    // Only the constraints of an authority have content.
    if constraints.is_empty() { Ok(()) } else { Err(RequestError::Authority) }
}

fn alternative_names(value: &[u8]) -> Result<Vec<AlternativeName>, RequestError> {
    let mut outer = Reader::new(value);
    let mut list = outer.enter(der::SEQUENCE)?;
    outer.end()?;
    let mut names = Vec::new();
    while !list.is_empty() {
        names.push(alternative_name(list.element()?).ok_or(RequestError::AlternativeName)?);
    }
    Ok(names)
}

fn alternative_name(element: der::Element<'_>) -> Option<AlternativeName> {
    let ascii = || {
        let text = std::str::from_utf8(element.content).ok()?;
        text.bytes().all(|byte| byte.is_ascii_graphic()).then(|| text.to_owned())
    };
    match element.tag {
        0x81 => ascii().map(AlternativeName::Email),
        0x82 => ascii().map(AlternativeName::Dns),
        0x86 => ascii().map(AlternativeName::Uri),
        0x87 => address(element.content).map(AlternativeName::Address),
        _ => None,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
