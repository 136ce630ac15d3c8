//! A strict reader of DER: one element after the other, nothing skipped.
//!
//! It exists so that a signing request is read completely: a lenient reader skips unknown elements, and a signer would
//! then sign bytes that were never checked. It must never accept two encodings of one value, or trailing bytes.

pub const BOOLEAN: u8 = 0x01;
pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
pub const OBJECT_IDENTIFIER: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;

/// One element: its tag, its content, and its complete encoding.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    pub raw: &'a [u8],
}

/// The elements that are still to be read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

/// The bytes are not DER of the expected form.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed DER: {0}")]
pub struct Malformed(pub &'static str);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next element, which must have this tag.
    pub fn expect(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        let element = self.element()?;
        if element.tag == tag { Ok(element.content) } else { Err(Malformed("unexpected tag")) }
    }

    /// Returns the content of the next element, which must have this tag, as a reader.
    pub fn enter(&mut self, tag: u8) -> Result<Reader<'a>, Malformed> {
        self.expect(tag).map(Reader)
    }

    /// Reports whether the next element has this tag.
    pub fn is_next(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    pub fn element(&mut self) -> Result<Element<'a>, Malformed> {
        let input = self.0;
        let (&tag, rest) = input.split_first().ok_or(Malformed("it ends early"))?;
        if tag & 0x1f == 0x1f {
            return Err(Malformed("a tag of several bytes"));
        }
        let (length, rest) = length(rest)?;
        let content = rest.get(..length).ok_or(Malformed("it ends early"))?;
        self.0 = &rest[length..];
        let raw = &input[..input.len() - self.0.len()];
        Ok(Element { tag, content, raw })
    }

    /// Checks that everything was read.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed("trailing bytes")) }
    }
}

/// Reads a length in its shortest encoding, and returns the rest.
fn length(bytes: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let (&first, rest) = bytes.split_first().ok_or(Malformed("it ends early"))?;
    if first < 0x80 {
        return Ok((usize::from(first), rest));
    }
    let count = usize::from(first & 0x7f);
    // Three bytes are 16 MiB, more than any request body.
    if !(1..=3).contains(&count) || rest.len() < count {
        return Err(Malformed("a length of an unsupported form"));
    }
    let (digits, rest) = rest.split_at(count);
    let length = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
    let is_minimal = length >= 0x80 && digits.first() != Some(&0);
    if is_minimal { Ok((length, rest)) } else { Err(Malformed("a length that is not minimal")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_encoding_of_a_length_is_read() {
        for (bytes, expected) in [
            (&[0x04, 0x01, 0xaa][..], Ok(&[0xaa][..])),
            (&[0x04, 0x00], Ok(&[])),
            (&[0x04, 0x81, 0x01, 0xaa], Err(Malformed("a length that is not minimal"))),
            (&[0x04, 0x82, 0x00, 0x80], Err(Malformed("a length that is not minimal"))),
            (&[0x04, 0x80, 0xaa, 0x00, 0x00], Err(Malformed("a length of an unsupported form"))),
            (&[0x04, 0x02, 0xaa], Err(Malformed("it ends early"))),
            (&[0x02, 0x01, 0xaa], Err(Malformed("unexpected tag"))),
            (&[0x1f, 0x01, 0xaa], Err(Malformed("a tag of several bytes"))),
            (&[], Err(Malformed("it ends early"))),
        ] {
            assert_eq!(Reader::new(bytes).expect(OCTET_STRING), expected, "{bytes:x?}");
        }
    }
}
