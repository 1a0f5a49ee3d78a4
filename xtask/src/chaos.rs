//! `cargo xtask chaos`: processes killed at random moments, over many seeds; or everything that can
//! happen to a fleet, for some minutes, while answers are streamed.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{
    console::{self, Outcome},
    setup,
};

const USAGE: &str = "`chaos` takes --minutes N, or --seeds N and --from SEED";

/// Which seeds are tried.
#[derive(Debug, PartialEq)]
struct Seeds {
    from: u64,
    count: u64,
}

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    if let ["--minutes", minutes] = args {
        let count: f64 = minutes
            .parse()
            .with_context(|| format!("{USAGE}; `{minutes}` is no number"))?;
        setup::run()?;
        return console::run(test("chaos::under_load").env("ROOFLET_CHAOS_MINUTES", count.to_string()));
    }
    let seeds = Seeds::parse(args)?;
    setup::run()?;
    let range = format!("{}..{}", seeds.from, seeds.from + seeds.count);
    console::run(test("chaos::everything_heals").env("ROOFLET_CHAOS_SEEDS", range))
}

fn test(name: &str) -> Command {
    let mut test = console::cargo();
    test.args(["test", "--workspace", "--test", "e2e", "--", name, "--nocapture"]);
    test
}

impl Seeds {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut seeds = Self { from: 1, count: 20 };
        for pair in args.chunks(2) {
            let (place, text) = match pair {
                ["--seeds", text] => (&mut seeds.count, text),
                ["--from", text] => (&mut seeds.from, text),
                _ => bail!("{USAGE}, not `{}`", pair.join(" ")),
            };
            *place = text
                .parse()
                .with_context(|| format!("{USAGE}; `{text}` is no number"))?;
        }
        Ok(seeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_told_by_number_and_start() {
        let parse = |text: &str| Seeds::parse(&text.split_whitespace().collect::<Vec<_>>());
        assert_eq!(parse("").expect("the defaults"), Seeds { from: 1, count: 20 });
        assert_eq!(
            parse("--from 7 --seeds 1").expect("both"),
            Seeds { from: 7, count: 1 }
        );
        for wrong in ["7", "--seeds", "--seeds many", "--seed 3"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
