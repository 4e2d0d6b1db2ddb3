//! The tables that merges are measured on: made by arithmetic, the same on every machine.

use crate::merge::Layout;
use crate::wire::{Block, Bytes, Column, Data, DataType, write_varint};

/// Rows of a block, about as ClickHouse sends them.
const BLOCK_ROWS: usize = 1 << 16;
/// Odd, so that multiplying permutes the numbers below a power of two.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const DOMAIN: u64 = 1 << 20;
/// Of the Star Schema Benchmark.
const YEARS: u64 = 7;
const BRANDS: u64 = 1000;
const CITIES: u64 = 250;

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
enum Keys {
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
    /// Two columns of 64 bits.
    Pair,
    /// Strings of 20 bytes.
    Text,
    /// Strings of 46 bytes, of which the first 26 are the same.
    LongText,
    /// Year, brand and city as views of the Star Schema Benchmark have them: `UInt16` and two `LowCardinality(String)`.
    Dimensions,
    /// The same as `String`.
    Words,
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 31)).wrapping_mul(STEP);
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (value >> 32)
}

/// `tables` tables of `keys` keys each, every one in an order of its own, in blocks. A table shares `overlap` percent of
/// its keys with the one before it, and as many with the one after it.
fn key_numbers(tables: usize, keys: usize, overlap: u64) -> Vec<Vec<u64>> {
    let bits = keys.next_power_of_two().trailing_zeros();
    let mut blocks = Vec::new();
    for table in 0..tables as u64 {
        let first = table * (keys as u64 * (100 - overlap) / 100);
        let numbers =
            (0..1u64 << bits).map(|at| (at ^ table.wrapping_mul(STEP)).wrapping_mul(STEP | 1) & ((1 << bits) - 1));
        let numbers: Vec<u64> = numbers.filter(|number| *number < keys as u64).map(|number| number + first).collect();
        blocks.extend(numbers.chunks(BLOCK_ROWS).map(<[u64]>::to_vec));
    }
    blocks
}

fn key_columns(numbers: &[u64], kind: Keys) -> Vec<(DataType, Data)> {
    let value = |number: u64| match kind {
        Keys::LowBitsZero => mix(number) << 16,
        Keys::FewHeavy if !mix(number ^ STEP).is_multiple_of(10) => mix(number % 8),
        Keys::DomainSkewed if !mix(number ^ STEP).is_multiple_of(10) => mix(number) % (DOMAIN / 256) + DOMAIN / 2,
        Keys::Domain | Keys::DomainSkewed => mix(number) % DOMAIN,
        _ => mix(number),
    };
    let values = numbers.iter().map(|number| value(*number));
    match kind {
        Keys::Short => vec![(DataType::UInt(16), Data::W2(numbers.iter().map(|number| *number as u16).collect()))],
        Keys::Domain | Keys::DomainSkewed => {
            vec![(DataType::UInt(32), Data::W4(values.map(|value| value as u32).collect()))]
        }
        Keys::Pair => vec![
            (DataType::UInt(64), Data::W8(values.collect())),
            (DataType::UInt(64), Data::W8(numbers.iter().map(|number| mix(number ^ STEP)).collect())),
        ],
        Keys::Text => vec![texts(values.map(|value| format!("{value:020}")))],
        Keys::LongText => vec![texts(values.map(|value| format!("https://shop.example/item/{value:020}")))],
        Keys::Dimensions | Keys::Words => {
            let years = numbers.iter().map(|number| 1992 + (number % YEARS) as u16);
            let brand = |number: u64| (number / YEARS) % BRANDS;
            let city = |number: u64| (number / YEARS / BRANDS) % CITIES;
            let brand_name = |brand: u64| format!("MFGR#{}", 1000 + brand * 4);
            let city_name = |city: u64| format!("UNITED KI{city}");
            let columns = match kind {
                Keys::Words => [
                    texts(numbers.iter().map(|number| brand_name(brand(*number)))),
                    texts(numbers.iter().map(|number| city_name(city(*number)))),
                ],
                _ => [
                    dictionary(numbers.iter().map(|number| brand(*number)), (0..BRANDS).map(brand_name)),
                    dictionary(numbers.iter().map(|number| city(*number)), (0..CITIES).map(city_name)),
                ],
            };
            std::iter::once((DataType::UInt(16), Data::W2(years.collect()))).chain(columns).collect()
        }
        _ => vec![(DataType::UInt(64), Data::W8(values.collect()))],
    }
}

fn texts(values: impl Iterator<Item = String>) -> (DataType, Data) {
    let mut texts = Bytes::default();
    values.for_each(|value| texts.push(value.as_bytes()));
    (DataType::String, Data::Bytes(texts))
}

/// `entries` numbered from 0, after the default value.
fn dictionary(ids: impl Iterator<Item = u64>, entries: impl Iterator<Item = String>) -> (DataType, Data) {
    let (_, dictionary) = texts(std::iter::once(String::new()).chain(entries));
    let keys = ids.map(|id| id as u32 + 1).collect();
    let type_ = DataType::LowCardinality(Box::new(DataType::String));
    (type_, Data::LowCardinality { keys, dictionary: Box::new(dictionary) })
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
    ANY_LAST,
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

const ANY_LAST: State = State {
    type_: "SimpleAggregateFunction(anyLast, Nullable(String))",
    data: nullable_strings,
    clickhouse: "anyLast",
};

/// What a case is made of, at full size.
struct Shape {
    functions: (&'static str, &'static [State]),
    tables: usize,
    /// Keys of one table.
    keys: usize,
    kind: Keys,
    /// Percent of its keys that a table shares with its neighbour.
    overlap: u64,
    /// What is special about it, for the name.
    remark: &'static str,
}

const fn shape(functions: (&'static str, &'static [State]), tables: usize, keys: usize, kind: Keys) -> Shape {
    Shape { functions, tables, keys, kind, overlap: 100, remark: "" }
}

const MILLION: usize = 1_000_000;
const SUM_COUNT: (&str, &[State]) = ("sum, count", &[SUM, COUNT]);
const TEN: (&str, &[State]) = ("10 functions", &MIXED);

const SHAPES: [Shape; 18] = [
    shape(SUM_COUNT, 8, 2 * MILLION, Keys::Random),
    shape(SUM_COUNT, 32, 2 * MILLION, Keys::Random),
    shape(("sum, count as states", &[SUM_STATE, COUNT_STATE]), 8, 2 * MILLION, Keys::Random),
    shape(("sum, count as states", &[SUM_STATE, COUNT_STATE]), 32, 2 * MILLION, Keys::Random),
    Shape { remark: ", low 16 bits zero", ..shape(SUM_COUNT, 8, 2 * MILLION, Keys::LowBitsZero) },
    Shape { remark: ", 90 % of the rows in 8 keys", ..shape(SUM_COUNT, 8, 2 * MILLION, Keys::FewHeavy) },
    Shape { remark: " of 2^20", ..shape(SUM_COUNT, 8, 2 * MILLION, Keys::Domain) },
    Shape {
        remark: " of 2^20, 90 % of the rows in one bucket",
        ..shape(SUM_COUNT, 8, 2 * MILLION, Keys::DomainSkewed)
    },
    Shape { remark: ", half shared", overlap: 50, ..shape(SUM_COUNT, 8, 2 * MILLION, Keys::Random) },
    Shape { remark: ", none shared", overlap: 0, ..shape(SUM_COUNT, 8, 2 * MILLION, Keys::Random) },
    Shape { remark: " of 16 bytes", ..shape(SUM_COUNT, 8, MILLION, Keys::Pair) },
    Shape { remark: " of text", ..shape(SUM_COUNT, 8, MILLION, Keys::Text) },
    Shape { remark: " of long text", ..shape(SUM_COUNT, 8, MILLION, Keys::LongText) },
    Shape { remark: " of year, brand, city", ..shape(SUM_COUNT, 8, 1_750_000, Keys::Dimensions) },
    Shape { remark: " of year, brand, city as String", ..shape(SUM_COUNT, 8, 1_750_000, Keys::Words) },
    shape(TEN, 8, MILLION, Keys::Random),
    shape(TEN, 32, 65_536, Keys::Short),
    shape(("7 anyLast(Nullable(String))", &[ANY_LAST; 7]), 10, MILLION, Keys::Random),
];

impl Shape {
    /// Rows of each table.
    fn keys(&self, scale: f64) -> usize {
        let keys = ((self.keys as f64 * scale) as usize).max(16);
        if self.kind == Keys::Short { keys.min(self.keys) } else { keys }
    }

    fn name(&self, scale: f64) -> String {
        let keys = match self.kind {
            Keys::Short => format!("{} UInt16", self.keys(scale)),
            _ => format!("{} M", self.keys(scale) as f64 / 1e6),
        };
        format!("{}: {} tables x {keys} keys{}", self.functions.0, self.tables, self.remark)
    }

    fn case(&self, scale: f64) -> Case {
        let functions = self.functions.1;
        let types: Vec<DataType> = functions.iter().filter_map(|state| DataType::parse(state.type_).ok()).collect();
        let mut row = 0u64;
        let inputs = key_numbers(self.tables, self.keys(scale), self.overlap).into_iter().map(|numbers| {
            let rows: Vec<u64> = (row..row + numbers.len() as u64).collect();
            row += numbers.len() as u64;
            let named = |at: usize, (type_, data)| Column { name: format!("k{at}"), type_, data };
            let keys = key_columns(&numbers, self.kind).into_iter().enumerate();
            let mut columns: Vec<Column> = keys.map(|(at, key)| named(at, key)).collect();
            for (at, (state, type_)) in functions.iter().zip(&types).enumerate() {
                columns.push(Column { name: format!("s{at}"), type_: type_.clone(), data: (state.data)(&rows) });
            }
            Block { columns, rows: rows.len() }
        });
        let inputs: Vec<Block> = inputs.collect();
        let key_count = inputs[0].columns.len() - types.len();
        Case {
            name: self.name(scale),
            inputs,
            layout: Layout { key_count, state_types: types },
            clickhouse: functions
                .iter()
                .enumerate()
                .map(|(at, state)| format!("{}(s{at})", state.clickhouse))
                .collect(),
            ordered: functions.iter().any(|state| state.clickhouse.starts_with("any")),
        }
    }
}

/// The cases whose names contain `text`, made one by one, since only one fits in memory. `scale` 1 is the full size.
pub fn cases(scale: f64, text: &str) -> impl Iterator<Item = Case> {
    SHAPES.iter().filter(move |shape| shape.name(scale).contains(text)).map(move |shape| shape.case(scale))
}
