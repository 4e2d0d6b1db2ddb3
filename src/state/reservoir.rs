//! quantile, quantiles and median: a random sample of at most 8192 values.
//!
//! ```text
//! state: u64 sample size | u64 number of values seen | string: state of the random generator as text
//!        | value, min(sample size, values seen) times
//! generator: "6364136223846793005 0 <state>": multiplier, increment, state of pcg32_fast in decimal
//! ```
//! Written by ClickHouse 26.9: `ReservoirSampler.h`. Merging takes the same steps with the same generator.

use super::Word;
use super::sketch::{Sketch, words};
use crate::wire::{Reader, WireError, write_string};

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const SAMPLE_SIZE_DEFAULT: u64 = 8192;
/// State of the generator after ClickHouse's `seed(123456)`: the two lowest bits of a multiplicative one are set.
const SEEDED: u64 = 123_456 | 3;

/// A sample of words; NaN never gets in.
pub(super) struct Reservoir<W> {
    sample_size: u64,
    seen: u64,
    generator: u64,
    samples: Vec<W>,
}

struct Head {
    sample_size: u64,
    seen: u64,
    generator: u64,
    count: usize,
}

fn read_head(reader: &mut Reader<'_>, width: usize) -> Result<Head, WireError> {
    let sample_size = reader.u64()?;
    let seen = reader.u64()?;
    let count = reader.limit("samples", sample_size.min(seen), reader.limits.rows_max)?;
    let text = reader.text()?;
    let mut numbers = text.split(' ').map(str::parse::<u64>);
    let generator = match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(MULTIPLIER)), Some(Ok(0)), Some(Ok(state)), None) => state,
        _ => return Err(reader.malformed("a random generator that is not pcg32_fast")),
    };
    if sample_size == 0 || count.saturating_mul(width) > reader.remaining() {
        return Err(reader.malformed(format!("{count} samples of a sample size of {sample_size}")));
    }
    Ok(Head { sample_size, seen, generator, count })
}

impl<W: Word> Reservoir<W> {
    /// pcg XSH RS 64/32: the output of a state, then the next state.
    fn next_u32(&mut self) -> u32 {
        let state = self.generator;
        self.generator = state.wrapping_mul(MULTIPLIER);
        ((state ^ (state >> 22)) >> (22 + (state >> 61))) as u32
    }

    fn random_below(&mut self, limit: u64) -> u64 {
        if limit <= u64::from(u32::MAX) {
            return u64::from(self.next_u32()) % limit;
        }
        let high = u64::from(self.next_u32()) << 32;
        high.wrapping_add(u64::from(self.next_u32())) % limit
    }

    fn insert(&mut self, word: W) {
        self.seen = self.seen.saturating_add(1);
        if (self.samples.len() as u64) < self.sample_size {
            self.samples.push(word);
        } else {
            let at = self.random_below(self.seen);
            if at < self.sample_size {
                self.samples[at as usize] = word;
            }
        }
    }

    fn merge(&mut self, head: &Head, samples: Vec<W>) {
        if head.seen <= self.sample_size {
            samples.into_iter().for_each(|word| self.insert(word));
        } else if self.seen <= self.sample_size {
            let own = std::mem::replace(&mut self.samples, samples);
            self.seen = head.seen;
            own.into_iter().for_each(|word| self.insert(word));
        } else {
            // Every element is replaced with the probability of the other's share, in regular steps.
            self.seen = self.seen.saturating_add(head.seen);
            let step = self.seen as f64 / head.seen as f64;
            if step * 2.0 >= self.sample_size as f64 {
                let at = self.random_below(step as u64) as usize;
                if at < self.samples.len() {
                    self.samples[at] = samples[at];
                }
            } else {
                let mut at = 0.0;
                while at < self.sample_size as f64 {
                    self.samples[at as usize] = samples[at as usize];
                    at += step;
                }
            }
        }
    }
}

impl<W: Word> Sketch for Reservoir<W> {
    type Form = ();

    fn skip((): &(), reader: &mut Reader<'_>) -> Result<(), WireError> {
        let head = read_head(reader, W::WIDTH)?;
        reader.take_values(head.count, W::WIDTH).map(drop)
    }

    fn empty((): &()) -> Self {
        Self { sample_size: SAMPLE_SIZE_DEFAULT, seen: 0, generator: SEEDED, samples: Vec::new() }
    }

    fn absorb(&mut self, (): &(), reader: &mut Reader<'_>) -> Result<(), WireError> {
        let head = read_head(reader, W::WIDTH)?;
        let samples: Vec<W> = words(reader, head.count)?.collect();
        if self.seen == 0 && self.samples.is_empty() {
            let Head { sample_size, seen, generator, .. } = head;
            *self = Self { sample_size, seen, generator, samples };
            return Ok(());
        }
        if head.sample_size != self.sample_size {
            return Err(reader.malformed(format!("a sample size of {} and of {}", head.sample_size, self.sample_size)));
        }
        self.merge(&head, samples);
        Ok(())
    }

    fn write(&mut self, (): &(), out: &mut Vec<u8>) {
        self.sample_size.write(out);
        self.seen.write(out);
        write_string(out, format!("{MULTIPLIER} 0 {}", self.generator).as_bytes());
        self.samples.iter().for_each(|word| word.write(out));
    }
}
