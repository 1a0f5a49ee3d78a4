//! `cargo xtask soak`: thousands of mixed requests to one worker, which must leave nothing behind.

use anyhow::{Context, Result, bail};

use crate::{
    console::{self, Outcome},
    setup,
};

const REQUESTS: usize = 10_000;

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    let requests = match args {
        [] => REQUESTS,
        ["--requests", text] => text
            .parse()
            .with_context(|| format!("--requests {text}: no number"))?,
        _ => bail!("`soak` takes --requests N, not `{}`", args.join(" ")),
    };
    setup::run()?;
    let mut test = console::cargo();
    test.args([
        "test",
        "--workspace",
        "--test",
        "e2e",
        "--",
        "soak::",
        "--nocapture",
    ]);
    console::run(test.env("ROOFLET_SOAK_REQUESTS", requests.to_string()))
}
