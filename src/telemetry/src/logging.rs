//! Logs: one line per event on standard error, filtered by `ROOFLET_LOG` (default `info`). Lines
//! that cannot be written are dropped.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use rooflet_base::environment::{is_set, variable};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    // An empty variable ROOFLET_LOG_FORMAT counts as unset.
    #[value(alias = "")]
    Text,
    /// JSON object per line, for collectors.
    Json,
}

/// Error of an invalid filter in `ROOFLET_LOG`.
#[derive(Debug, thiserror::Error)]
#[error("ROOFLET_LOG is `{text}`: {err}; write a level such as `info`, or `rooflet=debug`")]
pub struct InvalidFilter {
    text: String,
    err: ParseError,
}

/// Installs the process-wide subscriber. A second call has no effect.
pub fn init(format: LogFormat, default_filter: &str) -> Result<(), InvalidFilter> {
    let text = variable("ROOFLET_LOG").unwrap_or_else(|| default_filter.to_owned());
    let filter = EnvFilter::try_new(&text).map_err(|err| InvalidFilter { text, err })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // The default error handler uses `eprintln!`, which panics.
        .log_internal_errors(false);
    let installed = match format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal() && !is_set("NO_COLOR"))
            .with_target(false)
            .try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    drop(installed);
    Ok(())
}
