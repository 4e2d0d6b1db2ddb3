//! The 13 queries in the flat and the star form.

/// How the data of a query is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// One wide table, `lineorder_flat`.
    Flat,
    /// `lineorder` joined with its dimensions.
    Star,
}

impl Form {
    pub fn name(self) -> &'static str {
        match self {
            Form::Flat => "flat",
            Form::Star => "star",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    pub form: Form,
    /// `q1.1` to `q4.3`
    pub name: &'static str,
    /// Without database names: runs in whatever database is the current one.
    pub sql: &'static str,
}

macro_rules! query {
    ($form:ident, $folder:literal, $name:literal) => {
        Query { form: Form::$form, name: $name, sql: include_str!(concat!("queries/", $folder, "/", $name, ".sql")) }
    };
}

macro_rules! form {
    ($($name:literal)*) => {
        &[$(query!(Flat, "flat", $name),)* $(query!(Star, "star", $name),)*]
    };
}

/// All 26, the flat form first.
pub const QUERIES: &[Query] =
    form!("q1.1" "q1.2" "q1.3" "q2.1" "q2.2" "q2.3" "q3.1" "q3.2" "q3.3" "q3.4" "q4.1" "q4.2" "q4.3");

impl Query {
    /// Whether the order of the rows is open: Q3 orders by year and revenue, and equal revenues may come in any order.
    pub fn has_ties(&self) -> bool {
        self.name.starts_with("q3")
    }
}
