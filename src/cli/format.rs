//! How a command prints its outcome.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object on standard output
    Json,
}
