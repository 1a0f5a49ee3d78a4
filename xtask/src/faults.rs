//! `cargo xtask faults`: simulates a fleet with random faults over many seeds and checks the
//! invariants.

use anyhow::{Context, Result, bail};

use crate::{
    console::{self, Outcome},
    simulate,
};

const USAGE: &str = "usage: cargo xtask faults [--seeds N] [--from SEED]";
/// Scenarios, and the number of seeds for each one of this scenario: a day takes longer than minutes.
const SCENARIOS: [(&str, u64); 2] = [
    ("examples/simulation/faults.yaml", 1),
    ("examples/simulation/access.yaml", 50),
];

/// Range of seeds.
#[derive(Debug, PartialEq)]
struct Seeds {
    from: u64,
    count: u64,
}

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    let seeds = Seeds::parse(args)?;
    for (scenario, share) in SCENARIOS {
        let mut simulate = simulate::optimised();
        let (from, count) = (seeds.from.to_string(), seeds.count.div_ceil(share).to_string());
        simulate.args(["simulate", scenario, "--seed", &from, "--seeds", &count]);
        let outcome = console::run(&mut simulate)?;
        if outcome != Outcome::Passed {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Passed)
}

impl Seeds {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut seeds = Self { from: 1, count: 200 };
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
        let expect = Seeds {
            from: 7,
            count: 10_000,
        };
        assert_eq!(parse("--from 7 --seeds 10000").expect("both"), expect);
        assert_eq!(parse("").expect("the defaults").count, 200);
        for wrong in ["7", "--seeds", "--seeds many", "--seed 3"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
