//! The Native decoder against what a server may send and against what nobody sends.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;

/// A type and a column of it with `rows` rows.
fn column(rows: usize) -> impl Strategy<Value = (DataType, Data)> {
    let strings = move || {
        vec(vec(any::<u8>(), 0..5), rows).prop_map(|values| Data::Bytes(values.iter().map(Vec::as_slice).collect()))
    };
    let nulls = move || vec(0u8..2, rows);
    let type_ = |text: &str| DataType::parse(text).unwrap();
    prop_oneof![
        vec(any::<u8>(), rows).prop_map(move |values| (type_("Bool"), Data::W1(values))),
        vec(any::<u16>(), rows).prop_map(move |values| (type_("Date"), Data::W2(values))),
        vec(any::<u32>(), rows).prop_map(move |values| (type_("DateTime('UTC')"), Data::W4(values))),
        vec(any::<u64>(), rows).prop_map(move |values| (type_("Decimal(18, 4)"), Data::W8(values))),
        vec(any::<u128>(), rows).prop_map(move |values| (type_("UUID"), Data::W16(values))),
        vec(any::<[u64; 4]>(), rows).prop_map(move |values| (type_("Int256"), Data::W32(values))),
        vec(any::<u8>(), rows * 3).prop_map(move |bytes| (type_("FixedString(3)"), Data::Fixed { width: 3, bytes })),
        strings().prop_map(move |data| (type_("String"), data)),
        (nulls(), strings()).prop_map(move |(nulls, values)| {
            (type_("Nullable(String)"), Data::Nullable { nulls, values: Box::new(values) })
        }),
        (vec(0u64..3, rows), Just(())).prop_flat_map(move |(lengths, ())| {
            let mut end = 0;
            let ends: Vec<u64> = lengths
                .iter()
                .map(|length| {
                    end += length;
                    end
                })
                .collect();
            vec(any::<u64>(), end as usize).prop_map(move |values| {
                let elements = Data::Tuple(vec![Data::W8(values.clone()), Data::W8(values)]);
                (type_("Map(UInt64, Int64)"), Data::Array { ends: ends.clone(), values: Box::new(elements) })
            })
        }),
        vec(0u32..4, rows).prop_map(move |keys| {
            let words = ["", "a", "", "ccc"].iter().map(|word| word.as_bytes()).collect();
            let data = Data::LowCardinality { keys, dictionary: Box::new(Data::Bytes(words)) };
            (type_("LowCardinality(Nullable(String))"), data)
        }),
    ]
}

fn block() -> impl Strategy<Value = Block> {
    (1usize..6).prop_flat_map(|rows| {
        vec(column(rows), 1..5).prop_map(move |columns| Block {
            columns: columns
                .into_iter()
                .enumerate()
                .map(|(at, (type_, data))| Column { name: format!("c{at}"), type_, data })
                .collect(),
            rows,
        })
    })
}

fn encode_all(blocks: &[Block]) -> Vec<u8> {
    let mut bytes = Vec::new();
    blocks.iter().for_each(|block| native::encode(block, &mut bytes));
    bytes
}

proptest! {
    #[test]
    fn blocks_round_trip_in_pieces_of_any_size(blocks in vec(block(), 1..4), piece in 1usize..50) {
        let bytes = encode_all(&blocks);
        let mut decoder = native::Decoder::new(native::no_states);
        let mut decoded = Vec::new();
        for piece in bytes.chunks(piece) {
            decoded.extend(decoder.push(piece).unwrap());
        }
        decoder.finish().unwrap();
        prop_assert_eq!(&decoded, &blocks);
        prop_assert_eq!(native::decode(&bytes, native::no_states).unwrap(), blocks);
    }

    #[test]
    fn a_stream_cut_short_is_incomplete(block in block(), cut in any::<usize>()) {
        let bytes = encode_all(&[block]);
        let cut = cut % (bytes.len() - 1) + 1;
        let outcome = native::decode(&bytes[..cut], native::no_states);
        prop_assert!(matches!(outcome, Err(WireError::Incomplete { .. })), "{:?}", outcome);
    }

    #[test]
    fn changed_bytes_do_not_panic(block in block(), changes in vec((any::<usize>(), any::<u8>()), 1..5)) {
        let mut bytes = encode_all(&[block]);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(blocks) = native::decode(&bytes, crate::state::skip) {
            // What was decoded is whole: every row of every column can be read.
            blocks.iter().flat_map(|block| &block.columns).for_each(|column| {
                column.data.gather(&(0..column.data.len() as u32).collect::<Vec<_>>());
            });
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = native::decode(&bytes, crate::state::skip);
    }

    #[test]
    fn arbitrary_type_names_do_not_panic(text in "[A-Za-z0-9(),'` \\\\]{0,40}") {
        if let Ok(type_) = DataType::parse(&text) {
            prop_assert_eq!(DataType::parse(&type_.to_string()).unwrap(), type_);
        }
    }
}

#[test]
fn a_huge_count_is_refused_before_memory_is_taken() {
    let mut bytes = Vec::new();
    write_varint(&mut bytes, 1);
    write_varint(&mut bytes, 1 << 29);
    write_string(&mut bytes, b"c");
    write_string(&mut bytes, b"Array(Nullable(UInt64))");
    bytes.extend_from_slice(&[0; 64]);
    let outcome = native::decode(&bytes, native::no_states);
    assert!(matches!(outcome, Err(WireError::Incomplete { .. })), "{outcome:?}");
    bytes[1..6].copy_from_slice(&[0xff; 5]);
    assert!(native::decode(&bytes, native::no_states).is_err());
}
