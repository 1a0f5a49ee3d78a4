//! `rooflet render-template`: renders the chat template of a request for a worker.
//!
//! The template comes from a client, so the process limits its own memory and time. It reads the job from
//! standard input and writes the result as JSON to standard output.

use std::io::Read;

use anyhow::Context;
use nix::sys::resource::{Resource, setrlimit};

use super::memory_budget;
use crate::cli::ui;
use rooflet_text::template::render_job;
use rooflet_worker::RenderedTemplate;

/// Memory for the conversation, the template's values and the prompt.
const MAX_MEMORY_BYTES: usize = 256 << 20;

/// CPU time after which the system ends the process, in seconds.
const MAX_CPU_SECONDS: u64 = 2;

pub(crate) fn run() -> anyhow::Result<()> {
    setrlimit(Resource::RLIMIT_CPU, MAX_CPU_SECONDS, MAX_CPU_SECONDS + 1).context("limiting the CPU time")?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).context("disabling core files")?;
    memory_budget::limit(MAX_MEMORY_BYTES);
    let mut job = String::new();
    std::io::stdin()
        .read_to_string(&mut job)
        .context("reading the template from standard input")?;
    let rendered = match render_job(&job) {
        Ok(text) => RenderedTemplate::Text(text),
        Err(problem) => RenderedTemplate::Problem(problem),
    };
    ui::output(&serde_json::to_string(&rendered).context("writing the result")?);
    Ok(())
}
