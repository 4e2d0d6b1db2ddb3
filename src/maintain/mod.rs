//! Keeps views: which parts of the sources their runs hold, whether that is still what the sources hold, and how to
//! build runs anew.
//!
//! [`part`], [`coverage`], [`cut`], [`plan`] and [`sight`] are pure. [`manifest`] is the record of what was built,
//! [`look`] reads what is there now, [`rebuild`] and, step by step, [`upkeep`] make the first equal to the second.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod board;
pub mod build;
pub mod chunk;
pub mod collect;
pub mod compact;
pub mod coverage;
pub mod cut;
pub mod delta;
pub mod failpoint;
pub mod finer;
pub mod lease;
pub mod look;
pub mod manifest;
pub mod observe;
pub mod part;
pub mod pass;
pub mod plan;
pub mod rebuild;
pub mod run;
pub mod sight;
pub mod sources;
pub mod states;
pub mod upkeep;
pub mod verify;

/// Locks. What these mutexes guard is whole at every moment, so a panic elsewhere is no reason to stop.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
