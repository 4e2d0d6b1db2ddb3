//! The tables that merges are measured on: made by arithmetic, the same on every machine.

use crate::merge::Layout;
use crate::wire::{Block, Bytes, Column, Data, DataType, write_varint};

/// Rows of a block, about as ClickHouse sends them.
const BLOCK_ROWS: usize = 1 << 16;
/// Odd, so that multiplying permutes the numbers below a power of two.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const DOMAIN: u64 = 1 << 20;

/// One merge to measure.
pub struct Case {
    pub name: String,
    pub inputs: Vec<Block>,
    pub layout: Layout,
    /// What ClickHouse computes per state column, for the same merge.
    pub clickhouse: Vec<String>,
    /// The answer depends on the order of the rows.
    pub ordered: bool,
}

impl Case {
    pub fn cells(&self) -> usize {
        self.inputs.iter().map(|block| block.rows).sum()
    }
}

/// How the keys of a case are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Any 64 bits.
    Random,
    /// The low 16 bits are zero.
    LowBitsZero,
    /// `UInt16`.
    Short,
    /// 90 % of the rows share 8 keys.
    FewHeavy,
    /// `UInt32` below 2^20: keys that index a table directly.
    Domain,
    /// The same, with 90 % of the rows in one of 256 ranges of the domain.
    DomainSkewed,
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 31)).wrapping_mul(STEP);
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (value >> 32)
}

/// `tables` tables of the same `keys` keys, each in an order of its own, in blocks.
fn key_numbers(tables: usize, keys: usize) -> Vec<Vec<u64>> {
    let bits = keys.next_power_of_two().trailing_zeros();
    let mut blocks = Vec::new();
    for table in 0..tables as u64 {
        let numbers =
            (0..1u64 << bits).map(|at| (at ^ table.wrapping_mul(STEP)).wrapping_mul(STEP | 1) & ((1 << bits) - 1));
        let numbers: Vec<u64> = numbers.filter(|number| *number < keys as u64).collect();
        blocks.extend(numbers.chunks(BLOCK_ROWS).map(<[u64]>::to_vec));
    }
    blocks
}

fn key_column(numbers: &[u64], kind: Keys) -> (DataType, Data) {
    let value = |number: u64| match kind {
        Keys::LowBitsZero => mix(number) << 16,
        Keys::FewHeavy if !mix(number ^ STEP).is_multiple_of(10) => mix(number % 8),
        Keys::DomainSkewed if !mix(number ^ STEP).is_multiple_of(10) => mix(number) % (DOMAIN / 256) + DOMAIN / 2,
        Keys::Domain | Keys::DomainSkewed => mix(number) % DOMAIN,
        _ => mix(number),
    };
    match kind {
        Keys::Short => (DataType::UInt(16), Data::W2(numbers.iter().map(|number| *number as u16).collect())),
        Keys::Domain | Keys::DomainSkewed => {
            (DataType::UInt(32), Data::W4(numbers.iter().map(|number| value(*number) as u32).collect()))
        }
        _ => (DataType::UInt(64), Data::W8(numbers.iter().map(|number| value(*number)).collect())),
    }
}

/// One state column: its storage type, the states of some rows, and what ClickHouse computes over it.
struct State {
    type_: &'static str,
    data: fn(&[u64]) -> Data,
    clickhouse: &'static str,
}

fn words(rows: &[u64], word: impl Fn(u64) -> u64) -> Data {
    Data::W8(rows.iter().map(|row| word(*row)).collect())
}

fn states(rows: &[u64], write: impl Fn(u64, &mut Vec<u8>)) -> Data {
    let mut out = Bytes::default();
    for row in rows {
        write(*row, &mut out.bytes);
        out.end_row();
    }
    Data::Bytes(out)
}

const SUM: State = State {
    type_: "SimpleAggregateFunction(sum, UInt64)",
    data: |rows| words(rows, |row| row % 1000),
    clickhouse: "sum",
};
const COUNT: State = State {
    type_: "SimpleAggregateFunction(sum, UInt64)",
    data: |rows| words(rows, |row| row % 7 + 1),
    clickhouse: "sum",
};
const SUM_STATE: State = State {
    type_: "AggregateFunction(sum, UInt64)",
    data: |rows| states(rows, |row, out| out.extend_from_slice(&(row % 1000).to_le_bytes())),
    clickhouse: "sumMerge",
};
const COUNT_STATE: State = State {
    type_: "AggregateFunction(count)",
    data: |rows| states(rows, |row, out| write_varint(out, row % 7 + 1)),
    clickhouse: "countMerge",
};

/// Functions of mixed kind, stored as the views store them.
const MIXED: [State; 10] = [
    SUM,
    COUNT,
    State {
        type_: "AggregateFunction(avg, UInt64)",
        data: |rows| {
            states(rows, |row, out| {
                out.extend_from_slice(&(row % 1000).to_le_bytes());
                write_varint(out, row % 7 + 1);
            })
        },
        clickhouse: "avgMerge",
    },
    State {
        type_: "SimpleAggregateFunction(min, Int32)",
        data: |rows| Data::W4(rows.iter().map(|row| mix(*row) as u32).collect()),
        clickhouse: "min",
    },
    State {
        type_: "SimpleAggregateFunction(max, Float64)",
        data: |rows| words(rows, |row| ((row % 1000) as f64).to_bits()),
        clickhouse: "max",
    },
    State { type_: "SimpleAggregateFunction(any, UInt64)", data: |rows| words(rows, mix), clickhouse: "any" },
    State {
        type_: "SimpleAggregateFunction(anyLast, Nullable(String))",
        data: nullable_strings,
        clickhouse: "anyLast",
    },
    State {
        type_: "SimpleAggregateFunction(groupBitXor, UInt64)",
        data: |rows| words(rows, mix),
        clickhouse: "groupBitXor",
    },
    State {
        type_: "AggregateFunction(varPop, Float64)",
        data: |rows| {
            states(rows, |row, out| {
                let value = (row % 1000) as f64;
                [1.0, value, value * value].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            })
        },
        clickhouse: "varPopMerge",
    },
    State {
        type_: "AggregateFunction(argMax, UInt32, UInt64)",
        data: |rows| {
            states(rows, |row, out| {
                out.push(1);
                out.extend_from_slice(&(row as u32).to_le_bytes());
                out.push(1);
                out.extend_from_slice(&mix(row).to_le_bytes());
            })
        },
        clickhouse: "argMaxMerge",
    },
];

fn nullable_strings(rows: &[u64]) -> Data {
    let nulls: Vec<u8> = rows.iter().map(|row| u8::from(mix(*row).is_multiple_of(4))).collect();
    let text = |row: u64| format!("value {}", mix(row));
    let mut values = Bytes::default();
    for (row, null) in rows.iter().zip(&nulls) {
        values.push(if *null == 0 { text(*row) } else { String::new() }.as_bytes());
    }
    Data::Nullable { nulls, values: Box::new(Data::Bytes(values)) }
}

/// A case of `tables` tables of `keys` keys each.
fn case(name: String, tables: usize, keys: usize, kind: Keys, functions: &[State]) -> Case {
    let types: Vec<DataType> = functions.iter().filter_map(|state| DataType::parse(state.type_).ok()).collect();
    let mut row = 0u64;
    let inputs = key_numbers(tables, keys).into_iter().map(|numbers| {
        let rows: Vec<u64> = numbers
            .iter()
            .map(|_| {
                row += 1;
                row
            })
            .collect();
        let (type_, data) = key_column(&numbers, kind);
        let mut columns = vec![Column { name: "k".into(), type_, data }];
        for (at, (state, type_)) in functions.iter().zip(&types).enumerate() {
            columns.push(Column { name: format!("s{at}"), type_: type_.clone(), data: (state.data)(&rows) });
        }
        Block { columns, rows: rows.len() }
    });
    let inputs = inputs.collect();
    let ordered = functions.iter().any(|state| state.clickhouse.starts_with("any"));
    let clickhouse = functions.iter().enumerate().map(|(at, state)| format!("{}(s{at})", state.clickhouse)).collect();
    Case { name, inputs, layout: Layout { key_count: 1, state_types: types }, clickhouse, ordered }
}

/// A case by its number, so that only one is in memory at a time; `None` after the last. `scale` 1 is the full size.
pub fn nth(number: usize, scale: f64) -> Option<Case> {
    let size = |keys: usize| ((keys as f64 * scale) as usize).max(16);
    let millions = |keys: usize| keys as f64 / 1e6;
    let two = size(2_000_000);
    let one = size(1_000_000);
    let short = size(65_536).min(65_536);
    Some(match number {
        0 => case(format!("sum, count: 8 tables x {} M keys", millions(two)), 8, two, Keys::Random, &[SUM, COUNT]),
        1 => case(format!("sum, count: 32 tables x {} M keys", millions(two)), 32, two, Keys::Random, &[SUM, COUNT]),
        2 => {
            let name = format!("sum, count as AggregateFunction: 8 tables x {} M keys", millions(two));
            case(name, 8, two, Keys::Random, &[SUM_STATE, COUNT_STATE])
        }
        3 => {
            let name = format!("sum, count: 8 tables x {} M keys, low 16 bits zero", millions(two));
            case(name, 8, two, Keys::LowBitsZero, &[SUM, COUNT])
        }
        4 => {
            let name = format!("sum, count: 8 tables x {} M keys, 90 % of the rows in 8 keys", millions(two));
            case(name, 8, two, Keys::FewHeavy, &[SUM, COUNT])
        }
        8 => case(
            format!("sum, count: 8 tables x {} M rows, 2^20 keys", millions(two)),
            8,
            two,
            Keys::Domain,
            &[SUM, COUNT],
        ),
        9 => {
            let name =
                format!("sum, count: 8 tables x {} M rows, 2^20 keys, 90 % of the rows in one bucket", millions(two));
            case(name, 8, two, Keys::DomainSkewed, &[SUM, COUNT])
        }
        5 => case(format!("10 functions: 8 tables x {} M keys", millions(one)), 8, one, Keys::Random, &MIXED),
        6 => case(format!("10 functions: 32 tables x {short} UInt16 keys"), 32, short, Keys::Short, &MIXED),
        7 => {
            const ANY_LAST: [State; 7] = [const {
                State {
                    type_: "SimpleAggregateFunction(anyLast, Nullable(String))",
                    data: nullable_strings,
                    clickhouse: "anyLast",
                }
            }; 7];
            case(
                format!("7 anyLast(Nullable(String)): 10 tables x {} M keys", millions(one)),
                10,
                one,
                Keys::Random,
                &ANY_LAST,
            )
        }
        _ => return None,
    })
}
