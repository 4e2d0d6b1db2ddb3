//! Which family a storage type belongs to.

use super::pick::{Order, Pick, Rule};
use super::text::{self, Text};
use super::words::{Field, Form, Op, Words};
use super::{Function, StateError};
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
    let (name, arguments) = match type_.function.strip_suffix("If") {
        Some(name) => (name, type_.arguments.split_last()?.1),
        None => (type_.function.as_str(), type_.arguments.as_slice()),
    };
    let nullable = arguments.iter().any(DataType::is_nullable);
    let values: Vec<&DataType> = arguments.iter().map(value_type).collect();
    if let Some(rule) = rule(name) {
        let form = match values.first()? {
            DataType::String => Some(text::Form::StringStates),
            DataType::FixedString(width) => Some(text::Form::FixedStates(*width)),
            _ => None,
        };
        if let Some(form) = form {
            return Some(Box::new(Text { type_name, rule, form, nullable }));
        }
        let (width, order) = number(values.first()?)?;
        return Some(Box::new(Pick { type_name, rule, order, width, nullable, values: false }));
    }
    let fields = words(name, &values)?;
    // count of a Nullable counts the values that are not NULL: its state needs no flag.
    let form = if nullable && name != "count" { Form::FlaggedStates } else { Form::States };
    Some(Box::new(Words { type_name, fields, form }))
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
