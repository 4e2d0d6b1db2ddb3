//! Every strategy equals a fold over a BTreeMap.

use std::collections::BTreeMap;

use proptest::prelude::{Just, any, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as Arbitrary;

use super::*;

const STRATEGIES: [Strategy; 6] =
    [Strategy::Auto, Strategy::Serial, Strategy::Sharded, Strategy::Radix, Strategy::Tree, Strategy::Fixed];

fn type_(text: &str) -> DataType {
    DataType::parse(text).unwrap()
}

fn block(columns: Vec<(&str, Data)>) -> Block {
    let rows = columns[0].1.len();
    let columns = columns.into_iter().map(|(text, data)| Column { name: text.into(), type_: type_(text), data });
    Block { columns: columns.collect(), rows }
}

/// Rows as text, in order: the values of all columns.
fn rows(blocks: &[Block]) -> Vec<Vec<Vec<u8>>> {
    let mut rows: Vec<Vec<Vec<u8>>> = blocks
        .iter()
        .flat_map(|block| {
            (0..block.rows).map(|row| {
                let value = |column: &Column| {
                    let mut bytes = Vec::new();
                    serialized::write(&column.data, row, &mut bytes);
                    bytes
                };
                block.columns.iter().map(value).collect()
            })
        })
        .collect();
    rows.sort();
    rows
}

/// One source row: keys, then the values of the states.
#[derive(Debug, Clone)]
struct Row {
    number: u64,
    word: Option<String>,
    sum: u64,
    min: i32,
    last: Option<String>,
}

fn word() -> impl Arbitrary<Value = Option<String>> {
    proptest::option::of("[ab]{0,2}")
}

fn a_row() -> impl Arbitrary<Value = Row> {
    let number = prop_oneof![0u64..10, Just(u64::MAX), any::<u64>().prop_map(|bits| bits << 60)];
    (number, word(), any::<u64>(), any::<i32>(), word()).prop_map(|(number, word, sum, min, last)| Row {
        number,
        word,
        sum,
        min,
        last,
    })
}

fn nullable_strings(values: &[Option<String>]) -> Data {
    Data::Nullable {
        nulls: values.iter().map(|value| u8::from(value.is_none())).collect(),
        values: Box::new(Data::Bytes(values.iter().map(|v| v.as_deref().unwrap_or("").as_bytes()).collect())),
    }
}

fn low_cardinality(values: &[Option<String>]) -> Data {
    let mut words: Vec<String> = vec![String::new()];
    let keys = values.iter().map(|value| match value {
        None => 0,
        Some(value) => match words.iter().skip(1).position(|word| word == value) {
            Some(at) => at as u32 + 1,
            None => {
                words.push(value.clone());
                words.len() as u32 - 1
            }
        },
    });
    let keys = keys.collect();
    Data::LowCardinality { keys, dictionary: Box::new(Data::Bytes(words.iter().map(|w| w.as_bytes()).collect())) }
}

/// `word_type` is `Nullable(String)` (keys are serialised) or `LowCardinality(Nullable(String))` (packed).
fn input(rows: &[Row], word_type: &'static str) -> Block {
    let words: Vec<_> = rows.iter().map(|row| row.word.clone()).collect();
    let lasts: Vec<_> = rows.iter().map(|row| row.last.clone()).collect();
    block(vec![
        ("UInt64", Data::W8(rows.iter().map(|row| row.number).collect())),
        (word_type, if word_type.starts_with('L') { low_cardinality(&words) } else { nullable_strings(&words) }),
        ("SimpleAggregateFunction(sum, UInt64)", Data::W8(rows.iter().map(|row| row.sum).collect())),
        ("SimpleAggregateFunction(min, Int32)", Data::W4(rows.iter().map(|row| row.min as u32).collect())),
        ("SimpleAggregateFunction(anyLast, Nullable(String))", nullable_strings(&lasts)),
    ])
}

fn fold(tables: &[Vec<Row>]) -> Vec<Row> {
    let mut groups: BTreeMap<(u64, Option<String>), Row> = BTreeMap::new();
    for row in tables.iter().flatten() {
        match groups.get_mut(&(row.number, row.word.clone())) {
            Some(group) => {
                group.sum = group.sum.wrapping_add(row.sum);
                group.min = group.min.min(row.min);
                group.last = row.last.clone().or(group.last.take());
            }
            None => {
                groups.insert((row.number, row.word.clone()), row.clone());
            }
        }
    }
    groups.into_values().collect()
}

fn layout(block: &Block, key_count: usize) -> Layout {
    let state_types = block.columns[key_count..].iter().map(|column| column.type_.clone()).collect();
    Layout { key_count, state_types }
}

proptest! {
    #[test]
    fn every_strategy_equals_a_fold(
        tables in prop::collection::vec(prop::collection::vec(a_row(), 1..60), 1..5),
        threads in 1usize..4,
    ) {
        for word_type in ["Nullable(String)", "LowCardinality(Nullable(String))"] {
            let inputs: Vec<Block> = tables.iter().map(|table| input(table, word_type)).collect();
            let layout = layout(&inputs[0], 2);
            let expected = input(&fold(&tables), word_type);
            for strategy in STRATEGIES {
                // The workers of `sharded` race, so that the last value is not the last one of the inputs.
                let threads = if strategy == Strategy::Sharded { 1 } else { threads };
                let merged = merge(inputs.clone(), &layout, &Options { threads, strategy }).unwrap();
                prop_assert_eq!(rows(&merged), rows(std::slice::from_ref(&expected)), "{:?}", strategy);
            }
        }
    }

    #[test]
    fn packed_keys_unpack_to_themselves(
        a in prop::collection::vec(any::<i16>(), 1..50),
        b in any::<u64>(),
        wide in any::<u128>(),
        nulls in prop::collection::vec(0u8..2, 50),
        columns in prop::collection::vec(0usize..5, 1..6),
    ) {
        let count = a.len();
        let numbers: Vec<u64> = a.iter().map(|value| b.wrapping_mul(*value as u64)).collect();
        let shorts = Data::W2(a.iter().map(|value| *value as u16).collect());
        let nullable = Data::Nullable { nulls: nulls[..count].to_vec(), values: Box::new(Data::W8(numbers.clone())) };
        let columns: Vec<(&str, Data)> = columns.iter().map(|kind| match kind {
            0 => ("Int16", shorts.clone()),
            1 => ("UInt64", Data::W8(numbers.clone())),
            2 => ("Nullable(UInt64)", nullable.clone()),
            3 => ("UInt128", Data::W16(numbers.iter().map(|value| wide ^ u128::from(*value)).collect())),
            _ => ("Nullable(UInt128)", Data::Nullable {
                nulls: nulls[..count].to_vec(),
                values: Box::new(Data::W16(numbers.iter().map(|value| wide ^ u128::from(*value)).collect())),
            }),
        }).collect();
        let keys = columns.len();
        let mut columns = columns;
        columns.push(("SimpleAggregateFunction(sum, UInt64)", Data::W8(vec![1; count])));
        let input = block(columns);
        let merged = merge(vec![input.clone()], &layout(&input, keys), &Options { threads: 1, strategy: Strategy::Radix });
        let mut expected: BTreeMap<Vec<Vec<u8>>, u64> = BTreeMap::new();
        for mut row in rows(std::slice::from_ref(&input)) {
            row.truncate(keys);
            *expected.entry(row).or_default() += 1;
        }
        let expected: Vec<Vec<Vec<u8>>> = expected.into_iter().map(|(mut row, sum)| {
            row.push(sum.to_le_bytes().to_vec());
            row
        }).collect();
        prop_assert_eq!(rows(&merged.unwrap()), expected);
    }
}

#[test]
fn many_rows_in_many_morsels_merge_to_the_same() {
    let number = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let table = |table: u64| {
        let keys: Vec<u64> = (0..70_000).map(|at| number(at + table * 1000) << 16).collect();
        let sums = keys.iter().map(|key| key ^ table).collect();
        block(vec![("UInt64", Data::W8(keys)), ("SimpleAggregateFunction(sum, UInt64)", Data::W8(sums))])
    };
    let inputs: Vec<Block> = (0..3).map(table).collect();
    let layout = layout(&inputs[0], 1);
    let merged = |strategy, threads| rows(&merge(inputs.clone(), &layout, &Options { threads, strategy }).unwrap());
    let expected = merged(Strategy::Serial, 1);
    for strategy in STRATEGIES {
        assert!(expected == merged(strategy, 1) && expected == merged(strategy, 3), "{strategy:?}");
    }
}

/// Texts of 0 to 99 bytes: many begin alike, some end alike, and some differ in a zero byte at the end.
fn text(number: u64) -> Vec<u8> {
    let mut text = vec![b'a'; (number % 99) as usize];
    text.extend((number > 99).then_some((number % 3) as u8));
    if number.is_multiple_of(7) {
        text.splice(0..0, number.to_string().into_bytes());
    }
    text
}

#[test]
fn keys_of_any_text_in_many_morsels_merge_to_the_same() {
    let numbers = |table: u64| (0..40_000).map(move |at: u64| (at + table * 1000).wrapping_mul(0x9e37_79b9) % 3_000);
    let texts = |table| Data::Bytes(numbers(table).map(text).collect::<Vec<_>>().iter().map(Vec::as_slice).collect());
    let nullable = |table| Data::Nullable {
        nulls: numbers(table).map(|number| u8::from(number % 5 == 0)).collect(),
        values: Box::new(texts(table)),
    };
    let shorts = |table| Data::W2(numbers(table).map(|number| number as u16 % 50).collect());
    let words = |table| low_cardinality(&numbers(table).map(|n| Some((n % 40).to_string())).collect::<Vec<_>>());
    type Keys<'a> = Vec<(&'static str, &'a dyn Fn(u64) -> Data)>;
    let shapes: [Keys<'_>; 5] = [
        vec![("String", &texts)],
        vec![("Nullable(String)", &nullable)],
        vec![("UInt16", &shorts), ("String", &texts)],
        vec![("String", &texts), ("LowCardinality(Nullable(String))", &words), ("Nullable(String)", &nullable)],
        vec![("UInt16", &shorts), ("LowCardinality(Nullable(String))", &words)],
    ];
    for shape in shapes {
        let table = |table: u64| {
            let mut columns: Vec<(&str, Data)> = shape.iter().map(|(type_, make)| (*type_, make(table))).collect();
            let values: Vec<u64> = (0..40_000).map(|row| row + (table << 32)).collect();
            columns.push(("SimpleAggregateFunction(sum, UInt64)", Data::W8(values.clone())));
            columns.push(("SimpleAggregateFunction(anyLast, UInt64)", Data::W8(values)));
            block(columns)
        };
        let inputs: Vec<Block> = (0..3).map(table).collect();
        let layout = layout(&inputs[0], shape.len());
        let merged = |strategy, threads| rows(&merge(inputs.clone(), &layout, &Options { threads, strategy }).unwrap());
        let expected = merged(Strategy::Serial, 1);
        let mut fold: BTreeMap<Vec<Vec<u8>>, (u64, u64)> = BTreeMap::new();
        for (number, row) in inputs.iter().flat_map(|input| (0..input.rows).map(move |row| (input, row))) {
            let bytes = |column: &Column| {
                let mut bytes = Vec::new();
                serialized::write(&column.data, row, &mut bytes);
                bytes
            };
            let Data::W8(values) = &number.columns[shape.len()].data else { unreachable!() };
            let group = fold.entry(number.columns[..shape.len()].iter().map(bytes).collect()).or_default();
            *group = (group.0 + values[row], values[row]);
        }
        let fold: Vec<Vec<Vec<u8>>> = fold
            .into_iter()
            .map(|(key, (sum, last))| key.into_iter().chain([sum, last].map(|v| v.to_le_bytes().to_vec())).collect())
            .collect();
        let types: Vec<_> = shape.iter().map(|(type_, _)| type_).collect();
        assert!(expected == fold, "serial, {types:?}");
        for strategy in [Strategy::Auto, Strategy::Radix, Strategy::Tree, Strategy::Fixed] {
            assert!(expected == merged(strategy, 1) && expected == merged(strategy, 3), "{strategy:?}, {types:?}");
        }
        assert!(expected == merged(Strategy::Sharded, 1), "sharded, {types:?}");
    }
}

#[test]
fn few_keys_with_most_of_the_rows_are_merged_to_the_same() {
    // Nine rows of ten share three keys; the others have keys of their own.
    let number = |at: u64| if at.is_multiple_of(10) { at.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { at % 3 };
    let rows = 0..200_000;
    for as_text in [false, true] {
        let keys = match as_text {
            true => {
                Data::Bytes(rows.clone().map(number).map(text).collect::<Vec<_>>().iter().map(Vec::as_slice).collect())
            }
            false => Data::W8(rows.clone().map(number).collect()),
        };
        let type_ = if as_text { "String" } else { "UInt64" };
        let input =
            block(vec![(type_, keys), ("SimpleAggregateFunction(anyLast, UInt64)", Data::W8(rows.clone().collect()))]);
        let inputs: Vec<Block> = vec![input.clone(), input];
        let layout = layout(&inputs[0], 1);
        let merged =
            |strategy, threads| self::rows(&merge(inputs.clone(), &layout, &Options { threads, strategy }).unwrap());
        let expected = merged(Strategy::Serial, 1);
        for threads in 1..4 {
            assert!(expected == merged(Strategy::Auto, threads) && expected == merged(Strategy::Radix, threads));
        }
    }
}

#[test]
fn buckets_of_few_keys_are_merged_in_shares() {
    // Nine rows of ten share one key, as 64 bits and as a small domain.
    for spread in [1, u64::MAX / 64] {
        let keys: Vec<u64> = (0..300_000).map(|at| if at % 10 == 0 { at % 50 * spread } else { 7 * spread }).collect();
        let sums = (0..300_000).collect();
        let columns = vec![("UInt64", Data::W8(keys)), ("SimpleAggregateFunction(sum, UInt64)", Data::W8(sums))];
        let inputs = vec![block(columns)];
        let layout = layout(&inputs[0], 1);
        let merged = |strategy, threads| rows(&merge(inputs.clone(), &layout, &Options { threads, strategy }).unwrap());
        let expected = merged(Strategy::Serial, 1);
        assert!(expected == merged(Strategy::Radix, 2) && expected == merged(Strategy::Fixed, 2));
    }
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(40))]
    #[test]
    fn a_directly_indexed_table_equals_serial_for_any_number_of_workers(
        rows in prop::collection::vec((0u16..300, word(), any::<u64>()), 1100..2000),
        // Keys that occur in some blocks only: a share has no value for them.
        shift in 0u16..300,
        columns in 1usize..5,
        threads in 1usize..6,
    ) {
        type Rows = [(u16, Option<String>, u64)];
        let chunk = |(at, rows): (usize, &Rows)| {
            let words: Vec<_> = rows.iter().map(|(_, word, _)| word.clone()).collect();
            let plain: Bytes = rows.iter().map(|(_, word, _)| word.as_deref().unwrap_or("").as_bytes()).collect();
            let sums: Vec<u64> = rows.iter().map(|(_, _, sum)| *sum).collect();
            let mut all = vec![
                ("SimpleAggregateFunction(anyLast, String)", Data::Bytes(plain)),
                ("SimpleAggregateFunction(anyLast, Nullable(String))", nullable_strings(&words)),
                ("SimpleAggregateFunction(sum, UInt64)", Data::W8(sums.clone())),
                ("SimpleAggregateFunction(max, UInt64)", Data::W8(sums)),
            ];
            all.truncate(columns);
            let keys = rows.iter().map(|(key, _, _)| key + if at % 2 == 0 { shift } else { 0 }).collect();
            all.insert(0, ("UInt16", Data::W2(keys)));
            block(all)
        };
        let inputs: Vec<Block> = rows.chunks(100).enumerate().map(chunk).collect();
        let layout = layout(&inputs[0], 1);
        let merged = |strategy| merge(inputs.clone(), &layout, &Options { threads, strategy }).unwrap();
        prop_assert_eq!(self::rows(&merged(Strategy::Fixed)), self::rows(&merged(Strategy::Serial)));
    }
}

#[test]
fn opaque_states_stay_one_by_one_beside_merged_ones() {
    let input = |keys: &[u8], opaque: &[&str], sums: &[u64], least: &[u8]| {
        block(vec![
            ("UInt8", Data::W1(keys.to_vec())),
            ("String", Data::Bytes(opaque.iter().map(|state| state.as_bytes()).collect())),
            ("SimpleAggregateFunction(sum, UInt64)", Data::W8(sums.to_vec())),
            ("SimpleAggregateFunction(min, UInt8)", Data::W1(least.to_vec())),
        ])
    };
    let inputs = vec![input(&[1, 2], &["a", "b"], &[1, 2], &[7, 8]), input(&[1, 1], &["c", "d"], &[10, 100], &[5, 9])];
    let layout = Layout {
        key_count: 1,
        state_types: ["AggregateFunction(topK(3), String)", "SimpleAggregateFunction(sum, UInt64)"]
            .into_iter()
            .chain(["SimpleAggregateFunction(min, UInt8)"])
            .map(type_)
            .collect(),
    };
    let expected = input(&[1, 1, 1, 2], &["a", "c", "d", "b"], &[111, 0, 0, 2], &[5, 5, 5, 8]);
    for strategy in STRATEGIES {
        let merged = merge(inputs.clone(), &layout, &Options { threads: 1, strategy }).unwrap();
        assert_eq!(rows(&merged), rows(std::slice::from_ref(&expected)), "{strategy:?}");
    }
}

#[test]
fn inputs_that_do_not_fit_the_layout_are_refused() {
    let input = block(vec![("UInt8", Data::W1(vec![1]))]);
    let layout = Layout { key_count: 1, state_types: vec![type_("SimpleAggregateFunction(sum, UInt64)")] };
    let outcome = merge(vec![input], &layout, &Options::default());
    assert!(matches!(outcome, Err(MergeError::Layout { block: 0, .. })), "{outcome:?}");
}
