//! Group keys: packed into words of 8, 16 or 32 bytes where they fit, else serialised once into an arena.
//!
//! Numbers are packed by the range that they span in the inputs, and LowCardinality columns by the size of their
//! common dictionary, so that the dimensions of most views fit one 64-bit word:
//!
//! ```text
//! year 1992..1998: 3 bits | region, 5 words: 3 bits | brand, 1000 words: 10 bits   -> 16 bits
//! ```

use hashbrown::HashMap;

use super::hash::Seed;
use super::{arena, parallel, serialized};
use crate::state::{Lane, Word, copy_referenced};
use crate::wire::{Block, Bytes, Data, DataType, Reader};

/// Keys of at most so many bits index a table directly.
pub(crate) const DIRECT_BITS_MAX: u32 = 20;

/// Keys and states of finished groups, the keys still packed.
pub(crate) struct Finished<K> {
    pub keys: Vec<K>,
    pub states: Vec<Data>,
}

/// How the key columns of one merge are packed.
#[derive(Debug)]
pub(crate) struct KeyPlan {
    columns: Vec<KeyColumn>,
    pub seed: Seed,
    /// Bits of a packed key; `None`: bytes in arenas.
    pub bits: Option<u32>,
    /// Order of the bytes in arenas.
    order: arena::Order,
}

#[derive(Debug)]
struct KeyColumn {
    part: Part,
    /// The highest bit of the part says NULL.
    nullable: bool,
    bits: u32,
    /// The column without rows.
    empty: Data,
}

#[derive(Debug)]
enum Part {
    /// `(value ^ flip) - base` of a number of at most 64 bits; `flip` is the sign bit of signed types.
    Number { flip: u64, base: u64 },
    /// The only key column, of 64 bits that are all in use: the words as they are.
    Whole,
    /// A number of 128 bits.
    Wide,
    /// Ids in a dictionary common to all inputs: `ids[block][key]`.
    Dictionary { values: Data, ids: Vec<Vec<u32>> },
    /// No fixed width.
    Other,
}

/// A word that keys are packed into.
pub(crate) trait KeyWord: Word {
    /// `value << shift`, to be combined by `or`.
    fn place(value: u128, shift: u32) -> Self;
    /// `bits` bits (at most 128) from `shift` on.
    fn extract(self, shift: u32, bits: u32) -> u128;
}

fn low_bits(value: u128, bits: u32) -> u128 {
    if bits >= 128 { value } else { value & ((1 << bits) - 1) }
}

impl KeyWord for u32 {
    fn place(value: u128, shift: u32) -> Self {
        (value as u32).checked_shl(shift).unwrap_or(0)
    }
    fn extract(self, shift: u32, bits: u32) -> u128 {
        low_bits(u128::from(self.checked_shr(shift).unwrap_or(0)), bits)
    }
}

impl KeyWord for u64 {
    fn place(value: u128, shift: u32) -> Self {
        (value as u64).checked_shl(shift).unwrap_or(0)
    }
    fn extract(self, shift: u32, bits: u32) -> u128 {
        low_bits(u128::from(self.checked_shr(shift).unwrap_or(0)), bits)
    }
}

impl KeyWord for u128 {
    fn place(value: u128, shift: u32) -> Self {
        value.checked_shl(shift).unwrap_or(0)
    }
    fn extract(self, shift: u32, bits: u32) -> u128 {
        low_bits(self.checked_shr(shift).unwrap_or(0), bits)
    }
}

impl KeyWord for [u64; 4] {
    fn place(value: u128, shift: u32) -> Self {
        std::array::from_fn(|limb| {
            let from = limb as i64 * 64 - i64::from(shift);
            match from {
                128.. => 0,
                0.. => (value >> from) as u64,
                -63..0 => (value << -from) as u64,
                _ => 0,
            }
        })
    }
    fn extract(self, shift: u32, bits: u32) -> u128 {
        let limb = (shift / 64) as usize;
        let at = |limb: usize| self.get(limb).copied().unwrap_or(0);
        let low = u128::from(at(limb)) | u128::from(at(limb + 1)) << 64;
        let inner = shift % 64;
        let value = if inner == 0 { low } else { low >> inner | u128::from(at(limb + 2)) << (128 - inner) };
        low_bits(value, bits)
    }
}

impl KeyPlan {
    /// Looks at the key columns of all inputs, which have rows and columns of the same types.
    pub fn new(inputs: &[Block], key_count: usize, order: arena::Order, threads: usize) -> Self {
        let mut columns: Vec<KeyColumn> = match key_count {
            1 if is_whole(inputs) => vec![KeyColumn::whole()],
            _ => (0..key_count).map(|at| KeyColumn::new(inputs, at, threads)).collect(),
        };
        let total: Option<u32> = columns
            .iter()
            .map(|column| (!matches!(column.part, Part::Other)).then_some(column.bits))
            .try_fold(0, |sum, bits| bits.map(|bits| sum + bits));
        let bits = total.filter(|bits| *bits <= 256);
        if bits.is_none() {
            // Serialised keys hold the value itself, and the id for dictionaries.
            columns.iter_mut().filter(|column| !column.is_dictionary()).for_each(|column| column.part = Part::Other);
        }
        Self { columns, seed: Seed::random(), bits, order }
    }

    /// Packed keys of a block's key columns, and the arena that they refer to (empty for keys that fit a word).
    pub fn pack(&self, batch: usize, mut block: Block, scratch: &mut arena::Scratch) -> (Lane, Bytes) {
        if let ([column], [key]) = (self.columns.as_slice(), block.columns.as_mut_slice())
            && let (Part::Whole, Data::W8(words)) = (&column.part, &mut key.data)
        {
            return (Lane::W8(std::mem::take(words)), Bytes::default());
        }
        let (words, arena) = match self.bits {
            Some(1..=DIRECT_BITS_MAX) => return (u32::lane(self.pack_words(batch, &block)), Bytes::default()),
            Some(0..=64) => return (u64::lane(self.pack_words(batch, &block)), Bytes::default()),
            Some(65..=128) => return (u128::lane(self.pack_words(batch, &block)), Bytes::default()),
            Some(_) => return (<[u64; 4]>::lane(self.pack_words(batch, &block)), Bytes::default()),
            None => arena::fill(self.seed, batch, self.bytes(batch, block), self.order, scratch),
        };
        (u128::lane(words), arena)
    }

    /// The only key column, of strings: they are their own serialised form.
    fn is_text(&self) -> bool {
        matches!(self.columns.as_slice(), [KeyColumn { empty: Data::Bytes(_), .. }])
    }

    fn pack_words<K: KeyWord>(&self, batch: usize, block: &Block) -> Vec<K> {
        let mut words = vec![K::default(); block.rows];
        let mut shift = 0;
        for (column, key) in self.columns.iter().zip(&block.columns) {
            column.pack(batch, &key.data, shift, &mut words);
            shift += column.bits;
        }
        words
    }

    /// Keys without a fixed width as bytes.
    fn bytes(&self, batch: usize, mut block: Block) -> Bytes {
        if let (true, [key]) = (self.is_text(), block.columns.as_mut_slice())
            && let Data::Bytes(texts) = &mut key.data
        {
            return std::mem::take(texts);
        }
        let mut bytes = Bytes { ends: Vec::with_capacity(block.rows), bytes: Vec::new() };
        for row in 0..block.rows {
            for (column, key) in self.columns.iter().zip(&block.columns) {
                match (&column.part, &key.data) {
                    (Part::Dictionary { ids, .. }, Data::LowCardinality { keys, .. }) => {
                        bytes.bytes.extend_from_slice(&ids[batch][keys[row] as usize].to_le_bytes());
                    }
                    (_, data) => serialized::write(data, row, &mut bytes.bytes),
                }
            }
            bytes.end_row();
        }
        bytes
    }

    pub fn unpack_words<K: KeyWord>(&self, words: &[K]) -> Vec<Data> {
        let mut shift = 0;
        self.columns
            .iter()
            .map(|column| {
                let data = column.unpack(words, shift);
                shift += column.bits;
                data
            })
            .collect()
    }

    /// The columns of keys in arenas.
    pub fn read(&self, words: &[u128], arenas: &[Bytes]) -> Vec<Data> {
        if self.is_text() {
            let references: Vec<u64> = words.iter().map(|word| *word as u64).collect();
            return vec![Data::Bytes(copy_referenced(arenas, &references, b""))];
        }
        let mut columns: Vec<Data> = self
            .columns
            .iter()
            .map(|column| if column.is_dictionary() { Data::W4(Vec::new()) } else { column.empty.clone() })
            .collect();
        for word in words {
            let mut reader = Reader::new(crate::state::referenced(arenas, *word as u64));
            for data in &mut columns {
                if let Err(error) = serialized::read(&mut reader, data) {
                    unreachable!("a key made by `bytes` is read back: {error}");
                }
            }
        }
        let finish = |(column, data): (&KeyColumn, Data)| match (&column.part, data) {
            (Part::Dictionary { values, .. }, Data::W4(ids)) => low_cardinality(values, ids),
            (_, data) => data,
        };
        self.columns.iter().zip(columns).map(finish).collect()
    }
}

impl KeyColumn {
    fn new(inputs: &[Block], at: usize, threads: usize) -> Self {
        let first = &inputs[0].columns[at];
        let columns = inputs.iter().map(|block| &block.columns[at].data);
        let empty = first.data.gather(&[]);
        let nullable = matches!(first.data, Data::Nullable { .. });
        let type_ = match first.type_.stored() {
            DataType::Nullable(inner) => inner.stored(),
            other => other,
        };
        let sign = sign_bit(type_);
        let (part, bits) = match &first.data {
            Data::LowCardinality { .. } => dictionary(columns, first.type_.is_nullable()),
            _ => match range(columns.collect(), sign, threads) {
                Some((base, last)) => {
                    (Part::Number { flip: sign, base }, u64::BITS - last.wrapping_sub(base).leading_zeros())
                }
                None if is_wide(&first.data) => (Part::Wide, 128),
                None => (Part::Other, 0),
            },
        };
        Self { part, nullable, bits: bits + u32::from(nullable), empty }
    }

    fn whole() -> Self {
        Self { part: Part::Whole, nullable: false, bits: 64, empty: Data::W8(Vec::new()) }
    }

    fn is_dictionary(&self) -> bool {
        matches!(self.part, Part::Dictionary { .. })
    }

    fn pack<K: KeyWord>(&self, batch: usize, data: &Data, shift: u32, words: &mut [K]) {
        let (nulls, values) = match data {
            Data::Nullable { nulls, values } => (Some(nulls.as_slice()), values.as_ref()),
            values => (None, values),
        };
        fn place<K: KeyWord>(words: &mut [K], shift: u32, values: impl Iterator<Item = u128>) {
            words.iter_mut().zip(values).for_each(|(word, value)| *word = word.or(K::place(value, shift)));
        }
        fn numbers<K: KeyWord>(
            words: &mut [K],
            shift: u32,
            values: impl Iterator<Item = u64>,
            (flip, base): (u64, u64),
            (nulls, null): (Option<&[u8]>, u128),
        ) {
            let values = values.map(|value| u128::from((value ^ flip).wrapping_sub(base)));
            match nulls {
                None => place(words, shift, values),
                Some(nulls) => {
                    place(
                        words,
                        shift,
                        values.zip(nulls).map(|(value, is_null)| if *is_null != 0 { null } else { value }),
                    );
                }
            }
        }
        match (&self.part, values) {
            (Part::Number { flip, base }, values) => {
                // At most 64 bits of number below it.
                let null = if self.nullable { 1 << (self.bits - 1) } else { 0 };
                let (form, nulls) = ((*flip, *base), (nulls, null));
                match values {
                    Data::W1(values) => numbers(words, shift, values.iter().map(|v| u64::from(*v)), form, nulls),
                    Data::W2(values) => numbers(words, shift, values.iter().map(|v| u64::from(*v)), form, nulls),
                    Data::W4(values) => numbers(words, shift, values.iter().map(|v| u64::from(*v)), form, nulls),
                    Data::W8(values) => numbers(words, shift, values.iter().copied(), form, nulls),
                    other => unreachable!("a number column became {other:?}"),
                }
            }
            (Part::Wide, Data::W16(values)) => {
                let is_null = |row: usize| nulls.is_some_and(|nulls| nulls[row] != 0);
                let value = |(row, value): (usize, &u128)| if is_null(row) { 0 } else { *value };
                place(words, shift, values.iter().enumerate().map(value));
                if self.nullable {
                    place(words, shift + 128, (0..words.len()).map(|row| u128::from(is_null(row))));
                }
            }
            (Part::Dictionary { ids, .. }, Data::LowCardinality { keys, .. }) => {
                place(words, shift, keys.iter().map(|key| u128::from(ids[batch][*key as usize])));
            }
            (part, other) => unreachable!("{part:?} met {other:?}"),
        }
    }

    fn unpack<K: KeyWord>(&self, words: &[K], shift: u32) -> Data {
        let bits = self.bits - u32::from(self.nullable);
        let values = match &self.part {
            Part::Number { flip, base } => {
                let numbers = words.iter().map(|word| (word.extract(shift, bits) as u64).wrapping_add(*base) ^ flip);
                let form = if let Data::Nullable { values, .. } = &self.empty { values } else { &self.empty };
                match form {
                    Data::W1(_) => Data::W1(numbers.map(|value| value as u8).collect()),
                    Data::W2(_) => Data::W2(numbers.map(|value| value as u16).collect()),
                    Data::W4(_) => Data::W4(numbers.map(|value| value as u32).collect()),
                    _ => Data::W8(numbers.collect()),
                }
            }
            Part::Whole => Data::W8(words.iter().map(|word| word.extract(shift, 64) as u64).collect()),
            Part::Wide => Data::W16(words.iter().map(|word| word.extract(shift, 128)).collect()),
            Part::Dictionary { values, .. } => {
                return low_cardinality(values, words.iter().map(|word| word.extract(shift, bits) as u32).collect());
            }
            Part::Other => unreachable!("a key without fixed width is serialised"),
        };
        if !self.nullable {
            return values;
        }
        let nulls = words.iter().map(|word| word.extract(shift + bits, 1) as u8).collect();
        Data::Nullable { nulls, values: Box::new(values) }
    }
}

/// Whether the first column is one of 64-bit numbers that span more than a directly indexed table can.
fn is_whole(inputs: &[Block]) -> bool {
    let mut span = (u64::MAX, 0);
    for block in inputs {
        let Data::W8(values) = &block.columns[0].data else { return false };
        for value in values {
            span = (span.0.min(*value), span.1.max(*value));
        }
        if span.1 - span.0 >= 1 << DIRECT_BITS_MAX {
            return true;
        }
    }
    false
}

/// The sign bit of signed numbers, which is flipped so that their order is that of unsigned ones.
fn sign_bit(type_: &DataType) -> u64 {
    let signed = matches!(
        type_,
        DataType::Int(_)
            | DataType::Decimal { .. }
            | DataType::Date32
            | DataType::DateTime64(_)
            | DataType::Time
            | DataType::Time64(_)
            | DataType::Enum8(_)
            | DataType::Enum16(_)
            | DataType::Interval(_)
    );
    match type_.width() {
        Some(width @ 1..=8) if signed => 1 << (width * 8 - 1),
        _ => 0,
    }
}

fn is_wide(data: &Data) -> bool {
    match data {
        Data::W16(_) => true,
        Data::Nullable { values, .. } => matches!(values.as_ref(), Data::W16(_)),
        _ => false,
    }
}

/// Least and greatest `value ^ flip` of columns of numbers; `None` for other columns. NULLs count as 0.
fn range(columns: Vec<&Data>, flip: u64, threads: usize) -> Option<(u64, u64)> {
    fn bounds<T: Copy>(values: &[T], number: impl Fn(T) -> u64) -> (u64, u64) {
        values.iter().fold((u64::MAX, 0), |(least, greatest), value| {
            let value = number(*value);
            (least.min(value), greatest.max(value))
        })
    }
    fn of(data: &Data, flip: u64) -> Option<(u64, u64)> {
        match data {
            Data::W1(values) => Some(bounds(values, |value| u64::from(value) ^ flip)),
            Data::W2(values) => Some(bounds(values, |value| u64::from(value) ^ flip)),
            Data::W4(values) => Some(bounds(values, |value| u64::from(value) ^ flip)),
            Data::W8(values) => Some(bounds(values, |value| value ^ flip)),
            Data::Nullable { values, .. } => of(values, flip),
            _ => None,
        }
    }
    let ranges = parallel::each(threads, columns, || (), |(), data| of(data, flip).ok_or(())).ok()?;
    Some(ranges.iter().fold((u64::MAX, 0), |(least, greatest), (low, high)| (least.min(*low), greatest.max(*high))))
}

/// One dictionary for all columns. Id 0 is the default value or NULL, as in ClickHouse's dictionaries.
fn dictionary<'a>(columns: impl Iterator<Item = &'a Data>, nullable: bool) -> (Part, u32) {
    let mut known: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut values: Option<Data> = None;
    let mut ids = Vec::new();
    for column in columns {
        let Data::LowCardinality { dictionary, .. } = column else { unreachable!("inputs have the same types") };
        let mut fresh = Vec::new();
        let mut next = values.as_ref().map_or(0, Data::len) as u32;
        let block_ids = (0..dictionary.len()).map(|entry| {
            if entry == 0 && next > 0 {
                return 0;
            }
            // Entry 0 of a nullable dictionary is NULL, and not the same as an equal value further down.
            let mut bytes = vec![u8::from(nullable && entry == 0)];
            serialized::write(dictionary, entry, &mut bytes);
            *known.entry(bytes).or_insert_with(|| {
                fresh.push(entry as u32);
                next += 1;
                next - 1
            })
        });
        ids.push(block_ids.collect());
        let fresh = dictionary.gather(&fresh);
        match &mut values {
            Some(values) => values.append(&fresh),
            None => values = Some(fresh),
        }
    }
    let values = values.unwrap_or(Data::W1(Vec::new()));
    let bits = u32::BITS - (values.len().saturating_sub(1) as u32).leading_zeros();
    (Part::Dictionary { values, ids }, bits)
}

/// A column of ids in `values`, with a dictionary of just those that occur (and id 0).
fn low_cardinality(values: &Data, mut ids: Vec<u32>) -> Data {
    let mut local = vec![u32::MAX; values.len()];
    let mut used = Vec::new();
    if let Some(first) = local.first_mut() {
        *first = 0;
        used.push(0);
    }
    for id in &mut ids {
        let place = &mut local[*id as usize];
        if *place == u32::MAX {
            *place = used.len() as u32;
            used.push(*id);
        }
        *id = *place;
    }
    Data::LowCardinality { keys: ids, dictionary: Box::new(values.gather(&used)) }
}
