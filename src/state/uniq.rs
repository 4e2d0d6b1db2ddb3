//! uniq and uniqExact, and groupUniqArray over numbers and strings: sets.
//!
//! ```text
//! uniqExact:      varint count | value or hash of fixed width, count times
//! groupUniqArray: the same over numbers; over strings: varint count | (varint length | bytes), count times
//! uniq:           u8 skip degree | varint count | u32 hash, count times
//! ```
//! Written by ClickHouse 26.9. Numbers of uniqExact stand as they are, everything else as a hash of 16 bytes.

use hashbrown::HashSet;

use super::Word;
use super::sketch::{Sketch, words};
use crate::wire::{Reader, WireError, write_string, write_varint};

/// A set of words.
pub(super) struct Words<W>(HashSet<W, foldhash::fast::RandomState>);

impl<W: Word + Eq + std::hash::Hash> Sketch for Words<W> {
    /// Elements at most: the parameter of `groupUniqArray(max)`.
    type Form = Option<usize>;

    fn skip(_: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("set elements", W::WIDTH)?;
        reader.take_values(count, W::WIDTH).map(drop)
    }

    fn empty(_: &Self::Form) -> Self {
        Self(HashSet::default())
    }

    fn absorb(&mut self, form: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("set elements", W::WIDTH)?;
        self.0.reserve(count);
        for word in words(reader, count)? {
            if form.is_some_and(|max| self.0.len() >= max) {
                break;
            }
            self.0.insert(word);
        }
        Ok(())
    }

    fn write(&mut self, _: &Self::Form, out: &mut Vec<u8>) {
        write_varint(out, self.0.len() as u64);
        self.0.iter().for_each(|word| word.write(out));
    }
}

/// A set of strings.
pub(super) struct Strings(HashSet<Vec<u8>, foldhash::fast::RandomState>);

impl Sketch for Strings {
    type Form = Option<usize>;

    fn skip(_: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("set elements", 1)?;
        (0..count).try_for_each(|_| reader.string().map(drop))
    }

    fn empty(_: &Self::Form) -> Self {
        Self(HashSet::default())
    }

    fn absorb(&mut self, form: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        for _ in 0..reader.count("set elements", 1)? {
            let word = reader.string()?;
            if !self.0.contains(word) && form.is_none_or(|max| self.0.len() < max) {
                self.0.insert(word.to_vec());
            }
        }
        Ok(())
    }

    fn write(&mut self, _: &Self::Form, out: &mut Vec<u8>) {
        write_varint(out, self.0.len() as u64);
        self.0.iter().for_each(|word| write_string(out, word));
    }
}

/// Hashes that uniq keeps at most before it halves them (`UNIQUES_HASH_MAX_SIZE` of `UniquesHashSet.h`).
const UNIQ_HASHES_MAX: usize = 1 << 16;
/// Degrees that thinning can reach: hashes have 32 bits.
const SKIP_DEGREE_MAX: u8 = 32;

/// BJKST: hashes divisible by `2 ^ skip_degree`, which grows when there are too many.
pub(super) struct Uniq {
    hashes: HashSet<u32, foldhash::fast::RandomState>,
    skip_degree: u8,
}

impl Uniq {
    fn thin(&mut self, degree: u8) {
        self.skip_degree = degree;
        self.hashes.retain(|hash| is_kept(*hash, degree));
    }
}

fn is_kept(hash: u32, skip_degree: u8) -> bool {
    hash.trailing_zeros() >= u32::from(skip_degree)
}

fn read_degree(reader: &mut Reader<'_>) -> Result<u8, WireError> {
    match reader.u8()? {
        degree @ 0..=SKIP_DEGREE_MAX => Ok(degree),
        degree => Err(reader.malformed(format!("a skip degree of {degree}"))),
    }
}

impl Sketch for Uniq {
    type Form = ();

    fn skip((): &(), reader: &mut Reader<'_>) -> Result<(), WireError> {
        read_degree(reader)?;
        let count = reader.count("hashes of uniq", 4)?;
        reader.take_values(count, 4).map(drop)
    }

    fn empty((): &()) -> Self {
        Self { hashes: HashSet::default(), skip_degree: 0 }
    }

    fn absorb(&mut self, (): &(), reader: &mut Reader<'_>) -> Result<(), WireError> {
        let degree = read_degree(reader)?;
        if degree > self.skip_degree {
            self.thin(degree);
        }
        let count = reader.count("hashes of uniq", 4)?;
        for hash in words::<u32>(reader, count)? {
            if is_kept(hash, self.skip_degree) {
                self.hashes.insert(hash);
            }
            while self.hashes.len() > UNIQ_HASHES_MAX {
                self.thin(self.skip_degree + 1);
            }
        }
        Ok(())
    }

    fn write(&mut self, (): &(), out: &mut Vec<u8>) {
        out.push(self.skip_degree);
        write_varint(out, self.hashes.len() as u64);
        self.hashes.iter().for_each(|hash| hash.write(out));
    }
}
