//! What arbitrary and damaged input makes the decoders allocate: never more than some times its own size.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, proptest};
use serde::Deserialize;
use tributary::merge::{Layout, Options, Strategy, merge};
use tributary::state;
use tributary::wire::{Block, Bytes, Column, Data, DataType, native, write_string, write_varint};

/// The system's allocator, counting by thread.
pub struct Counting;

thread_local! {
    /// Bytes taken and not given back, and the most that there were.
    static LIVE: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that ends frees memory after its own variables are gone.
    let _ = LIVE.try_with(|live| {
        let now = live.get().0 + bytes;
        live.set((now, live.get().1.max(now)));
    });
}

#[allow(unsafe_code)]
// SAFETY: every call is passed on to the system's allocator as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        count(memory.size() as isize);
        // SAFETY: the caller's promises about `memory` are those that the system asks for.
        unsafe { System.alloc(memory) }
    }
    unsafe fn alloc_zeroed(&self, memory: Memory) -> *mut u8 {
        count(memory.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(memory) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, memory: Memory, size: usize) -> *mut u8 {
        count(size as isize - memory.size() as isize);
        // SAFETY: as above, and `pointer` came from `alloc`, which is the system's.
        unsafe { System.realloc(pointer, memory, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        count(-(memory.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, memory) }
    }
}

/// Bytes that `work` had taken at most, beyond what there was before.
fn peak<T>(work: impl FnOnce() -> T) -> usize {
    let before = LIVE.get().0;
    LIVE.set((before, before));
    drop(work());
    (LIVE.get().1 - before) as usize
}

/// A byte may stand for a string of its own (24 bytes and its memory, in a set that is half full), and tables have some
/// slots from the start.
fn allowed(input: usize) -> usize {
    64 * 1024 + 128 * input
}

#[derive(Deserialize)]
struct Recorded {
    #[serde(rename = "type")]
    type_: String,
    bytes: String,
}

/// Storage type and one state of every function on record.
fn recorded() -> Vec<(DataType, Vec<u8>)> {
    let cases: Vec<Recorded> = serde_yaml::from_str(include_str!("state/functions.yaml")).unwrap();
    let unhex = |text: &str| {
        text.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    cases.iter().map(|case| (DataType::parse(&case.type_).unwrap(), unhex(&case.bytes))).collect()
}

/// Merges states of one group.
fn merge_states(type_: &DataType, states: &[&[u8]]) {
    let rows = states.len();
    let columns = vec![
        Column { name: "k".into(), type_: DataType::UInt(8), data: Data::W1(vec![0; rows]) },
        Column {
            name: "s".into(),
            type_: DataType::String,
            data: Data::Bytes(states.iter().copied().collect::<Bytes>()),
        },
    ];
    let layout = Layout { key_count: 1, state_types: vec![type_.clone()] };
    let options = Options { threads: 1, strategy: Strategy::Serial };
    let _ = merge(vec![Block { columns, rows }], &layout, &options);
}

/// A Native block of one column, with the rest of the stream as given.
fn stream(type_: &str, rows: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_varint(&mut bytes, 1);
    write_varint(&mut bytes, rows);
    write_string(&mut bytes, b"c");
    write_string(&mut bytes, type_.as_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

const TYPES: [&str; 16] = [
    "UInt8",
    "UInt64",
    "UInt256",
    "String",
    "FixedString(7)",
    "FixedString(1000000000000)",
    "Nullable(String)",
    "Array(String)",
    "Array(Array(Nullable(UInt64)))",
    "Map(String, Array(UInt8))",
    "Tuple(UInt8, String)",
    "LowCardinality(String)",
    "LowCardinality(Nullable(UInt64))",
    "Array(LowCardinality(String))",
    "AggregateFunction(uniqExact, UInt64)",
    "AggregateFunction(groupUniqArray, String)",
];

proptest! {
    #[test]
    fn arbitrary_columns_allocate_in_the_size_of_their_input(
        type_ in 0..TYPES.len(),
        rows in any::<u64>(),
        rows_bits in 0u32..40,
        rest in vec(any::<u8>(), 0..2000),
    ) {
        for mask in [u8::MAX, 3] {
            // Small numbers are plausible counts.
            let rest: Vec<u8> = rest.iter().map(|byte| byte & mask).collect();
            let bytes = stream(TYPES[type_], rows & ((1 << rows_bits) - 1), &rest);
            let peak = peak(|| native::decode(&bytes, state::skip));
            prop_assert!(peak <= allowed(bytes.len()), "{}: {peak} bytes for {}", TYPES[type_], bytes.len());
        }
    }

    #[test]
    fn arbitrary_streams_allocate_in_their_own_size(bytes in vec(any::<u8>(), 0..500)) {
        let peak = peak(|| native::decode(&bytes, state::skip));
        prop_assert!(peak <= allowed(bytes.len()), "{peak} bytes for {}", bytes.len());
    }

    #[test]
    fn arbitrary_states_allocate_in_their_own_size(
        bytes in vec(any::<u8>(), 0..400),
        changes in vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        for (type_, state) in recorded() {
            let mut changed = state.clone();
            for (at, byte) in &changes {
                let at = at % changed.len();
                changed[at] = *byte;
            }
            for states in [[&state[..], &bytes[..], &state[..]], [&state[..], &changed[..], &changed[..]]] {
                let size = states.iter().map(|state| state.len()).sum();
                let peak = peak(|| merge_states(&type_, &states));
                prop_assert!(peak <= allowed(size), "{type_}: {peak} bytes for {size}");
            }
        }
    }

    /// A bitmap's header announces containers, and containers runs; neither is there.
    #[test]
    fn announced_bitmaps_take_no_memory(cookie in any::<u16>(), count in any::<u32>(), rest in vec(any::<u8>(), 0..40)) {
        for (type_, head) in [
            ("AggregateFunction(groupBitmap, UInt32)", [12_347 | u32::from(cookie) << 16, count]),
            ("AggregateFunction(groupBitmap, UInt32)", [12_346, count]),
        ] {
            let mut bitmap: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
            bitmap.extend_from_slice(&rest);
            let mut state = vec![1];
            write_string(&mut state, &bitmap);
            let type_ = DataType::parse(type_).unwrap();
            let peak = peak(|| merge_states(&type_, &[&state, &state]));
            prop_assert!(peak <= allowed(2 * state.len()), "{peak} bytes for {}", 2 * state.len());
        }
    }
}

#[test]
fn the_allocator_counts() {
    assert_eq!(peak(|| drop(vec![0u8; 1 << 20])), 1 << 20);
    assert_eq!(peak(|| (vec![0u8; 1 << 20], vec![0u8; 1 << 20])), 2 << 20);
}
