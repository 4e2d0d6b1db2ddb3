//! View declarations: the YAML that operators write, checked against the live schema, and the tables in which views
//! are stored.

pub mod declaration;
pub mod place;
pub mod problem;
