//! `cargo xtask faults`: a simulated fleet in which things go wrong, seed after seed, held against the guarantees.

use anyhow::{Result, bail};

use crate::{
    console::{self, Outcome},
    setup,
};

const USAGE: &str = "`faults` takes --seeds N, --from SEED and --release";
const SCENARIO: &str = "examples/simulation/faults.yaml";

/// What is run.
#[derive(Debug, PartialEq)]
struct Wanted {
    from: u64,
    count: u64,
    release: bool,
}

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    let wanted = Wanted::parse(args)?;
    setup::run()?;
    let mut simulate = console::cargo();
    simulate.args(["run", "--quiet"]);
    if wanted.release {
        simulate.arg("--release");
    }
    let (seed, seeds) = (wanted.from.to_string(), wanted.count.to_string());
    simulate.args(["--", "simulate", SCENARIO, "--seed", &seed, "--seeds", &seeds]);
    console::run(&mut simulate)
}

impl Wanted {
    fn parse(args: &[&str]) -> Result<Self> {
        // In a debug build within two minutes.
        let mut wanted = Self {
            from: 1,
            count: 200,
            release: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let place = match *arg {
                "--release" => {
                    wanted.release = true;
                    continue;
                }
                "--seeds" => &mut wanted.count,
                "--from" => &mut wanted.from,
                other => bail!("{USAGE}, not `{other}`"),
            };
            let Some(number) = args.next().and_then(|text| text.parse().ok()) else {
                bail!("{USAGE}: `{arg}` needs a number");
            };
            *place = number;
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
            release: true,
        };
        assert_eq!(
            parse("--from 7 --release --seeds 10000").expect("all three"),
            expect
        );
        assert_eq!(parse("").expect("the defaults").count, 200);
        for wrong in ["7", "--seeds", "--seeds many", "--seed 3"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
