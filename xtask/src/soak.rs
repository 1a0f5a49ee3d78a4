//! `cargo xtask soak`: sends thousands of mixed requests to one worker, which must release all
//! resources.

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
            .with_context(|| format!("--requests {text}: not a number"))?,
        _ => bail!(
            "usage: cargo xtask soak [--requests N]; unknown arguments `{}`",
            args.join(" ")
        ),
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
