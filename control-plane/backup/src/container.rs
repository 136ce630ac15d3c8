//! The bytes of a backup: a header in the clear, then chunks that are sealed one by one.
//!
//! ```text
//! "CORTENBK" | format u32 | header length u32 | header (JSON) | check (32 bytes) | chunks
//! ```
//!
//! Each chunk is 64 KiB of plaintext, the last one less, sealed by AES-256-GCM with its tag behind it. Its nonce is its
//! number and whether it is the last, so that chunks cannot be swapped, repeated, dropped or cut off. The key is of
//! this file alone: it is derived from the secret, a random salt and the header. The check says at once whether the
//! secret is the right one. Numbers are little-endian. Reading and writing go from front to back.

use std::io::{self, Read, Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::aead::{self, Aad, Nonce};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::key::{CHECK_BYTES, Derivation, Keys, SALT_BYTES};
use crate::{Error, Fault, Secret};

const MAGIC: &[u8; 8] = b"CORTENBK";
/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
const MOST_HEADER: usize = 64 << 10;
/// The plaintext of a chunk.
pub const CHUNK: usize = 64 << 10;
const TAG: usize = 16;

/// The part of a backup that is readable without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The time at which the backup was taken.
    pub created: jiff::Timestamp,
    /// The version of the program that wrote it.
    pub version: String,
    /// The SHA-256 of the cluster's CA certificate, by which backups of one cluster are known.
    pub cluster: String,
    /// The way to the key.
    pub key: Derivation,
    /// The salt of the key, in base64.
    pub salt: String,
}

impl Header {
    /// Makes the header of a new backup.
    pub fn new(
        created: jiff::Timestamp,
        version: impl Into<String>,
        cluster: impl Into<String>,
        secret: &Secret,
    ) -> Result<Header, Error> {
        let mut salt = [0; SALT_BYTES];
        let filled = SystemRandom::new().fill(&mut salt);
        filled.map_err(|_| Error::Secret("the system gives no random numbers".to_owned()))?;
        Ok(Header {
            created,
            version: version.into(),
            cluster: cluster.into(),
            key: secret.derivation(),
            salt: STANDARD.encode(salt),
        })
    }

    /// Reads the header alone.
    pub fn read(input: &mut impl Read) -> io::Result<Header> {
        Ok(read_prefix(input)?.header)
    }
}

/// Everything before the check.
struct Prefix {
    header: Header,
    /// The bytes that the key is bound to.
    bytes: Vec<u8>,
}

fn read_prefix(input: &mut impl Read) -> io::Result<Prefix> {
    let mut bytes = vec![0; 16];
    input.read_exact(&mut bytes).map_err(|error| ended(error, Fault::Foreign))?;
    if bytes[..8] != MAGIC[..] {
        return Err(Fault::Foreign.into());
    }
    let number = |at: usize| bytes[at..at + 4].iter().rev().fold(0u32, |sum, byte| (sum << 8) | u32::from(*byte));
    let format = number(8);
    if format > FORMAT {
        return Err(Fault::NewerFormat { found: format, known: FORMAT }.into());
    }
    let length = number(12) as usize;
    if format == 0 || length > MOST_HEADER {
        return Err(Fault::Damaged("its header makes no sense".to_owned()).into());
    }
    bytes.resize(16 + length, 0);
    input.read_exact(&mut bytes[16..]).map_err(|error| ended(error, Fault::Truncated))?;
    let header = serde_json::from_slice(&bytes[16..]);
    let header = header.map_err(|error| Fault::Damaged(format!("its header makes no sense: {error}")))?;
    Ok(Prefix { header, bytes })
}

/// Names the end of the input as `fault`.
fn ended(error: io::Error, fault: Fault) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { fault.into() } else { error }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; aead::NONCE_LEN];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = u8::from(is_last);
    Nonce::assume_unique_for_key(bytes)
}

fn keys(secret: &Secret, header: &Header, bytes: &[u8]) -> Result<Keys, Fault> {
    let salt = STANDARD.decode(&header.salt).ok().filter(|salt| salt.len() == SALT_BYTES);
    let salt = salt.ok_or_else(|| Fault::Damaged("its salt makes no sense".to_owned()))?;
    secret.keys(&header.key, &salt, bytes)
}

/// Seals what is written to it. [`Sealer::finish`] must be called: without the last chunk the file counts as cut off.
pub struct Sealer<W> {
    output: W,
    key: aead::LessSafeKey,
    /// The plaintext of the next chunk.
    buffer: Vec<u8>,
    number: u64,
}

impl<W: Write> Sealer<W> {
    /// Writes the header, and begins the body.
    pub fn new(mut output: W, header: &Header, secret: &Secret) -> io::Result<Sealer<W>> {
        let json = serde_json::to_vec(header)?;
        let length = u32::try_from(json.len()).ok().filter(|length| *length as usize <= MOST_HEADER);
        let length = length.ok_or_else(|| Fault::TooLarge("its header".to_owned()))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&json);
        let keys = keys(secret, header, &bytes)?;
        output.write_all(&bytes)?;
        output.write_all(&keys.check)?;
        Ok(Sealer { output, key: keys.body, buffer: Vec::with_capacity(CHUNK + TAG), number: 0 })
    }

    /// Writes the last chunk, and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal(true)?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let nonce = nonce(self.number, is_last);
        let sealed = self.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut self.buffer);
        sealed.map_err(|_| io::Error::other("a part of the backup cannot be sealed"))?;
        self.output.write_all(&self.buffer)?;
        self.buffer.clear();
        self.number += 1;
        Ok(())
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is sealed only when more follows: the last one may be full.
        if self.buffer.len() == CHUNK {
            self.seal(false)?;
        }
        let taken = bytes.len().min(CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the plaintext of a sealed file. Nothing is returned that was not authenticated, and the end only after the
/// last chunk.
pub struct Opener<R> {
    input: R,
    key: aead::LessSafeKey,
    header: Header,
    /// The plaintext of the current chunk, and how much of it was taken.
    chunk: Vec<u8>,
    taken: usize,
    /// The bytes that were read ahead: the next chunk as it is in the file.
    ahead: Vec<u8>,
    number: u64,
    is_ended: bool,
}

impl<R: Read> Opener<R> {
    /// Reads the header and checks the secret.
    pub fn new(mut input: R, secret: &Secret) -> io::Result<Opener<R>> {
        let prefix = read_prefix(&mut input)?;
        let mut check = [0; CHECK_BYTES];
        input.read_exact(&mut check).map_err(|error| ended(error, Fault::Truncated))?;
        let keys = keys(secret, &prefix.header, &prefix.bytes)?;
        if keys.check != check {
            return Err(Fault::WrongSecret(secret.name()).into());
        }
        let mut opener = Opener {
            input,
            key: keys.body,
            header: prefix.header,
            chunk: Vec::new(),
            taken: 0,
            ahead: Vec::new(),
            number: 0,
            is_ended: false,
        };
        opener.read_ahead()?;
        Ok(opener)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads one chunk as it is in the file; less only at the end of the file.
    fn read_ahead(&mut self) -> io::Result<()> {
        self.ahead.clear();
        let most = (CHUNK + TAG) as u64;
        (&mut self.input).take(most).read_to_end(&mut self.ahead)?;
        Ok(())
    }

    /// Opens the next chunk.
    fn open(&mut self) -> io::Result<()> {
        let mut sealed = std::mem::take(&mut self.ahead);
        self.ahead = std::mem::take(&mut self.chunk);
        self.read_ahead()?;
        let is_last = self.ahead.is_empty();
        let copy = if is_last { sealed.clone() } else { Vec::new() };
        let opened = self.key.open_in_place(nonce(self.number, is_last), Aad::empty(), &mut sealed);
        let Ok(length) = opened.map(|plain| plain.len()) else {
            return Err(self.fault(copy).into());
        };
        sealed.truncate(length);
        self.chunk = sealed;
        self.taken = 0;
        self.number += 1;
        self.is_ended = is_last;
        Ok(())
    }

    /// Returns the fault of a chunk that does not open. A file that was cut between two chunks ends in an intact one that
    /// is not the last; one that was cut inside of a chunk looks like one whose end is damaged.
    fn fault(&self, mut last: Vec<u8>) -> Fault {
        let is_cut = last.len() < CHUNK + TAG
            || self.key.open_in_place(nonce(self.number, false), Aad::empty(), &mut last).is_ok();
        if self.ahead.is_empty() && is_cut {
            return Fault::Truncated;
        }
        let offset = self.number * CHUNK as u64;
        Fault::Damaged(format!("the part at byte {offset} is not as it was written"))
    }
}

impl<R: Read> Read for Opener<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.chunk.len() {
            if self.is_ended {
                return Ok(0);
            }
            self.open()?;
        }
        let rest = &self.chunk[self.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::fault_of;

    fn secret() -> Secret {
        Secret::key_file(vec![9; 40]).unwrap()
    }

    fn header() -> Header {
        Header::new(jiff::Timestamp::UNIX_EPOCH, "0.0.0", "cluster", &secret()).unwrap()
    }

    fn seal(plain: &[u8]) -> Vec<u8> {
        let mut sealer = Sealer::new(Vec::new(), &header(), &secret()).unwrap();
        sealer.write_all(plain).unwrap();
        sealer.finish().unwrap()
    }

    fn open(sealed: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Opener::new(sealed, &secret())?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn what_is_sealed_is_opened_whatever_its_length() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7] {
            let plain: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let sealed = seal(&plain);
            assert_eq!(open(&sealed).unwrap(), plain, "{length} bytes");
            assert_eq!(Header::read(&mut &sealed[..]).unwrap().cluster, "cluster");
        }
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_refused() {
        let sealed = seal(&vec![1; 2 * CHUNK + 100]);
        let body = sealed.len() - (2 * (CHUNK + TAG) + 100 + TAG);
        for cut in [0, 7, 15, body - 1, body, body + 1, body + CHUNK + TAG, body + CHUNK + TAG + 3, sealed.len() - 1] {
            let fault = fault_of(&open(&sealed[..cut]).unwrap_err()).unwrap();
            let expected = if cut < 16 { Fault::Foreign } else { Fault::Truncated };
            assert_eq!(fault, expected, "cut at {cut} of {}", sealed.len());
        }
        let mut longer = sealed.clone();
        longer.push(0);
        assert!(open(&longer).is_err());
    }

    #[test]
    fn swapped_chunks_are_refused() {
        let mut sealed = seal(&vec![1; 3 * CHUNK]);
        let body = sealed.len() - 3 * (CHUNK + TAG);
        let (first, second) = sealed[body..].split_at_mut(CHUNK + TAG);
        first.swap_with_slice(&mut second[..CHUNK + TAG]);
        assert!(matches!(fault_of(&open(&sealed).unwrap_err()), Some(Fault::Damaged(_))));
    }

    #[test]
    fn foreign_files_newer_formats_and_wrong_secrets_have_their_sentence() {
        let sealed = seal(b"plain");
        let fault = |bytes: &[u8], secret: &Secret| {
            let error = Opener::new(bytes, secret).err().unwrap();
            fault_of(&error).unwrap().to_string()
        };
        assert_eq!(fault(b"PK\x03\x04 and so on, a zip file", &secret()), "it is no backup of corten");
        let mut newer = sealed.clone();
        newer[8] = 2;
        assert!(fault(&newer, &secret()).starts_with("it has format 2"), "{}", fault(&newer, &secret()));
        let other = Secret::key_file(vec![8; 40]).unwrap();
        assert_eq!(fault(&sealed, &other), "the key file does not open it");
        let passphrase = Secret::passphrase("correct horse").unwrap();
        assert_eq!(fault(&sealed, &passphrase), "it was sealed for a key file, and a passphrase was given");
    }

    proptest! {
        #[test]
        fn a_flipped_bit_anywhere_is_noticed(length in 0usize..CHUNK * 2, at in 0.0f64..1.0, bit in 0u8..8) {
            let plain = vec![3; length];
            let mut sealed = seal(&plain);
            let byte = (at * sealed.len() as f64) as usize;
            sealed[byte] ^= 1 << bit;
            prop_assert!(open(&sealed).is_err(), "byte {byte}");
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), lead in any::<bool>()) {
            let mut input = if lead { b"CORTENBK\x01\0\0\0".to_vec() } else { Vec::new() };
            input.extend(bytes);
            let _ = open(&input);
        }
    }
}
