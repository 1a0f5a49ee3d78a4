//! `cargo xtask chaos`: kills random processes, over many seeds; or applies faults while clients stream
//! answers, for some minutes or each once.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{
    console::{self, Outcome},
    setup,
};

const USAGE: &str = "usage: cargo xtask chaos [--minutes N | --faults all|NAME,NAME | --seeds N --from SEED]";

/// Range of seeds.
#[derive(Debug, PartialEq)]
struct Seeds {
    from: u64,
    count: u64,
}

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    if let ["--minutes", minutes] = args {
        let count: f64 = minutes
            .parse()
            .with_context(|| format!("{USAGE}; `{minutes}` is not a number"))?;
        setup::run()?;
        return console::run(test("chaos::under_load").env("ROOFLET_CHAOS_MINUTES", count.to_string()));
    }
    if let ["--faults", names] = args {
        setup::run()?;
        return console::run(test("chaos::under_load").env("ROOFLET_CHAOS_FAULTS", names));
    }
    let seeds = Seeds::parse(args)?;
    setup::run()?;
    let range = format!("{}..{}", seeds.from, seeds.from + seeds.count);
    console::run(test("chaos::fleet_recovers").env("ROOFLET_CHAOS_SEEDS", range))
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
            let (value, text) = match pair {
                ["--seeds", text] => (&mut seeds.count, text),
                ["--from", text] => (&mut seeds.from, text),
                _ => bail!("{USAGE}; unknown arguments `{}`", pair.join(" ")),
            };
            *value = text
                .parse()
                .with_context(|| format!("{USAGE}; `{text}` is not a number"))?;
        }
        Ok(seeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_number_and_start_of_seeds() {
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
