//! States that nobody wrote: every decoder answers with a value or an error.

use proptest::collection::vec;
use proptest::prelude::{any, proptest};

use super::*;
use crate::merge::{Layout, Options, Strategy, merge};
use crate::wire::{Block, Column};

#[derive(serde::Deserialize)]
struct Case {
    #[serde(rename = "type")]
    type_: String,
    bytes: String,
}

/// Storage type and one state of every function on record.
fn recorded() -> Vec<(DataType, Vec<u8>)> {
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("../../tests/state/functions.yaml")).unwrap();
    let unhex =
        |text: &str| (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
    cases.iter().map(|case| (DataType::parse(&case.type_).unwrap(), unhex(&case.bytes))).collect()
}

fn merge_states(type_: &DataType, states: &[Vec<u8>]) -> Result<Vec<Block>, crate::merge::MergeError> {
    let states: Bytes = states.iter().map(Vec::as_slice).collect();
    let rows = states.len();
    let column = |name: &str, type_, data| Column { name: name.into(), type_, data };
    let columns = vec![
        column("k", DataType::UInt(8), Data::W1(vec![0; rows])),
        column("s", DataType::String, Data::Bytes(states)),
    ];
    let layout = Layout { key_count: 1, state_types: vec![type_.clone()] };
    merge(vec![Block { columns, rows }], &layout, &Options { threads: 1, strategy: Strategy::Serial })
}

#[test]
fn a_recorded_state_merges_with_itself() {
    for (type_, state) in recorded() {
        let merged = merge_states(&type_, &[state.clone(), state.clone()]).unwrap();
        assert_eq!(merged[0].rows, 1, "{type_}");
        let alone = merge_states(&type_, std::slice::from_ref(&state)).unwrap();
        let Data::Bytes(bytes) = &alone[0].columns[1].data else { panic!("{type_}") };
        assert_eq!(bytes.bytes, state, "a single state comes out as it came in: {type_}");
    }
}

#[test]
fn a_state_cut_short_is_an_error_that_names_its_row() {
    for (type_, state) in recorded() {
        for cut in 0..state.len() {
            let outcome = merge_states(&type_, &[state.clone(), state[..cut].to_vec()]);
            let named = matches!(&outcome, Err(crate::merge::MergeError::State(StateError::Malformed { row: 1, .. })));
            assert!(named, "{type_} cut at {cut}: {outcome:?}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_states_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        for (type_, state) in recorded() {
            let _ = merge_states(&type_, &[state.clone(), bytes.clone(), state]);
        }
    }

    #[test]
    fn states_with_changed_bytes_do_not_panic(changes in vec((any::<usize>(), any::<u8>()), 1..4)) {
        for (type_, state) in recorded() {
            let mut changed = state.clone();
            for (at, byte) in &changes {
                let at = at % changed.len();
                changed[at] = *byte;
            }
            let _ = merge_states(&type_, &[state.clone(), changed.clone(), changed]);
        }
    }
}
