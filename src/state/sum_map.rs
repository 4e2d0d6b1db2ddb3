//! sumMap over arrays or a map: sums by key.
//!
//! ```text
//! state: varint count | (key | sum of each value column), count times
//! key:   value of fixed width, or varint length | bytes
//! sum:   8 bytes (16, 32 of wide numbers), as of the function sum
//! ```
//! Written by ClickHouse 26.9 as version 1, which `CAST AS String` uses.

use std::collections::BTreeMap;

use super::sketch::Sketch;
use super::words::Op;
use super::{Word, words::Field};
use crate::wire::{Reader, WireError, write_string, write_varint};

#[derive(Debug, Clone)]
pub(super) struct Form {
    /// Bytes of a key; `None`: a string.
    pub key_width: Option<usize>,
    pub sums: Vec<Field>,
}

impl Form {
    fn key<'a>(&self, reader: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
        match self.key_width {
            Some(width) => reader.take(width),
            None => reader.string(),
        }
    }

    fn sum_bytes(&self) -> usize {
        self.sums.iter().map(|field| field.width).sum()
    }
}

/// Sums as bytes, all columns of a key in a row.
#[derive(Default)]
pub(super) struct SumMap(BTreeMap<Vec<u8>, Vec<u8>>);

impl Sketch for SumMap {
    type Form = Form;

    fn skip(form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        for _ in 0..reader.count("keys of sumMap", 1)? {
            form.key(reader)?;
            reader.take(form.sum_bytes())?;
        }
        Ok(())
    }

    fn empty(_: &Form) -> Self {
        Self::default()
    }

    fn absorb(&mut self, form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        for _ in 0..reader.count("keys of sumMap", 1)? {
            let key = form.key(reader)?;
            let sums = reader.take(form.sum_bytes())?;
            match self.0.get_mut(key) {
                None => drop(self.0.insert(key.to_vec(), sums.to_vec())),
                Some(own) => add(&form.sums, own, sums),
            }
        }
        Ok(())
    }

    fn write(&mut self, form: &Form, out: &mut Vec<u8>) {
        write_varint(out, self.0.len() as u64);
        for (key, sums) in &self.0 {
            match form.key_width {
                Some(_) => out.extend_from_slice(key),
                None => write_string(out, key),
            }
            out.extend_from_slice(sums);
        }
    }
}

fn add(fields: &[Field], own: &mut [u8], other: &[u8]) {
    fn fold<W: Word>(own: &mut [u8], other: &[u8], fold: impl Fn(W, W) -> W) {
        let mut bytes = Vec::with_capacity(W::WIDTH);
        fold(W::read(own), W::read(other)).write(&mut bytes);
        own[..W::WIDTH].copy_from_slice(&bytes);
    }
    let mut at = 0;
    for field in fields {
        let (own, other) = (&mut own[at..], &other[at..]);
        match (field.width, field.op) {
            (8, Op::AddF64) => {
                fold(own, other, |a: u64, b: u64| (f64::from_bits(a) + f64::from_bits(b)).to_bits());
            }
            (8, _) => fold(own, other, u64::wrapping_add),
            (16, _) => fold(own, other, u128::wrapping_add),
            _ => fold(own, other, <[u64; 4] as Word>::wrapping_add),
        }
        at += field.width;
    }
}
