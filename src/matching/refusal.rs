//! Why a view does not answer a query: values with a reason that a person can read.

use std::fmt;

/// Why a block of a query is no candidate for any view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockRefusal {
    /// A construct that the matcher does not handle.
    Unsupported(String),
    /// FROM holds something else than base tables.
    NotATable(String),
    /// A table that is unknown or that no view reads.
    UnknownTable(String),
    /// A name that is no column of the tables and no alias.
    UnknownName(String),
    /// A name that more than one table has.
    AmbiguousName(String),
    /// The same table twice.
    SelfJoin(String),
    /// Rows, not groups: a view row is not a base row.
    NotAggregated,
}

impl fmt::Display for BlockRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(f, "the query uses {what}"),
            Self::NotATable(what) => write!(f, "the query reads {what}"),
            Self::UnknownTable(table) => write!(f, "no view reads {table}"),
            Self::UnknownName(name) => write!(f, "the name {name} is not understood"),
            Self::AmbiguousName(name) => write!(f, "more than one table has a column {name}"),
            Self::SelfJoin(table) => write!(f, "the query reads {table} twice"),
            Self::NotAggregated => write!(f, "the query asks for rows, not for groups"),
        }
    }
}

/// Why one view does not answer one block. Later variants mean that more of the match succeeded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The tables of view and query differ.
    Tables,
    /// The joins of view and query differ.
    Joins,
    /// The view's own filter keeps out rows that the query asks for.
    ViewFilter(String),
    /// A filter of the query needs something that the view has aggregated away.
    Filter(String),
    /// A grouping expression cannot be computed from the view's dimensions.
    Grouping(String),
    /// An output that is neither a group key nor an aggregate.
    Output(String),
    /// An aggregate that cannot be derived from the view's.
    Aggregate(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tables => write!(f, "it reads other tables"),
            Self::Joins => write!(f, "it joins the tables in another way"),
            Self::ViewFilter(what) => write!(f, "its filter {what} is not implied by the query"),
            Self::Filter(what) => write!(f, "the filter needs {what}, which the view does not keep"),
            Self::Grouping(what) => write!(f, "the grouping needs {what}, which the view does not keep"),
            Self::Output(what) => write!(f, "{what} is neither a group key nor an aggregate"),
            Self::Aggregate(what) => write!(f, "{what} cannot be derived from the view's aggregates"),
        }
    }
}
