//! Which family a storage type belongs to.

use super::arg::{Arg, Single};
use super::arg_words::ArgWords;
use super::pick::{Order, Pick, Rule};
use super::sketch::{Sketch, Sketched};
use super::text::{self, Text};
use super::words::{Field, Form, Op, Words};
use super::{Function, StateError, bitmap, hyperloglog, list, reservoir, sum_map, tdigest, uniq};
use crate::wire::{AggregateType, DataType};

/// The merge function of a storage type, `SimpleAggregateFunction(..)` or `AggregateFunction(..)`.
pub fn function(storage: &DataType) -> Result<Box<dyn Function>, StateError> {
    let found = match storage {
        DataType::Simple { function, inner } => simple(function, inner.stored(), &storage.to_string()),
        DataType::Aggregate(type_) => aggregate(type_),
        _ => None,
    };
    found.ok_or_else(|| StateError::Opaque { type_name: storage.to_string() })
}

fn simple(function: &str, stored: &DataType, type_name: &str) -> Option<Box<dyn Function>> {
    // Of LowCardinality only strings are spread out again; numbers are not worth it.
    let low_cardinality = matches!(stored, DataType::LowCardinality(_));
    let plain = if let DataType::LowCardinality(inner) = stored { inner } else { stored };
    let (nullable, value) = match plain {
        DataType::Nullable(inner) => (true, inner.as_ref()),
        other => (false, other),
    };
    if let Some(rule) = rule(function) {
        let form = match value {
            DataType::String => Some(text::Form::Values),
            DataType::FixedString(width) => Some(text::Form::FixedValues(*width)),
            _ => None,
        };
        if low_cardinality {
            // Written back as the type says, a dictionary would have to be made anew.
            return None;
        }
        if let Some(form) = form {
            return Some(Box::new(Text { type_name: type_name.into(), rule, form, nullable }));
        }
        let (width, order) = number(value)?;
        return Some(Box::new(Pick { type_name: type_name.into(), rule, order, width, nullable, values: true }));
    }
    let (width, order) = number(value).filter(|_| !low_cardinality)?;
    let op = match function {
        "sum" | "sumWithOverflow" => add(width, order)?,
        "groupBitAnd" => Op::And,
        "groupBitOr" => Op::Or,
        "groupBitXor" => Op::Xor,
        _ => return None,
    };
    let form = if nullable { Form::NullableValues } else { Form::Values };
    Some(Box::new(Words { type_name: type_name.into(), fields: vec![Field::fixed(width, op)], form }))
}

/// The merge function of an `AggregateFunction` type.
pub(super) fn aggregate(type_: &AggregateType) -> Option<Box<dyn Function>> {
    let type_name = type_.to_string();
    // sumIf has the state of sum: the condition is its last argument.
    let (name, condition, arguments) = match (type_.function.strip_suffix("If"), type_.arguments.as_slice()) {
        (Some(name), [arguments @ .., condition]) => (name, Some(condition), arguments),
        (Some(_), []) => return None,
        (None, arguments) => (type_.function.as_str(), None, arguments),
    };
    let nullable = is_flagged(name, condition, arguments);
    let values: Vec<&DataType> = arguments.iter().map(value_type).collect();
    if let Some(rule) = rule(name) {
        let form = match values.first()? {
            DataType::String => Some(text::Form::StringStates),
            DataType::FixedString(width) => Some(text::Form::FixedStates(*width)),
            // Its order is that of its bytes.
            DataType::Ipv6 => Some(text::Form::FixedStates(16)),
            _ => None,
        };
        if let Some(form) = form {
            return Some(Box::new(Text { type_name, rule, form, nullable }));
        }
        let (width, order) = number(values.first()?)?;
        return Some(Box::new(Pick { type_name, rule, order, width, nullable, values: false }));
    }
    if let "argMin" | "argMax" = name {
        let [result, value] = values.as_slice() else { return None };
        let (result, value) = (single(result)?, single(value)?);
        let is_max = name == "argMax";
        return Some(match ArgWords::new(&type_name, is_max, nullable, result, value) {
            Some(words) => Box::new(words),
            None => Box::new(Arg { type_name, is_max, nullable, result, value }),
        });
    }
    if let Some(fields) = words(name, &values) {
        let form = if nullable { Form::FlaggedStates } else { Form::States };
        return Some(Box::new(Words { type_name, fields, form }));
    }
    sketch(name, type_name, type_, &values, nullable)
}

/// Whether a byte in front of the state says if there is a value. Seen in 26.9, function by function:
///
/// ```text
///                                             NULLs in an argument | in the condition of -If
/// sum, min, uniqCombined, quantile, ..:                      flag  | no flag
/// uniq, uniqExact, uniqHLL12, quantiles..:                   flag  | flag: without a value they have a default
/// count:                                  no flag (with -If: flag) | flag
/// sumCount, groupArray, groupUniqArray, sumMap:           no flag  | no flag: NULLs are left out
/// ```
fn is_flagged(name: &str, condition: Option<&DataType>, arguments: &[DataType]) -> bool {
    let in_arguments = arguments.iter().any(DataType::is_nullable);
    let in_condition = condition.is_some_and(DataType::is_nullable);
    match name {
        "sumCount" | "groupArray" | "groupUniqArray" | "sumMap" => false,
        "count" => condition.is_some() && (in_arguments || in_condition),
        "uniq" | "uniqExact" | "uniqHLL12" => in_arguments || in_condition,
        name if name.starts_with("quantiles") => in_arguments || in_condition,
        _ => in_arguments,
    }
}

fn sketch(
    name: &str,
    type_name: String,
    type_: &AggregateType,
    values: &[&DataType],
    nullable: bool,
) -> Option<Box<dyn Function>> {
    fn boxed<S: Sketch + 'static>(type_name: String, form: S::Form, flagged: bool) -> Option<Box<dyn Function>> {
        Some(Box::new(Sketched::<S> { type_name, form, flagged }))
    }
    let first = *values.first()?;
    let parameter = type_.parameters.as_deref();
    let max = || parameter.map(|text| text.trim().parse::<usize>()).transpose().ok();
    let width = number(first).map(|(width, _)| width);
    match name {
        "uniq" => boxed::<uniq::Uniq>(type_name, (), nullable),
        "uniqExact" => set(type_name, exact_width(values), None, nullable),
        "uniqCombined" | "uniqCombined64" => {
            let precision = parameter.map_or(Some(UNIQ_COMBINED_PRECISION), |text| text.trim().parse().ok())?;
            // Strings are kept with all 64 bits of their hash.
            let is_string = matches!(values, [DataType::String | DataType::FixedString(_) | DataType::Ipv6]);
            let wide = name == "uniqCombined64" || is_string;
            let form = hyperloglog::Form { precision, key_bits: if wide { 64 } else { 32 }, hll12: None };
            (12..=20).contains(&precision).then(|| boxed::<hyperloglog::Counter>(type_name, form, nullable))?
        }
        "uniqHLL12" => {
            use hyperloglog::Hll12;
            let hll12 = match values {
                [DataType::String | DataType::FixedString(_) | DataType::Uuid | DataType::Ipv6] => Hll12::Hashes,
                [DataType::BFloat16] => Hll12::Values(2),
                [value] if plain_width(value).is_some() => Hll12::Values(plain_width(value).filter(|w| *w <= 8)?),
                _ => Hll12::WholeHashes,
            };
            let form = hyperloglog::Form { precision: 12, key_bits: 32, hll12: Some(hll12) };
            boxed::<hyperloglog::Counter>(type_name, form, nullable)
        }
        "quantileTDigest" | "quantilesTDigest" | "quantileTDigestWeighted" | "quantilesTDigestWeighted" => {
            boxed::<tdigest::TDigest>(type_name, (), nullable)
        }
        "quantile" | "quantiles" | "median" => match width? {
            1 => boxed::<reservoir::Reservoir<u8>>(type_name, (), nullable),
            2 => boxed::<reservoir::Reservoir<u16>>(type_name, (), nullable),
            4 => boxed::<reservoir::Reservoir<u32>>(type_name, (), nullable),
            8 => boxed::<reservoir::Reservoir<u64>>(type_name, (), nullable),
            16 => boxed::<reservoir::Reservoir<u128>>(type_name, (), nullable),
            _ => boxed::<reservoir::Reservoir<[u64; 4]>>(type_name, (), nullable),
        },
        "quantileExact" | "quantilesExact" | "medianExact" => {
            boxed::<list::List>(type_name, list::Form { width: Some(width?), max: None }, nullable)
        }
        "groupArray" => {
            let form = list::Form { width: plain_width(first), max: max()? };
            boxed::<list::List>(type_name, form, nullable)
        }
        "groupUniqArray" => match (plain_width(first), first) {
            // Arrays stand without a length in front.
            (None, DataType::Array(_) | DataType::Map(..)) => None,
            (None, _) => boxed::<uniq::Strings>(type_name, max()?, nullable),
            (width, _) => set(type_name, width, max()?, nullable),
        },
        "groupBitmap" => {
            let signed = matches!(first, DataType::Int(_));
            let width = width.filter(|width| *width <= 8 && matches!(first, DataType::Int(_) | DataType::UInt(_)))?;
            boxed::<bitmap::Bitmap>(type_name, bitmap::Form { width, signed }, nullable)
        }
        "sumMap" => boxed::<sum_map::SumMap>(type_name, sum_map_form(type_, values)?, nullable),
        _ => None,
    }
}

/// The precision of `uniqCombined` without a parameter.
const UNIQ_COMBINED_PRECISION: u32 = 17;

fn set(type_name: String, width: Option<usize>, max: Option<usize>, flagged: bool) -> Option<Box<dyn Function>> {
    Some(match width? {
        1 => Box::new(Sketched::<uniq::Words<u8>> { type_name, form: max, flagged }),
        2 => Box::new(Sketched::<uniq::Words<u16>> { type_name, form: max, flagged }),
        4 => Box::new(Sketched::<uniq::Words<u32>> { type_name, form: max, flagged }),
        8 => Box::new(Sketched::<uniq::Words<u64>> { type_name, form: max, flagged }),
        16 => Box::new(Sketched::<uniq::Words<u128>> { type_name, form: max, flagged }),
        32 => Box::new(Sketched::<uniq::Words<[u64; 4]>> { type_name, form: max, flagged }),
        _ => return None,
    })
}

/// Bytes of an element of uniqExact: numbers are kept as they are, everything else as a 128-bit hash.
fn exact_width(values: &[&DataType]) -> Option<usize> {
    match values {
        [value] => match value {
            DataType::Decimal { .. }
            | DataType::DateTime64(_)
            | DataType::Uuid
            | DataType::Ipv6
            | DataType::String
            | DataType::FixedString(_)
            | DataType::Array(_)
            | DataType::Map(..)
            | DataType::Tuple(_) => Some(16),
            other => plain_width(other),
        },
        [] => None,
        _ => Some(16),
    }
}

/// Bytes of a value that arrays and sets hold as it is in memory. Of other types they hold a length and bytes.
fn plain_width(value: &DataType) -> Option<usize> {
    match value {
        DataType::Int(_)
        | DataType::UInt(_)
        | DataType::Float32
        | DataType::Float64
        | DataType::Date
        | DataType::Date32
        | DataType::DateTime(_)
        | DataType::Bool
        | DataType::Ipv4
        | DataType::Enum8(_)
        | DataType::Enum16(_) => value.width(),
        _ => None,
    }
}

fn single(value: &DataType) -> Option<Single> {
    match value {
        DataType::String => Some(Single::String),
        DataType::FixedString(width) => Some(Single::Fixed(*width, None)),
        DataType::Ipv6 => Some(Single::Fixed(16, None)),
        other => number(other).map(|(width, order)| Single::Fixed(width, Some(order))),
    }
}

fn sum_map_form(type_: &AggregateType, arguments: &[&DataType]) -> Option<sum_map::Form> {
    let (key, values) = match arguments {
        [DataType::Map(key, value)] => (key.as_ref(), vec![value.as_ref()]),
        // Version 0, which bare states over HTTP have, keeps sums in the arguments' own narrow types.
        [DataType::Array(key), values @ ..] if !values.is_empty() && type_.version == Some(1) => {
            let elements = values.iter().map(|value| match value {
                DataType::Array(element) => Some(element.as_ref()),
                _ => None,
            });
            (key.as_ref(), elements.collect::<Option<Vec<_>>>()?)
        }
        _ => return None,
    };
    let key_width = if *key == DataType::String { None } else { Some(plain_width(key)?) };
    let sums = values.iter().map(|value| sum(value)).collect::<Option<Vec<_>>>()?;
    // Decimals keep their own width here.
    let is_decimal = values.iter().any(|value| matches!(value, DataType::Decimal { .. }));
    (!is_decimal).then_some(sum_map::Form { key_width, sums })
}

/// The words of a state, for functions whose state is nothing else.
fn words(name: &str, values: &[&DataType]) -> Option<Vec<Field>> {
    let moments = |count: usize| {
        let single = values.iter().all(|value| matches!(value, DataType::Float32));
        let field = if single { Field::fixed(4, Op::AddF32) } else { Field::fixed(8, Op::AddF64) };
        Some(vec![field; count])
    };
    if name == "count" {
        return Some(vec![Field::count()]);
    }
    let (width, order) = number(values.first()?)?;
    match name {
        "sum" => Some(vec![sum(values[0])?]),
        "sumWithOverflow" => Some(vec![Field::fixed(width, add(width, order)?)]),
        "avg" | "sumCount" => Some(vec![sum(values[0])?, Field::count()]),
        "groupBitAnd" => Some(vec![Field::fixed(width, Op::And)]),
        "groupBitOr" => Some(vec![Field::fixed(width, Op::Or)]),
        "groupBitXor" => Some(vec![Field::fixed(width, Op::Xor)]),
        "varPop" | "varSamp" | "stddevPop" | "stddevSamp" => moments(3),
        "skewPop" | "skewSamp" => moments(4),
        "kurtPop" | "kurtSamp" => moments(5),
        "covarPop" | "covarSamp" => moments(4),
        "corr" => moments(6),
        _ => None,
    }
}

/// The word that a sum of values of this type is kept in.
fn sum(value: &DataType) -> Option<Field> {
    let (width, order) = number(value)?;
    Some(match (value, order) {
        (DataType::Decimal { .. }, _) => Field::fixed(width.max(16), Op::Add),
        (_, Order::Float) => Field::fixed(8, Op::AddF64),
        (DataType::Int(_) | DataType::UInt(_) | DataType::Bool, _) => Field::fixed(width.max(8), Op::Add),
        _ => return None,
    })
}

fn add(width: usize, order: Order) -> Option<Op> {
    match (order, width) {
        (Order::Float, 4) => Some(Op::AddF32),
        (Order::Float, 8) => Some(Op::AddF64),
        (Order::Float, _) => None,
        _ => Some(Op::Add),
    }
}

fn rule(function: &str) -> Option<Rule> {
    match function {
        "min" => Some(Rule::Min),
        "max" => Some(Rule::Max),
        "any" => Some(Rule::First),
        "anyLast" => Some(Rule::Last),
        _ => None,
    }
}

/// The type of the values themselves, without Nullable and LowCardinality around it.
pub(super) fn value_type(type_: &DataType) -> &DataType {
    match type_ {
        DataType::Nullable(inner) | DataType::LowCardinality(inner) => value_type(inner),
        other => other,
    }
}

/// Width in bytes and order of a type whose values are single numbers.
pub(super) fn number(type_: &DataType) -> Option<(usize, Order)> {
    let order = match type_ {
        DataType::Bool
        | DataType::UInt(_)
        | DataType::Date
        | DataType::DateTime(_)
        | DataType::Ipv4
        | DataType::Uuid => Order::Unsigned,
        DataType::Int(_)
        | DataType::Decimal { .. }
        | DataType::Date32
        | DataType::DateTime64(_)
        | DataType::Time
        | DataType::Time64(_)
        | DataType::Enum8(_)
        | DataType::Enum16(_)
        | DataType::Interval(_) => Order::Signed,
        DataType::BFloat16 | DataType::Float32 | DataType::Float64 => Order::Float,
        _ => return None,
    };
    Some((type_.width()?, order))
}
