//! A hint to the processor to fetch memory that is needed soon.

use crate::state::LaneSlice;
use crate::state::lane::each_width;

const LINE_BYTES: usize = 64;

/// Asks for all lines of `values`. Changes nothing but time.
#[inline]
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "saves radix a tenth of its time: bench/results/2026-11-30-2core/merge.md")]
pub(crate) fn prefetch<T>(values: &[T]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in values.chunks((LINE_BYTES / size_of::<T>()).max(1)) {
        // SAFETY: a prefetch reads and writes nothing that the program can see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

#[inline]
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn prefetch<T>(_: &[T]) {}

pub(crate) fn prefetch_lane(lane: &LaneSlice<'_>) {
    each_width!(LaneSlice, lane, values => prefetch(values));
}
