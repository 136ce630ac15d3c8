//! The identity of a span between processes: the header `traceparent` of W3C's Trace Context.

use std::fmt;

/// A span of a trace. Neither id is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: u128,
    pub span: u64,
    pub is_sampled: bool,
}

impl Context {
    /// Makes the first span of a new trace.
    pub fn root(is_sampled: bool) -> Context {
        Context { trace: random().max(1), span: random_span(), is_sampled }
    }

    /// Makes a span below this one.
    pub fn child(&self) -> Context {
        Context { span: random_span(), ..*self }
    }

    /// Reads the header `traceparent`; an unknown version is read as far as it is known.
    pub fn parse(text: &str) -> Option<Context> {
        let mut parts = text.trim().splitn(5, '-');
        let version = hexadecimal(parts.next()?, 2)?;
        let trace = hexadecimal(parts.next()?, 32)?;
        let span = u64::try_from(hexadecimal(parts.next()?, 16)?).ok()?;
        let flags = hexadecimal(parts.next()?, 2)?;
        let has_more = parts.next().is_some();
        let is_valid = version != 0xff && trace != 0 && span != 0 && !(version == 0 && has_more);
        is_valid.then_some(Context { trace, span, is_sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

/// Reads lower case hexadecimal digits, exactly so many.
fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_whole = text.len() == digits && text.bytes().all(is_digit);
    is_whole.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Returns random bits. A random UUID has some fixed ones, which are others in its two halves.
fn random() -> u128 {
    uuid::Uuid::new_v4().as_u128() ^ uuid::Uuid::new_v4().as_u128().rotate_left(64)
}

fn random_span() -> u64 {
    (random() as u64).max(1)
}
