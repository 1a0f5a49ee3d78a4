//! The `--output` flag of several verbs.

use serde::Serialize;

use crate::cli::ui;
use rooflet_base::yaml;

/// Output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

impl Output {
    /// Prints `value`, or its text form.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        ui::output(&match self {
            Self::Table => table()?,
            Self::Json => serde_json::to_string_pretty(value)? + "\n",
            Self::Yaml => yaml::to_string(value)?,
        });
        Ok(())
    }
}
