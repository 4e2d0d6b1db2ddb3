//! Aggregates of a query -> aggregates over the columns of a view.
//!
//! Sums and counts are built row by row: an *addend* is an expression over one row of the view whose sum over the view's
//! rows is the sum that the query wants over the source's. So conditions over dimensions stay where they were written:
//! `sum(CASE WHEN region = 'north' THEN price ELSE 0 END)` is `sum(multiIf(region = 'north', <stored sum>, 0))`.

use super::buckets;
use super::derive::{Deriver, column_type, view_column};
use super::domain::bare_type;
use super::normal::{Keyed, int_literal};
use super::view::{ColumnKind, Storage, is_small_int, may_be_null};
use crate::sql::expression::text_literal;
use crate::sql::functions;
use crate::sql::tree::{Call, Expr, Literal, Value};

/// Aggregate functions to which it is the same whether a value comes once or often.
const OF_SETS: [&str; 16] = [
    "min",
    "max",
    "any",
    "anyLast",
    "uniq",
    "uniqExact",
    "uniqCombined",
    "uniqCombined64",
    "uniqHLL12",
    "uniqTheta",
    "groupUniqArray",
    "groupBitAnd",
    "groupBitOr",
    "groupBitmap",
    "argMin",
    "argMax",
];

/// Families whose states are the same whatever level is asked for at the end.
const QUANTILES: [[&str; 3]; 4] = [
    ["quantile", "quantiles", "median"],
    ["quantileExact", "quantilesExact", "medianExact"],
    ["quantileTDigest", "quantilesTDigest", "medianTDigest"],
    ["quantileTiming", "quantilesTiming", "medianTiming"],
];

/// Functions that give 0 or 1, and NULL only for NULL.
const TESTS: [&str; 14] = [
    "equals",
    "notEquals",
    "less",
    "lessOrEquals",
    "greater",
    "greaterOrEquals",
    "and",
    "or",
    "not",
    "like",
    "notLike",
    "startsWith",
    "in",
    "notIn",
];

/// A call that picks one of several values by conditions, cut into its parts.
struct Choice<'a> {
    call: &'a Call,
    arguments: &'a [Keyed],
}

impl<'a> Choice<'a> {
    /// `if`, `multiIf`, or CASE with an operand.
    fn of(expr: &'a Keyed) -> Option<Self> {
        let Expr::Call(call) = &expr.expr else { return None };
        let arguments = expr.arguments();
        let fits = match &*call.function {
            "if" => arguments.len() == 3,
            "multiIf" => arguments.len() >= 3 && arguments.len() % 2 == 1,
            "caseWithExpression" => arguments.len() >= 4 && arguments.len().is_multiple_of(2),
            _ => false,
        };
        fits.then_some(Choice { call, arguments })
    }

    /// Whether the argument at this position is one of the values.
    fn is_value(&self, position: usize) -> bool {
        let last = position + 1 == self.arguments.len();
        let has_operand = usize::from(self.call.function == "caseWithExpression");
        last || (position >= has_operand && (position - has_operand) % 2 == 1)
    }

    fn values(&self) -> impl Iterator<Item = &'a Keyed> + '_ {
        self.arguments.iter().enumerate().filter(|(at, _)| self.is_value(*at)).map(|(_, value)| value)
    }

    /// The same choice among other values, by the same conditions.
    fn over(&self, condition: &dyn Fn(&Keyed) -> Option<Expr>, value: &dyn Fn(&Keyed) -> Option<Expr>) -> Option<Expr> {
        let parts = self.arguments.iter().enumerate();
        let arguments = parts.map(|(at, part)| if self.is_value(at) { value(part) } else { condition(part) });
        Some(Expr::call(&self.call.function, arguments.collect::<Option<_>>()?))
    }

    /// The condition and the value of `if(condition, value, NULL)`.
    fn only(&self) -> Option<(&'a Keyed, &'a Keyed)> {
        match self.arguments {
            [condition, value, otherwise] if is_null(&otherwise.expr) => Some((condition, value)),
            _ => None,
        }
    }
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(Literal { value: Value::Null, .. }))
}

impl Deriver<'_> {
    /// An aggregate of the query from the aggregates and dimensions of the view.
    pub(super) fn aggregate(&self, expr: &Keyed, call: &Call) -> Option<Expr> {
        if let Some(position) = self.stored(&expr.key) {
            return self.merge(position, call.parameters.clone(), None);
        }
        let Expr::Call(normal) = &expr.normal else { return None };
        if normal.distinct {
            // Over the set of the dimensions' values; the rows of a view hold each value at least once.
            return self.children(expr, &|child| self.row(child)).ok();
        }
        let (function, combinators) = functions::aggregate(&normal.function)?;
        let arguments = expr.arguments();
        let (arguments, condition) = match (&*combinators, arguments) {
            ([], _) => (arguments, None),
            (["If"], [inner @ .., condition]) => (inner, Some(self.row(condition).ok()?)),
            _ => return None,
        };
        // The count of `count(*)` has no argument.
        let arguments = if function == "count" && normal.arguments.is_empty() { &[] } else { arguments };
        let condition = condition.as_ref();
        match (function, arguments) {
            ("count", []) => self.count(condition),
            ("count", [argument]) => self.count_of(argument, condition),
            ("sum", [argument]) => self.sum(argument, condition),
            ("avg", [argument]) => self.avg(argument, condition),
            ("min" | "max", [argument]) => self.extreme(function, argument, condition),
            (_, [argument]) => {
                let chosen = Choice::of(argument).and_then(|choice| choice.only()).and_then(|(test, value)| {
                    let test = self.row(test).ok()?;
                    let both = match condition {
                        Some(condition) => Expr::call("and", vec![condition.clone(), test]),
                        None => test,
                    };
                    self.any_function(function, normal, std::slice::from_ref(value), Some(&both))
                });
                self.any_function(function, normal, arguments, condition).or(chosen)
            }
            _ => self.any_function(function, normal, arguments, condition),
        }
    }

    /// A function with no rule of its own: its stored state, or the function itself over dimensions.
    fn any_function(
        &self,
        function: &str,
        normal: &Call,
        arguments: &[Keyed],
        condition: Option<&Expr>,
    ) -> Option<Expr> {
        let parameters = normal.parameters.clone();
        let inner: Vec<Expr> = arguments.iter().map(|a| a.normal.clone()).collect();
        if let Some(position) = self.stored(&self.key_of(function, &parameters, &inner)) {
            return self.merge(position, parameters, condition);
        }
        if let Some(position) = self.other_level(function, &inner) {
            return self.merge_as(function, position, parameters, condition);
        }
        if !OF_SETS.contains(&function) {
            return None;
        }
        let mut derived = arguments.iter().map(|a| self.row(a).ok()).collect::<Option<Vec<_>>>()?;
        let name = format!("{function}{}", if condition.is_some() { "If" } else { "" });
        derived.extend(condition.cloned());
        Some(Expr::Call(Call { name: name.clone(), function: name, parameters, arguments: derived, distinct: false }))
    }

    fn key_of(&self, function: &str, parameters: &Option<Vec<Expr>>, arguments: &[Expr]) -> String {
        let call = Expr::Call(Call {
            name: function.into(),
            function: function.into(),
            parameters: parameters.clone(),
            arguments: arguments.to_vec(),
            distinct: false,
        });
        Keyed::new(&call, &self.block.tables).key.to_string()
    }

    /// The position of a stored state of the same family of quantiles over the same argument.
    fn other_level(&self, function: &str, arguments: &[Expr]) -> Option<usize> {
        let family = QUANTILES.iter().find(|family| family.contains(&function))?;
        let wanted = self.key_of(family[0], &None, arguments);
        self.view.columns.iter().position(|column| {
            let Expr::Call(stored) = &column.expr.normal else { return false };
            // Expressions of a view number tables as the view does.
            let name = family[0].to_string();
            let plain = Call { name: name.clone(), function: name, parameters: None, ..stored.clone() };
            family.contains(&&*stored.function) && *Keyed::new(&Expr::Call(plain), &self.view.tables).key == *wanted
        })
    }

    fn stored(&self, key: &str) -> Option<usize> {
        self.view.position(key).filter(|p| !self.view.is_dimension(*p))
    }

    /// The merge of a stored aggregate, over the rows for which `condition` holds.
    fn merge(&self, position: usize, parameters: Option<Vec<Expr>>, condition: Option<&Expr>) -> Option<Expr> {
        let ColumnKind::Aggregate { function, .. } = &self.view.columns[position].kind else { return None };
        self.merge_as(function, position, parameters, condition)
    }

    fn merge_as(
        &self,
        function: &str,
        position: usize,
        parameters: Option<Vec<Expr>>,
        condition: Option<&Expr>,
    ) -> Option<Expr> {
        let ColumnKind::Aggregate { storage, .. } = &self.view.columns[position].kind else { return None };
        let combinator = if condition.is_some() { "If" } else { "" };
        let (name, parameters) = match storage {
            Storage::Simple(merge) => (format!("{merge}{combinator}"), None),
            Storage::State => (format!("{function}Merge{combinator}"), parameters),
        };
        let arguments = std::iter::once(view_column(position)).chain(condition.cloned()).collect();
        Some(Expr::Call(Call { name: name.clone(), function: name, parameters, arguments, distinct: false }))
    }

    /// The column of a stored aggregate whose state is a finished value.
    fn stored_value(&self, key: &str) -> Option<Expr> {
        let position = self.stored(key)?;
        match self.view.columns[position].kind {
            ColumnKind::Aggregate { storage: Storage::Simple(_), .. } => Some(view_column(position)),
            _ => None,
        }
    }

    /// The position of a stored number of rows per key: `count()`, or `count(x)` of an x that is never NULL.
    fn rows_stored(&self) -> Option<usize> {
        self.stored("count()").or_else(|| {
            self.view.columns.iter().position(|column| {
                let argument = column.expr.normal.as_call("count").and_then(|c| c.arguments.first());
                // Expressions of a view number tables as the view does, those of the query as the query does.
                argument
                    .is_some_and(|a| column_type(a, &self.view.tables, self.schema).is_some_and(|t| !may_be_null(t)))
            })
        })
    }

    fn count(&self, condition: Option<&Expr>) -> Option<Expr> {
        self.merge(self.rows_stored()?, None, condition)
    }

    fn count_of(&self, argument: &Keyed, condition: Option<&Expr>) -> Option<Expr> {
        if let Some(position) = self.stored(&format!("count({})", argument.key)) {
            return self.merge(position, None, condition);
        }
        if self.is_never_null(argument) {
            return self.count(condition);
        }
        if let Ok(value) = self.row(argument) {
            let is_there = Expr::call("isNotNull", vec![value]);
            let both = match condition {
                Some(condition) => Expr::call("and", vec![is_there, condition.clone()]),
                None => is_there,
            };
            return self.merge(self.rows_stored()?, None, Some(&both));
        }
        Some(summed(self.counted(argument)?, condition))
    }

    /// How many rows of the source have a value of `argument`, for one row of the view.
    fn counted(&self, argument: &Keyed) -> Option<Expr> {
        if is_null(&argument.expr) {
            return Some(int_literal(0));
        }
        if let Some(stored) = self.stored_value(&format!("count({})", argument.key)) {
            return Some(stored);
        }
        if self.is_never_null(argument) {
            return Some(view_column(self.rows_stored()?));
        }
        Choice::of(argument)?.over(&|test| self.row(test).ok(), &|value| self.counted(value))
    }

    fn sum(&self, argument: &Keyed, condition: Option<&Expr>) -> Option<Expr> {
        if let Some(addend) = self.addend(argument) {
            return Some(summed(addend, condition));
        }
        // ClickHouse itself makes `sum(x) / 100` of `sum(x / 100)`.
        let (None, Expr::Call(call), [left, right]) = (condition, &argument.expr, argument.arguments()) else {
            return None;
        };
        let sides = match (&*call.function, left.expr.is_constant(), right.expr.is_constant()) {
            ("multiply" | "divide", false, true) => vec![self.sum(left, None)?, right.expr.clone()],
            ("multiply", true, false) => vec![left.expr.clone(), self.sum(right, None)?],
            _ => return None,
        };
        Some(Expr::call(&call.function, sides))
    }

    /// What one row of the view adds to `sum(argument)`: a stored sum, a dimension times the number of rows, or one
    /// of them by conditions over dimensions, or several of them by arithmetic that is exact.
    fn addend(&self, argument: &Keyed) -> Option<Expr> {
        if let Some(stored) = self.stored_value(&format!("sum({})", argument.key)) {
            return Some(stored);
        }
        // As they are, they go with values of every type.
        if let Expr::Literal(Literal { value: Value::Null | Value::Int(0), .. }) = &argument.expr {
            return Some(argument.expr.clone());
        }
        if let (Ok(value), Some(rows)) = (self.row(argument), self.rows_stored()) {
            return Some(Expr::call("multiply", vec![self.widened(argument, value), view_column(rows)]));
        }
        if let Some(choice) = Choice::of(argument) {
            // Values below and above zero have no common type in 64 bits but this one.
            let signed = self.is_exact_choice(&choice) && choice.values().any(|value| self.is_signed(value));
            let value = |value: &Keyed| match self.addend(value)? {
                addend if signed && !is_null(&addend) => Some(Expr::call("toInt64", vec![addend])),
                addend => Some(addend),
            };
            return choice.over(&|test| self.row(test).ok(), &value);
        }
        let Expr::Call(call) = &argument.expr else { return None };
        if let ("ifNull" | "coalesce", [value, otherwise]) = (&*call.function, argument.arguments()) {
            let is_zero = matches!(otherwise.expr, Expr::Literal(Literal { value: Value::Int(0), .. }));
            return match self.addend(value)? {
                addend if self.is_never_null(value) => Some(addend),
                // Nothing but NULL adds up to NULL.
                addend => is_zero.then(|| Expr::call("ifNull", vec![addend, otherwise.expr.clone()])),
            };
        }
        if !self.is_exact(argument) {
            return None;
        }
        match (&*call.function, argument.arguments()) {
            ("plus" | "minus", [left, right]) => {
                Some(Expr::call(&call.function, vec![self.addend(left)?, self.addend(right)?]))
            }
            ("negate", [inner]) => Some(Expr::call("negate", vec![self.addend(inner)?])),
            ("multiply", [left, right]) => {
                let with = |kept: &Keyed, summed: &Keyed| {
                    let kept = self.row(kept).ok()?;
                    Some(Expr::call("multiply", vec![self.addend(summed)?, kept]))
                };
                with(left, right).or_else(|| with(right, left)).or_else(|| self.distributed(left, right))
            }
            (cast, [inner]) => Some(Expr::call(widening(cast)?, vec![self.addend(inner)?])),
            _ => None,
        }
    }

    /// A decimal column in the type of its sum, since its product with a number of rows has no more digits than itself.
    fn widened(&self, argument: &Keyed, value: Expr) -> Expr {
        let type_name = column_type(&argument.expr, &self.block.tables, self.schema).unwrap_or_default();
        let digits = type_name.strip_prefix("Decimal(").and_then(|t| t.strip_suffix(')')?.split_once(", "));
        match digits {
            Some((precision, scale)) if precision.parse::<u8>().is_ok_and(|p| p <= 38) => {
                Expr::call("CAST", vec![value, text_literal(&format!("Decimal(38, {scale})"))])
            }
            _ => value,
        }
    }

    /// `a * (b - c)` as `a * b - a * c`, where the view keeps the sums of products. Only of columns and numbers, so that
    /// terms do not multiply.
    fn distributed(&self, left: &Keyed, right: &Keyed) -> Option<Expr> {
        let is_plain = |e: &Keyed| matches!(e.expr, Expr::Column { .. } | Expr::Literal(_));
        let spread = |whole: &Keyed, terms: &Keyed| {
            let Expr::Call(call) = &terms.expr else { return None };
            let ("plus" | "minus", [a, b]) = (&*call.function, terms.arguments()) else { return None };
            if ![whole, a, b].into_iter().all(is_plain) {
                return None;
            }
            let product = |term: &Keyed| {
                let product = Expr::call("multiply", vec![whole.expr.clone(), term.expr.clone()]);
                self.addend(&Keyed::new(&product, &self.block.tables))
            };
            Some(Expr::call(&call.function, vec![product(a)?, product(b)?]))
        };
        spread(left, right).or_else(|| spread(right, left))
    }

    fn avg(&self, argument: &Keyed, condition: Option<&Expr>) -> Option<Expr> {
        if let Some(position) = self.stored(&format!("avg({})", argument.key)) {
            return self.merge(position, None, condition);
        }
        // ClickHouse itself makes `avg(x) + 1` of `avg(x + 1)`, which shows where sums wrap and in the last digits.
        if let (None, Expr::Call(call), [left, right]) = (condition, &argument.expr, argument.arguments())
            && matches!(&*call.function, "plus" | "minus" | "multiply" | "divide")
        {
            let over = |left: Expr, right: Expr| Some(Expr::call(&call.function, vec![left, right]));
            match (left.expr.is_constant(), right.expr.is_constant()) {
                (false, true) => return over(self.avg(left, None)?, right.expr.clone()),
                (true, false) if call.function != "divide" => return over(left.expr.clone(), self.avg(right, None)?),
                _ => {}
            }
        }
        let (mut sum, count) = (self.sum(argument, condition)?, self.count_of(argument, condition)?);
        // The average of decimals is a float.
        if column_type(&argument.expr, &self.block.tables, self.schema).is_some_and(|t| t.contains("Decimal")) {
            sum = Expr::call("toFloat64", vec![sum]);
        }
        Some(Expr::call("divide", vec![sum, count]))
    }

    fn extreme(&self, function: &str, argument: &Keyed, condition: Option<&Expr>) -> Option<Expr> {
        if let Some(position) = self.stored(&format!("{function}({})", argument.key)) {
            return self.merge(position, None, condition);
        }
        let mut arguments = vec![self.candidate(function, argument)?];
        arguments.extend(condition.cloned());
        Some(Expr::call(&format!("{function}{}", if condition.is_some() { "If" } else { "" }), arguments))
    }

    /// The least or greatest value of `argument` for one row of the view.
    fn candidate(&self, function: &str, argument: &Keyed) -> Option<Expr> {
        if is_null(&argument.expr) {
            return Some(argument.expr.clone());
        }
        if let Some(stored) = self.stored_value(&format!("{function}({})", argument.key)) {
            return Some(stored);
        }
        if let Ok(value) = self.row(argument) {
            return Some(value);
        }
        // Buckets of time follow one another as the times do.
        if let Some(time) = buckets::in_order(&argument.expr, &self.block.tables, self.schema) {
            let key = Keyed::new(time, &self.block.tables).key;
            let stored = self.stored_value(&format!("{function}({key})"))?;
            return Some(buckets::with_column(&argument.expr, &stored));
        }
        Choice::of(argument)?.over(&|test| self.row(test).ok(), &|value| self.candidate(function, value))
    }

    /// Whether sums may be taken apart: whole numbers, never NULL, for which arithmetic is exact modulo 2^64 whatever
    /// the order. (Floats would change in the digits, NULLs drop whole terms.)
    fn is_exact(&self, expr: &Keyed) -> bool {
        match &expr.expr {
            Expr::Column { .. } => column_type(&expr.expr, &self.block.tables, self.schema).is_some_and(is_small_int),
            Expr::Literal(Literal { value: Value::Int(n), .. }) => n.abs() < 1 << 31,
            Expr::Call(call) => match &*call.function {
                "plus" | "minus" | "multiply" | "negate" => expr.children.iter().all(|child| self.is_exact(child)),
                cast if widening(cast).is_some() => expr.arguments().iter().all(|inner| self.widens(cast, inner)),
                test if TESTS.contains(&test) => self.is_never_null(expr),
                _ => Choice::of(expr).is_some_and(|choice| self.is_exact_choice(&choice)),
            },
            _ => false,
        }
    }

    fn is_exact_choice(&self, choice: &Choice<'_>) -> bool {
        choice.values().all(|value| self.is_exact(value))
    }

    /// Whether values may be below zero.
    fn is_signed(&self, expr: &Keyed) -> bool {
        match &expr.expr {
            Expr::Column { .. } => {
                column_type(&expr.expr, &self.block.tables, self.schema).is_some_and(|t| t.starts_with("Int"))
            }
            Expr::Literal(Literal { value: Value::Int(n), .. }) => *n < 0,
            Expr::Call(call) => {
                matches!(&*call.function, "minus" | "negate" | "toInt8" | "toInt16" | "toInt32" | "toInt64")
                    || expr.arguments().iter().any(|argument| self.is_signed(argument))
            }
            _ => true,
        }
    }

    /// Whether a cast to a whole number keeps every value of a column.
    fn widens(&self, cast: &str, inner: &Keyed) -> bool {
        let bits = |name: &str| name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
        let Some(from) = column_type(&inner.expr, &self.block.tables, self.schema).filter(|t| is_small_int(t)) else {
            return false;
        };
        // In 64 bits every whole number is kept, modulo 2^64.
        let from = bare_type(from);
        let (to_unsigned, same_sign) = (cast.starts_with("toU"), cast.starts_with("toU") == from.starts_with('U'));
        bits(cast) == 64 || (same_sign && bits(cast) >= bits(from)) || (!to_unsigned && bits(cast) > bits(from))
    }

    /// Whether an expression has a value on every row, as far as can be told here.
    fn is_never_null(&self, expr: &Keyed) -> bool {
        let all = |list: &[Keyed]| list.iter().all(|child| self.is_never_null(child));
        match &expr.expr {
            // Comparisons of tuples may be NULL because of a part.
            Expr::Column { .. } => column_type(&expr.expr, &self.block.tables, self.schema)
                .is_some_and(|t| !may_be_null(t) && !t.contains("Nullable")),
            Expr::Literal(literal) => literal.value != Value::Null,
            Expr::Call(call) => match &*call.function {
                "isNull" | "isNotNull" | "isDistinctFrom" | "isNotDistinctFrom" => true,
                "plus" | "minus" | "multiply" | "negate" | "tuple" | "toYear" | "toMonth" | "toYYYYMM" | "toDate"
                | "toString" | "lower" | "upper" => all(expr.arguments()),
                test if TESTS.contains(&test) => all(expr.arguments()),
                cast if widening(cast).is_some() => all(expr.arguments()),
                "ifNull" | "coalesce" => expr.arguments().last().is_some_and(|last| self.is_never_null(last)),
                _ => Choice::of(expr).is_some_and(|choice| choice.values().all(|value| self.is_never_null(value))),
            },
            _ => false,
        }
    }
}

fn summed(addend: Expr, condition: Option<&Expr>) -> Expr {
    match condition {
        Some(condition) => Expr::call("sumIf", vec![addend, condition.clone()]),
        None => Expr::call("sum", vec![addend]),
    }
}

/// The cast of a sum that stands for a cast of each of its whole numbers.
fn widening(cast: &str) -> Option<&'static str> {
    match cast {
        "toInt8" | "toInt16" | "toInt32" | "toInt64" => Some("toInt64"),
        "toUInt8" | "toUInt16" | "toUInt32" | "toUInt64" => Some("toUInt64"),
        _ => None,
    }
}
