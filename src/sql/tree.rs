//! The query tree of Tributary: small, ClickHouse's own meaning, original spelling of literals kept.
//!
//! Operators are calls of the functions that ClickHouse makes of them (`a + b` is `plus(a, b)`), so that two
//! spellings of one expression are one tree. Trees are rendered by [`super::render`], never by sqlparser.

use std::ops::Range;

/// An expression. `Name` is as written; after resolution only `Column` is left.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expr {
    Literal(Literal),
    /// A possibly qualified identifier, unquoted parts.
    Name(Vec<String>),
    /// A column of the table at this position of the block's FROM.
    Column {
        table: usize,
        name: String,
    },
    /// `{name:Type}` as written.
    Parameter(String),
    Call(Call),
    /// `f(..) OVER (..)`.
    Window(Window),
    /// A whole sub-query in parentheses, as written: `(SELECT ..)`.
    Subquery(Range<usize>),
    /// `x -> body`.
    Lambda {
        parameters: Vec<String>,
        body: Box<Expr>,
    },
    /// `*` as the argument of a function.
    Star,
}

/// A literal, with the text as written and, where it is simple, its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    pub text: String,
    pub value: Value,
}

/// Values that the matcher computes with. Everything else is `Other` and only compared by its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    Int(i128),
    Text(Vec<u8>),
    Null,
    Other,
}

/// A function call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    /// As written, since the name of the result column keeps the spelling.
    pub name: String,
    /// Canonical name: aliases and letter case resolved where ClickHouse resolves them.
    pub function: String,
    /// Parameters of a parametric aggregate function, `quantile(0.9)(x)`.
    pub parameters: Option<Vec<Expr>>,
    pub arguments: Vec<Expr>,
    pub distinct: bool,
}

/// A window function with its window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    pub call: Call,
    pub partition_by: Vec<Expr>,
    pub order_by: Vec<OrderItem>,
    /// `ROWS BETWEEN ..` as written; may be empty.
    pub frame: String,
}

impl Expr {
    /// A call of a function by its canonical name.
    pub fn call(function: &str, arguments: Vec<Expr>) -> Expr {
        Expr::Call(Call {
            name: function.into(),
            function: function.into(),
            parameters: None,
            arguments,
            distinct: false,
        })
    }

    /// The call, if this is a plain call of `function`.
    pub fn as_call(&self, function: &str) -> Option<&Call> {
        match self {
            Expr::Call(call) if call.function == function && call.parameters.is_none() && !call.distinct => Some(call),
            _ => None,
        }
    }

    /// Direct sub-expressions.
    pub fn children(&self) -> Box<dyn Iterator<Item = &Expr> + '_> {
        match self {
            Expr::Call(call) => Box::new(call.parameters.iter().flatten().chain(&call.arguments)),
            // The function itself is not below it: it is no aggregate of the block.
            Expr::Window(window) => {
                let order_by = window.order_by.iter().map(|item| &item.expr);
                Box::new(window.call.arguments.iter().chain(&window.partition_by).chain(order_by))
            }
            Expr::Lambda { body, .. } => Box::new(std::iter::once(&**body)),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// Whether `test` holds for this expression or any below it.
    pub fn any(&self, test: &mut dyn FnMut(&Expr) -> bool) -> bool {
        test(self) || self.children().any(|child| child.any(test))
    }

    /// Whether nothing in it depends on a row.
    pub fn is_constant(&self) -> bool {
        !self.any(&mut |e| {
            matches!(e, Expr::Name(_) | Expr::Column { .. } | Expr::Subquery(_) | Expr::Star | Expr::Window(_))
        })
    }

    /// This expression with its direct sub-expressions replaced.
    pub fn map_children<E>(&self, f: &mut dyn FnMut(&Expr) -> Result<Expr, E>) -> Result<Expr, E> {
        Ok(match self {
            Expr::Call(call) => Expr::Call(Call {
                name: call.name.clone(),
                function: call.function.clone(),
                parameters: call.parameters.as_ref().map(|p| p.iter().map(&mut *f).collect()).transpose()?,
                arguments: call.arguments.iter().map(&mut *f).collect::<Result<_, _>>()?,
                distinct: call.distinct,
            }),
            Expr::Window(window) => {
                let arguments = window.call.arguments.iter().map(&mut *f).collect::<Result<_, _>>()?;
                let partition_by = window.partition_by.iter().map(&mut *f).collect::<Result<_, _>>()?;
                let order_by = window
                    .order_by
                    .iter()
                    .map(|item| Ok(OrderItem { expr: f(&item.expr)?, direction: item.direction.clone() }))
                    .collect::<Result<_, E>>()?;
                let call = Call { arguments, ..window.call.clone() };
                Expr::Window(Window { call, partition_by, order_by, frame: window.frame.clone() })
            }
            Expr::Lambda { parameters, body } => {
                Expr::Lambda { parameters: parameters.clone(), body: Box::new(f(body)?) }
            }
            other => other.clone(),
        })
    }
}

/// One item of a SELECT list.
#[derive(Debug, Clone)]
pub struct Item {
    pub expr: Expr,
    pub alias: Option<String>,
    /// Byte range of the item in the text, alias included.
    pub span: Range<usize>,
}

/// `WITH expr AS name` or `WITH name AS (SELECT ..)`.
#[derive(Debug, Clone)]
pub enum With {
    Alias { name: String, expr: Expr },
    Cte { name: String, query: Range<usize> },
}

/// A table of FROM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Table {
        database: Option<String>,
        table: String,
    },
    /// `(SELECT ..)`: byte range without the parentheses.
    Subquery(Range<usize>),
    /// Anything else: a table function, a parameter as a name.
    Other(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinKind {
    /// Comma, CROSS, or INNER with ON or USING.
    Inner,
    Left,
    Right,
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constraint {
    None,
    On(Expr),
    Using(Vec<String>),
}

/// One entry of FROM; the first one's join is `Inner` without a constraint.
#[derive(Debug, Clone)]
pub struct FromEntry {
    pub source: Source,
    pub alias: Option<String>,
    pub join: JoinKind,
    pub constraint: Constraint,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OrderItem {
    pub expr: Expr,
    /// `ASC`, `DESC NULLS LAST`, `COLLATE 'en'`: as written.
    pub direction: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Grouping {
    #[default]
    None,
    Expressions,
    All,
}

/// One SELECT .. block.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// Byte range of the block, from WITH or SELECT to the end of its LIMIT, SETTINGS excluded.
    pub span: Range<usize>,
    pub with: Vec<With>,
    pub distinct: bool,
    pub items: Vec<Item>,
    pub from: Vec<FromEntry>,
    pub filters: Vec<Expr>,
    pub grouping: Grouping,
    pub group_by: Vec<Expr>,
    /// `ROLLUP` or `CUBE` over the group keys.
    pub subtotals: Option<&'static str>,
    /// `WITH TOTALS` after GROUP BY.
    pub with_totals: bool,
    pub having: Option<Expr>,
    pub order_by: Vec<OrderItem>,
    /// `ORDER BY ALL`.
    pub is_ordered_by_all: bool,
    /// `LIMIT n BY a, b`: the text up to BY, and the expressions.
    pub limit_by: Option<(String, Vec<Expr>)>,
    /// LIMIT and OFFSET as written, keywords included.
    pub limit: Option<String>,
    /// Constructs that keep this block from being accelerated, in the words of the refusal.
    pub unsupported: Option<String>,
}

impl Select {
    /// Every expression that is written in the block.
    pub fn expressions(&self) -> impl Iterator<Item = &Expr> {
        let with = self.with.iter().filter_map(|with| match with {
            With::Alias { expr, .. } => Some(expr),
            With::Cte { .. } => None,
        });
        let joins = self.from.iter().filter_map(|entry| match &entry.constraint {
            Constraint::On(expr) => Some(expr),
            _ => None,
        });
        let items = self.items.iter().map(|item| &item.expr);
        let order = self.order_by.iter().map(|item| &item.expr);
        let limit_by = self.limit_by.iter().flat_map(|(_, list)| list);
        with.chain(joins)
            .chain(items)
            .chain(order)
            .chain(limit_by)
            .chain(&self.filters)
            .chain(&self.group_by)
            .chain(&self.having)
    }
}

/// A whole statement: its blocks in any depth, and what stands around them.
#[derive(Debug, Clone, Default)]
pub struct Statement {
    /// Every SELECT block, outer ones before inner ones; their spans nest or are disjoint.
    pub blocks: Vec<Select>,
    /// `SETTINGS a = 1` of any block: name and value as written.
    pub settings: Vec<(String, String)>,
    pub format: Option<String>,
    /// A comment that holds `tributary: off` or `tributary: require`.
    pub wish: Option<String>,
}
