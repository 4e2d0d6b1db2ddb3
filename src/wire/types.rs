//! ClickHouse data types, parsed from and rendered to the text that ClickHouse itself writes.

use std::fmt;

use super::WireError;

/// Nesting beyond this is refused, so that a crafted type name cannot exhaust the stack.
const DEPTH_MAX: usize = 64;

/// A data type. Parameters that do not change the binary form (enum values, time zones, parameters of aggregate
/// functions) are kept as ClickHouse's own text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DataType {
    Nothing,
    Bool,
    /// `Int8` .. `Int256`: width in bits.
    Int(u16),
    /// `UInt8` .. `UInt256`: width in bits.
    UInt(u16),
    BFloat16,
    Float32,
    Float64,
    Decimal {
        precision: u8,
        scale: u8,
    },
    String,
    /// Width in bytes.
    FixedString(usize),
    Date,
    Date32,
    /// The text between the parentheses, if any: a quoted time zone.
    DateTime(Option<String>),
    /// The text between the parentheses: scale and maybe a quoted time zone.
    DateTime64(String),
    Time,
    Time64(String),
    Uuid,
    Ipv4,
    Ipv6,
    /// The text between the parentheses: `'name' = value, ..`.
    Enum8(String),
    Enum16(String),
    /// `IntervalDay`: the unit.
    Interval(String),
    Nullable(Box<DataType>),
    LowCardinality(Box<DataType>),
    Array(Box<DataType>),
    /// Elements, each with the name as written (backquotes included) where it has one.
    Tuple(Vec<(Option<String>, DataType)>),
    Map(Box<DataType>, Box<DataType>),
    /// `Point`, `Ring`, ..: a name that stands for a composed type.
    Named(&'static str, Box<DataType>),
    /// `SimpleAggregateFunction(function, T)`: stored as `T`. The function's text may have parameters.
    Simple {
        function: String,
        inner: Box<DataType>,
    },
    Aggregate(AggregateType),
}

/// `AggregateFunction([version, ]function[(parameters)], arguments..)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AggregateType {
    /// Version of the state's binary form; `None` where ClickHouse writes none (version 0).
    pub version: Option<u64>,
    pub function: String,
    /// The text between the parentheses of the function, `0.5, 0.9`; `None` without parentheses.
    pub parameters: Option<String>,
    pub arguments: Vec<DataType>,
}

impl DataType {
    pub fn parse(text: &str) -> Result<Self, WireError> {
        parse(text, 0)
    }

    /// Bytes of one value where all values of the type have the same width and no other structure.
    pub fn width(&self) -> Option<usize> {
        Some(match self {
            Self::Nothing | Self::Bool | Self::Enum8(_) => 1,
            Self::BFloat16 | Self::Date | Self::Enum16(_) => 2,
            Self::Float32 | Self::Date32 | Self::DateTime(_) | Self::Time | Self::Ipv4 => 4,
            Self::Float64 | Self::DateTime64(_) | Self::Time64(_) | Self::Interval(_) => 8,
            Self::Uuid | Self::Ipv6 => 16,
            Self::Int(bits) | Self::UInt(bits) => usize::from(*bits) / 8,
            Self::Decimal { precision, .. } => match precision {
                0..=9 => 4,
                10..=18 => 8,
                19..=38 => 16,
                _ => 32,
            },
            Self::FixedString(width) => *width,
            Self::Simple { inner, .. } => return inner.width(),
            _ => return None,
        })
    }

    /// The type that values are stored as: without `SimpleAggregateFunction(f, ..)` around it.
    pub fn stored(&self) -> &DataType {
        match self {
            Self::Simple { inner, .. } => inner.stored(),
            other => other,
        }
    }

    pub fn is_nullable(&self) -> bool {
        match self.stored() {
            Self::Nullable(_) => true,
            Self::LowCardinality(inner) => inner.is_nullable(),
            _ => false,
        }
    }
}

fn unknown(text: &str, what: &str) -> WireError {
    WireError::Type { type_name: text.to_string(), what: what.to_string() }
}

fn parse(text: &str, depth: usize) -> Result<DataType, WireError> {
    let text = text.trim();
    if depth > DEPTH_MAX {
        return Err(unknown(text, "nested too deeply"));
    }
    let Some((name, arguments)) = split_call(text)? else {
        return simple(text).ok_or_else(|| unknown(text, "no such type in the Native decoder"));
    };
    let inner = |argument: &str| Ok::<_, WireError>(Box::new(parse(argument, depth + 1)?));
    let number = |argument: &str| argument.trim().parse::<usize>().map_err(|_| unknown(text, "a number was expected"));
    let parts = split_arguments(arguments);
    Ok(match (name, parts.as_slice()) {
        ("FixedString", [width]) => match number(width)? {
            0 => return Err(unknown(text, "a width of 0")),
            width => DataType::FixedString(width),
        },
        ("Decimal", [precision, scale]) => decimal(text, number(precision)?, number(scale)?)?,
        ("Decimal", [precision]) => decimal(text, number(precision)?, 0)?,
        ("Decimal32", [scale]) => decimal(text, 9, number(scale)?)?,
        ("Decimal64", [scale]) => decimal(text, 18, number(scale)?)?,
        ("Decimal128", [scale]) => decimal(text, 38, number(scale)?)?,
        ("Decimal256", [scale]) => decimal(text, 76, number(scale)?)?,
        ("DateTime", [_]) => DataType::DateTime(Some(arguments.to_string())),
        ("DateTime64", _) => DataType::DateTime64(arguments.to_string()),
        ("Time64", _) => DataType::Time64(arguments.to_string()),
        ("Enum8", _) => DataType::Enum8(arguments.to_string()),
        ("Enum16", _) => DataType::Enum16(arguments.to_string()),
        ("Nullable", [argument]) => DataType::Nullable(inner(argument)?),
        ("LowCardinality", [argument]) => DataType::LowCardinality(inner(argument)?),
        ("Array", [argument]) => DataType::Array(inner(argument)?),
        ("Map", [key, value]) => DataType::Map(inner(key)?, inner(value)?),
        ("Tuple", elements) => DataType::Tuple(tuple(elements, depth)?),
        ("Nested", elements) => DataType::Array(Box::new(DataType::Tuple(tuple(elements, depth)?))),
        ("SimpleAggregateFunction", [function, argument]) => {
            DataType::Simple { function: function.trim().to_string(), inner: inner(argument)? }
        }
        ("AggregateFunction", parts) if !parts.is_empty() => DataType::Aggregate(aggregate(text, parts, depth)?),
        _ => return Err(unknown(text, "no such type in the Native decoder")),
    })
}

fn decimal(text: &str, precision: usize, scale: usize) -> Result<DataType, WireError> {
    if precision == 0 || precision > 76 || scale > precision {
        return Err(unknown(text, "precision is 1 to 76, scale at most the precision"));
    }
    Ok(DataType::Decimal { precision: precision as u8, scale: scale as u8 })
}

fn aggregate(text: &str, parts: &[&str], depth: usize) -> Result<AggregateType, WireError> {
    let version = parts[0].trim().parse::<u64>().ok();
    let parts = if version.is_some() { &parts[1..] } else { parts };
    let [function, arguments @ ..] = parts else {
        return Err(unknown(text, "an aggregate function was expected"));
    };
    let (function, parameters) = match split_call(function.trim())? {
        Some((name, parameters)) => (name, Some(parameters.to_string())),
        None => (function.trim(), None),
    };
    let arguments = arguments.iter().map(|argument| parse(argument, depth + 1)).collect::<Result<_, _>>()?;
    Ok(AggregateType { version, function: function.to_string(), parameters, arguments })
}

/// Elements of a tuple: `UInt8`, `name UInt8`, `` `any name` UInt8 ``.
fn tuple(elements: &[&str], depth: usize) -> Result<Vec<(Option<String>, DataType)>, WireError> {
    elements
        .iter()
        .map(|element| {
            let element = element.trim();
            let name_end = match element.strip_prefix('`') {
                Some(rest) => end_of_quoted(rest, '`').map(|end| end + 1),
                None => element.find([' ', '(', '\'']).filter(|at| element[*at..].starts_with(' ')),
            };
            Ok(match name_end {
                Some(end) => (Some(element[..end].to_string()), parse(&element[end..], depth + 1)?),
                None => (None, parse(element, depth + 1)?),
            })
        })
        .collect()
}

/// `name(arguments)` into its two pieces; `None` when there are no parentheses.
fn split_call(text: &str) -> Result<Option<(&str, &str)>, WireError> {
    match text.find('(') {
        None => Ok(None),
        Some(open) => match text.strip_suffix(')') {
            Some(rest) => Ok(Some((text[..open].trim_end(), &rest[open + 1..]))),
            None => Err(unknown(text, "a closing parenthesis is missing")),
        },
    }
}

/// Offset after the closing quote in the text that follows an opening one.
fn end_of_quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    None
}

/// Splits at the commas that stand outside of parentheses and quotes.
fn split_arguments(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut at) = (0, 0usize, 0);
    while let Some(character) = text[at..].chars().next() {
        let next = at + character.len_utf8();
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = next;
            }
            '\'' | '`' => {
                at = end_of_quoted(&text[next..], character).map_or(text.len(), |end| next + end);
                continue;
            }
            _ => {}
        }
        at = next;
    }
    if !text[start..].trim().is_empty() || !parts.is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

fn simple(text: &str) -> Option<DataType> {
    if let Some(bits) = text.strip_prefix("UInt").and_then(integer_bits) {
        return Some(DataType::UInt(bits));
    }
    if let Some(bits) = text.strip_prefix("Int").and_then(integer_bits) {
        return Some(DataType::Int(bits));
    }
    if let Some(unit) = text.strip_prefix("Interval").filter(|unit| !unit.is_empty()) {
        return Some(DataType::Interval(unit.to_string()));
    }
    let named = |name, inner: DataType| Some(DataType::Named(name, Box::new(inner)));
    let array = |inner: DataType| DataType::Array(Box::new(inner));
    let point = || DataType::Tuple(vec![(None, DataType::Float64), (None, DataType::Float64)]);
    Some(match text {
        "Nothing" => DataType::Nothing,
        "Bool" => DataType::Bool,
        "BFloat16" => DataType::BFloat16,
        "Float32" => DataType::Float32,
        "Float64" => DataType::Float64,
        "String" => DataType::String,
        "Date" => DataType::Date,
        "Date32" => DataType::Date32,
        "DateTime" => DataType::DateTime(None),
        "Time" => DataType::Time,
        "UUID" => DataType::Uuid,
        "IPv4" => DataType::Ipv4,
        "IPv6" => DataType::Ipv6,
        "Point" => return named("Point", point()),
        "Ring" => return named("Ring", array(point())),
        "LineString" => return named("LineString", array(point())),
        "Polygon" => return named("Polygon", array(array(point()))),
        "MultiLineString" => return named("MultiLineString", array(array(point()))),
        "MultiPolygon" => return named("MultiPolygon", array(array(array(point())))),
        _ => return None,
    })
}

fn integer_bits(text: &str) -> Option<u16> {
    match text {
        "8" => Some(8),
        "16" => Some(16),
        "32" => Some(32),
        "64" => Some(64),
        "128" => Some(128),
        "256" => Some(256),
        _ => None,
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Bool => f.write_str("Bool"),
            Self::Int(bits) => write!(f, "Int{bits}"),
            Self::UInt(bits) => write!(f, "UInt{bits}"),
            Self::BFloat16 => f.write_str("BFloat16"),
            Self::Float32 => f.write_str("Float32"),
            Self::Float64 => f.write_str("Float64"),
            Self::Decimal { precision, scale } => write!(f, "Decimal({precision}, {scale})"),
            Self::String => f.write_str("String"),
            Self::FixedString(width) => write!(f, "FixedString({width})"),
            Self::Date => f.write_str("Date"),
            Self::Date32 => f.write_str("Date32"),
            Self::DateTime(None) => f.write_str("DateTime"),
            Self::DateTime(Some(zone)) => write!(f, "DateTime({zone})"),
            Self::DateTime64(arguments) => write!(f, "DateTime64({arguments})"),
            Self::Time => f.write_str("Time"),
            Self::Time64(arguments) => write!(f, "Time64({arguments})"),
            Self::Uuid => f.write_str("UUID"),
            Self::Ipv4 => f.write_str("IPv4"),
            Self::Ipv6 => f.write_str("IPv6"),
            Self::Enum8(values) => write!(f, "Enum8({values})"),
            Self::Enum16(values) => write!(f, "Enum16({values})"),
            Self::Interval(unit) => write!(f, "Interval{unit}"),
            Self::Nullable(inner) => write!(f, "Nullable({inner})"),
            Self::LowCardinality(inner) => write!(f, "LowCardinality({inner})"),
            Self::Array(inner) => write!(f, "Array({inner})"),
            Self::Tuple(elements) => {
                f.write_str("Tuple(")?;
                for (i, (name, element)) in elements.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    match name {
                        Some(name) => write!(f, "{name} {element}")?,
                        None => write!(f, "{element}")?,
                    }
                }
                f.write_str(")")
            }
            Self::Map(key, value) => write!(f, "Map({key}, {value})"),
            Self::Named(name, _) => f.write_str(name),
            Self::Simple { function, inner } => write!(f, "SimpleAggregateFunction({function}, {inner})"),
            Self::Aggregate(aggregate) => write!(f, "{aggregate}"),
        }
    }
}

impl fmt::Display for AggregateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AggregateFunction(")?;
        if let Some(version) = self.version {
            write!(f, "{version}, ")?;
        }
        f.write_str(&self.function)?;
        if let Some(parameters) = &self.parameters {
            write!(f, "({parameters})")?;
        }
        for argument in &self.arguments {
            write!(f, ", {argument}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_print_as_they_were_written() {
        for text in [
            "UInt256",
            "Enum8('a\\'b, (' = -1, 'c' = 2)",
            "Decimal(76, 10)",
            "DateTime('UTC')",
            "DateTime64(3, 'Europe/Berlin')",
            "Tuple(a UInt8, `b c` String)",
            "Tuple(UInt8, Array(LowCardinality(Nullable(String))))",
            "Array(Tuple(x UInt8, y FixedString(3)))",
            "Map(LowCardinality(String), Array(UInt8))",
            "AggregateFunction(1, sumMap, Array(UInt8), Array(UInt64))",
            "AggregateFunction(quantiles(0.5, 0.9), Float64)",
            "AggregateFunction(count)",
            "SimpleAggregateFunction(sum, Decimal(38, 2))",
            "MultiPolygon",
            "IntervalDay",
            "Time64(3)",
        ] {
            assert_eq!(DataType::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_unknown_type_is_an_error_that_names_it() {
        for text in ["Dynamic", "UInt7", "Array(UInt8", "Tuple(a Variant(UInt8, String))", "FixedString(0)", ""] {
            assert!(matches!(DataType::parse(text), Err(WireError::Type { .. })), "{text}");
        }
        let deep = "Array(".repeat(10_000) + "UInt8" + &")".repeat(10_000);
        assert!(DataType::parse(&deep).is_err());
    }
}
