//! Mutations: change bytes, ranges, numbers and words of an input, and splice inputs. Pure.

use std::collections::BTreeSet;

use crate::random::Random;

/// The longest input that a mutation makes. Decoders with superlinear growth show it below this size too.
pub const LONGEST: usize = 16 << 10;
/// The most mutations of one input.
const MOST_STEPS: usize = 6;
/// The longest word of the dictionary.
const LONGEST_WORD: usize = 32;
/// The most repetitions of a range, which find nesting and long lists.
const MOST_REPEATS: usize = 300;

/// Numbers at the limits of arithmetic and lengths.
const NUMBERS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "127",
    "128",
    "255",
    "65535",
    "65536",
    "2147483647",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
];

/// Makes inputs of other inputs, by a dictionary of the seeds' words.
pub struct Mutator {
    random: Random,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seed: u64, seeds: &[Vec<u8>]) -> Mutator {
        let words: BTreeSet<Vec<u8>> = seeds.iter().flat_map(|seed| words_of(seed)).collect();
        Mutator { random: Random::new(seed), words: words.into_iter().collect() }
    }

    /// Returns a mutation of one input of the corpus, with optional parts of another.
    pub fn mutated(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.random.pick(corpus).cloned().unwrap_or_default();
        for _ in 0..=self.random.below(MOST_STEPS) {
            self.step(&mut input, corpus);
        }
        input.truncate(LONGEST);
        input
    }

    fn step(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        match self.random.below(10) {
            0 => self.flip_bit(input),
            1 => self.set_byte(input),
            2 => self.insert_bytes(input),
            3 => self.delete_range(input),
            4 => self.repeat_range(input),
            5 => self.insert_word(input),
            6 => self.replace_by_word(input),
            7 => self.set_number(input),
            8 => self.set_length(input),
            _ => self.splice(input, corpus),
        }
    }

    fn flip_bit(&mut self, input: &mut [u8]) {
        let at = self.random.below(input.len());
        let bit = self.random.below(8);
        if let Some(byte) = input.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }

    fn set_byte(&mut self, input: &mut [u8]) {
        let at = self.random.below(input.len());
        let value = self.random.number() as u8;
        if let Some(byte) = input.get_mut(at) {
            *byte = value;
        }
    }

    fn insert_bytes(&mut self, input: &mut Vec<u8>) {
        let at = self.random.below(input.len() + 1);
        let count = 1 + self.random.below(8);
        let bytes: Vec<u8> = (0..count).map(|_| self.random.number() as u8).collect();
        input.splice(at..at, bytes);
    }

    fn delete_range(&mut self, input: &mut Vec<u8>) {
        let range = self.range(input.len());
        input.drain(range);
    }

    fn repeat_range(&mut self, input: &mut Vec<u8>) {
        let range = self.range(input.len().min(64));
        let most = if self.random.below(8) == 0 { MOST_REPEATS } else { 3 };
        let times = 1 + self.random.below(most);
        let copy = input[range.clone()].repeat(times);
        input.splice(range.end..range.end, copy);
    }

    fn insert_word(&mut self, input: &mut Vec<u8>) {
        let at = self.random.below(input.len() + 1);
        if let Some(word) = self.random.pick(&self.words) {
            input.splice(at..at, word.iter().copied());
        }
    }

    fn replace_by_word(&mut self, input: &mut Vec<u8>) {
        let range = self.range(input.len());
        if let Some(word) = self.random.pick(&self.words) {
            input.splice(range, word.iter().copied());
        }
    }

    /// Writes a number in place of digits, or anywhere if there are none.
    fn set_number(&mut self, input: &mut Vec<u8>) {
        let from = self.random.below(input.len());
        let start = (from..input.len()).find(|at| input[*at].is_ascii_digit()).unwrap_or(from);
        let digits = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if let Some(number) = self.random.pick(&NUMBERS) {
            input.splice(start..start + digits, number.bytes());
        }
    }

    /// Writes a binary number of one, two, four or eight bytes: a length or a count of a binary format.
    fn set_length(&mut self, input: &mut [u8]) {
        let width = 1 << self.random.below(4);
        let at = self.random.below(input.len());
        let number = match self.random.below(4) {
            0 => u64::MAX,
            1 => input.len() as u64,
            2 => 1 << self.random.below(64),
            _ => self.random.number() % 64,
        };
        let mut bytes = number.to_le_bytes()[..width].to_vec();
        if self.random.below(2) == 0 {
            bytes.reverse();
        }
        for (byte, new) in input.iter_mut().skip(at).zip(bytes) {
            *byte = new;
        }
    }

    fn splice(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let Some(other) = self.random.pick(corpus) else { return };
        let part = self.range(other.len());
        let place = self.range(input.len());
        input.splice(place, other[part].iter().copied());
    }

    /// Returns a range within `length`, more often a short one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.random.below(length + 1);
        let most = if self.random.below(4) == 0 { length - start } else { (length - start).min(16) };
        start..start + self.random.below(most + 1)
    }
}

/// Returns the words of an input, and the bytes between them.
fn words_of(seed: &[u8]) -> Vec<Vec<u8>> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    seed.chunk_by(|one, other| is_word(one) == is_word(other))
        .filter(|word| word.len() <= LONGEST_WORD)
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs_within_the_limit() {
        let seeds = vec![b"{\"spec\":{\"replicas\":3}}".to_vec(), Vec::new()];
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, &seeds);
            (0..2_000).map(|_| mutator.mutated(&seeds)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(1).iter().all(|input| input.len() <= LONGEST));
    }

    #[test]
    fn words_are_taken_from_seeds() {
        let words = words_of(b"kind: Pod\n");
        assert_eq!(words, [b"kind".to_vec(), b": ".to_vec(), b"Pod".to_vec(), b"\n".to_vec()]);
    }
}
