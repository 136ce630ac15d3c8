//! MD5, for the hashes of passwords that `htpasswd` writes by default. It protects nothing else.

/// The shifts of the four rounds.
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// Returns the digest of bytes.
pub(super) fn digest(bytes: &[u8]) -> [u8; 16] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((bytes.len() as u64).wrapping_mul(8).to_le_bytes());
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in padded.as_chunks::<64>().0 {
        compress(&mut state, block);
    }
    let mut digest = [0; 16];
    for (out, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *out = word.to_le_bytes();
    }
    digest
}

fn compress(state: &mut [u32; 4], block: &[u8; 64]) {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64 {
        let (mixed, word) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(sine(step)).wrapping_add(words[word]);
        a = d;
        d = c;
        c = b;
        b = b.wrapping_add(sum.rotate_left(SHIFTS[step / 16][step % 4]));
    }
    for (word, value) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(value);
    }
}

/// Returns the constant of a step: the sine's fraction in 32 bits.
fn sine(step: usize) -> u32 {
    (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn digests_are_those_of_the_standard() {
        for (text, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            let digest: String = super::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest, expected, "{text}");
        }
    }
}
