//! View declarations: the YAML that operators write, checked against the live schema, and the tables in which views
//! are stored.

pub mod catalog;
pub mod declaration;
pub mod neutral;
pub mod place;
pub mod problem;
pub mod schema;
pub mod storage;
