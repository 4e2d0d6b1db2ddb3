//! quantileTDigest and quantilesTDigest, weighted or not.
//!
//! ```text
//! state: varint count | (f32 mean | f32 weight), count times
//! ```
//! Written by ClickHouse 26.9: `QuantileTDigest.h`. Merging follows the same steps, so that the same states in the
//! same order give the same digest.

use super::Word;
use super::sketch::{Sketch, words};
use crate::wire::{Reader, WireError, write_varint};

const EPSILON: f32 = 0.01;
const CENTROIDS_MAX: usize = 2048;
const UNMERGED_MAX: usize = 2048;
/// ClickHouse refuses to read more.
const CENTROIDS_READ_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy)]
struct Centroid {
    mean: f32,
    weight: f32,
}

#[derive(Default)]
pub(super) struct TDigest {
    centroids: Vec<Centroid>,
    weight: f64,
    unmerged: usize,
}

impl TDigest {
    fn add(&mut self, centroid: Centroid) {
        self.centroids.push(centroid);
        self.weight += f64::from(centroid.weight);
        self.unmerged += 1;
        if self.unmerged > UNMERGED_MAX {
            self.compress();
        }
    }

    /// Puts neighbours together while their common weight is at most `4 q (1 - q) epsilon` of the whole.
    fn compress(&mut self) {
        if (self.unmerged > 0 || self.centroids.len() > CENTROIDS_MAX) && !self.centroids.is_empty() {
            self.centroids.sort_by(|a, b| a.mean.total_cmp(&b.mean));
            let limit = self.weight * f64::from(EPSILON) * 4.0;
            let mut sum = 0.0;
            let mut left = 0;
            let mut mean = f64::from(self.centroids[0].mean);
            let mut weight = f64::from(self.centroids[0].weight);
            for right in 1..self.centroids.len() {
                let next = self.centroids[right];
                let next_weight = f64::from(next.weight);
                let quantile_left = (sum + weight * 0.5) / self.weight;
                let quantile_right = (sum + weight + next_weight * 0.5) / self.weight;
                let error = (quantile_left * (1.0 - quantile_left)).min(quantile_right * (1.0 - quantile_right));
                if weight + next_weight <= limit * error && can_be_merged(mean, next.mean) {
                    weight += next_weight;
                    if f64::from(next.mean) != mean {
                        mean += next_weight * (f64::from(next.mean) - mean) / weight;
                    }
                    self.centroids[left] = Centroid { mean: mean as f32, weight: weight as f32 };
                } else {
                    sum += f64::from(self.centroids[left].weight);
                    left += 1;
                    self.centroids[left] = next;
                    mean = f64::from(next.mean);
                    weight = next_weight;
                }
            }
            self.weight = sum + weight;
            self.centroids.truncate(left + 1);
            self.unmerged = 0;
        }
        self.compress_in_batches();
    }

    /// Holds the number of centroids down where compression could not: equal batches become one centroid each.
    fn compress_in_batches(&mut self) {
        if self.centroids.len() <= CENTROIDS_MAX {
            return;
        }
        let batch = self.centroids.len().div_ceil(CENTROIDS_MAX);
        let merged = self.centroids.chunks(batch).map(|batch| {
            let mut mean = f64::from(batch[0].mean);
            let mut weight = f64::from(batch[0].weight);
            for next in &batch[1..] {
                weight += f64::from(next.weight);
                if f64::from(next.mean) != mean {
                    mean += f64::from(next.weight) * (f64::from(next.mean) - mean) / weight;
                }
            }
            Centroid { mean: mean as f32, weight: weight as f32 }
        });
        self.centroids = merged.filter(|centroid| !centroid.mean.is_nan()).collect();
        self.weight = self.centroids.iter().map(|centroid| f64::from(centroid.weight)).sum();
    }
}

/// Infinities are merged with their like only.
fn can_be_merged(left: f64, right: f32) -> bool {
    left == f64::from(right) || (left.is_finite() && right.is_finite())
}

fn read_count(reader: &mut Reader<'_>) -> Result<usize, WireError> {
    let count = reader.count("centroids", 8)?;
    reader.limit("centroids", count as u64, CENTROIDS_READ_MAX as u64)
}

impl Sketch for TDigest {
    type Form = ();

    fn skip((): &(), reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = read_count(reader)?;
        for word in words::<u64>(reader, count)? {
            let weight = f32::from_bits((word >> 32) as u32);
            if weight <= 0.0 || weight.is_nan() {
                return Err(reader.malformed(format!("a centroid of weight {weight}")));
            }
        }
        Ok(())
    }

    fn empty((): &()) -> Self {
        Self::default()
    }

    fn absorb(&mut self, (): &(), reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = read_count(reader)?;
        for word in words::<u64>(reader, count)? {
            let centroid = Centroid { mean: f32::from_bits(word as u32), weight: f32::from_bits((word >> 32) as u32) };
            if !centroid.mean.is_nan() {
                self.add(centroid);
            }
        }
        Ok(())
    }

    fn write(&mut self, (): &(), out: &mut Vec<u8>) {
        self.compress();
        write_varint(out, self.centroids.len() as u64);
        for centroid in &self.centroids {
            centroid.mean.to_bits().write(out);
            centroid.weight.to_bits().write(out);
        }
    }
}
