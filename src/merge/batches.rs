//! The tables to merge, in the form that strategies work on.

use std::sync::Arc;

use super::keys::Finished;
use super::{MergeError, opaque, parallel};
use crate::state::{self, Function, Lane, Split, StateError, Word};
use crate::wire::{Bytes, Data};

/// The functions of the state columns; `None` for opaque ones.
pub(crate) type Functions = Vec<Option<Arc<dyn Function>>>;

pub(crate) struct Batches<K> {
    /// `[batch][row]`.
    pub keys: Vec<Vec<K>>,
    /// `[batch][lane]`: the lanes of all state columns, one after the other.
    pub lanes: Vec<Vec<Lane>>,
    pub states: States,
}

/// The state columns of a merge; cheap to clone.
#[derive(Clone)]
pub(crate) struct States {
    pub columns: Vec<StateColumn>,
}

#[derive(Clone)]
pub(crate) struct StateColumn {
    /// How states are merged, or the form of opaque ones.
    pub kind: Result<Arc<dyn Function>, opaque::Form>,
    /// The column's lanes among all lanes of a batch. Columns of references share one.
    pub lanes: Vec<usize>,
    /// By batch, the buffers that references point into; empty without references.
    pub sources: Arc<Vec<Bytes>>,
}

/// One state column of one batch, taken apart.
pub(crate) struct Taken {
    split: Split,
    opaque: Option<opaque::Form>,
}

/// Takes the state columns of one batch apart.
pub(crate) fn take(functions: &Functions, columns: Vec<Data>) -> Result<Vec<Taken>, StateError> {
    let taken = functions.iter().zip(columns).map(|(function, data)| match function {
        Some(function) => Ok(Taken { split: function.split(data)?, opaque: None }),
        None => {
            let (form, values) = opaque::Form::take(data);
            Ok(Taken { split: Split::Rows { values, absent: None }, opaque: Some(form) })
        }
    });
    taken.collect()
}

impl States {
    /// Numbers the batches, and makes references of rows. Returns the lanes, `[batch][lane]`.
    pub fn assemble(functions: Functions, batches: Vec<Vec<Taken>>) -> (Vec<Vec<Lane>>, Self) {
        let empty = |function: Option<Arc<dyn Function>>| StateColumn {
            kind: function.ok_or(opaque::Form::Bytes),
            lanes: Vec::new(),
            sources: Arc::default(),
        };
        let mut sources: Vec<Vec<Bytes>> = functions.iter().map(|_| Vec::with_capacity(batches.len())).collect();
        let mut columns: Vec<StateColumn> = functions.into_iter().map(empty).collect();
        let mut all = Vec::with_capacity(batches.len());
        for (batch, taken) in batches.into_iter().enumerate() {
            let mut lanes = Vec::new();
            let mut shared = None;
            for ((taken, column), sources) in taken.into_iter().zip(&mut columns).zip(&mut sources) {
                column.lanes.clear();
                match taken.split {
                    Split::Lanes(words) => {
                        column.lanes.extend(lanes.len()..lanes.len() + words.len());
                        lanes.extend(words);
                    }
                    Split::Rows { values, absent } => {
                        column.lanes.push(*shared.get_or_insert_with(|| {
                            lanes.push(Lane::W8((0..values.len()).map(|row| state::reference(batch, row)).collect()));
                            lanes.len() - 1
                        }));
                        if let Some(absent) = absent {
                            column.lanes.push(lanes.len());
                            lanes.push(Lane::W1(absent));
                        }
                        sources.push(values);
                    }
                }
                if let Some(form) = taken.opaque {
                    column.kind = Err(form);
                }
            }
            all.push(lanes);
        }
        columns.iter_mut().zip(sources).for_each(|(column, sources)| column.sources = Arc::new(sources));
        (all, Self { columns })
    }

    pub fn has_opaque(&self) -> bool {
        self.columns.iter().any(|column| column.kind.is_err())
    }

    pub fn functions(&self) -> Functions {
        self.columns.iter().map(|column| column.kind.as_ref().ok().cloned()).collect()
    }
}

impl<K: Word> Batches<K> {
    /// Finished tables as inputs of the next merge.
    pub fn again(finished: Vec<Finished<K>>, functions: Functions, threads: usize) -> Result<Self, MergeError> {
        let finished = finished.into_iter().filter(|finished| !finished.keys.is_empty()).collect();
        let taken = parallel::each(
            threads,
            finished,
            || (),
            |(), finished: Finished<K>| Ok::<_, StateError>((finished.keys, take(&functions, finished.states)?)),
        )?;
        let (keys, taken) = taken.into_iter().unzip();
        let (lanes, states) = States::assemble(functions, taken);
        Ok(Self { keys, lanes, states })
    }

    pub fn rows(&self) -> usize {
        self.keys.iter().map(Vec::len).sum()
    }
}
