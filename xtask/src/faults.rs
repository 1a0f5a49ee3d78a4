//! `cargo xtask faults`: a simulated fleet in which things go wrong, seed after seed, held against
//! the guarantees.

use anyhow::{Context, Result, bail};

use crate::{
    console::{self, Outcome},
    simulate,
};

const USAGE: &str = "`faults` takes --seeds N and --from SEED";
const SCENARIO: &str = "examples/simulation/faults.yaml";

/// What is run.
#[derive(Debug, PartialEq)]
struct Wanted {
    from: u64,
    count: u64,
}

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    let wanted = Wanted::parse(args)?;
    let mut simulate = simulate::optimised();
    let (seed, seeds) = (wanted.from.to_string(), wanted.count.to_string());
    simulate.args(["simulate", SCENARIO, "--seed", &seed, "--seeds", &seeds]);
    console::run(&mut simulate)
}

impl Wanted {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut wanted = Self { from: 1, count: 200 };
        for pair in args.chunks(2) {
            let (place, text) = match pair {
                ["--seeds", text] => (&mut wanted.count, text),
                ["--from", text] => (&mut wanted.from, text),
                _ => bail!("{USAGE}, not `{}`", pair.join(" ")),
            };
            *place = text
                .parse()
                .with_context(|| format!("{USAGE}; `{text}` is no number"))?;
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_told_by_number_and_start() {
        let parse = |text: &str| Wanted::parse(&text.split_whitespace().collect::<Vec<_>>());
        let expect = Wanted {
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
