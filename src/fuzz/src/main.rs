//! Program of `cargo xtask fuzz`. It runs functions that read untrusted input, with generated input.
//!
//! Each case has a number, from which its input follows. A case fails if the function panics, takes too
//! long, or violates a property of its target. A stack overflow ends the program; the name of the thread in
//! the message contains the case.

mod source;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use rooflet_base::clock::Clock;
use source::Source;
use targets::{TARGETS, Target};

const USAGE: &str =
    "usage: rooflet-fuzz [--seconds N] [--from CASE] [--target NAME]... | --case TARGET:NUMBER";
/// Longest time of a case. Far above the cost limit of CEL rules, because other processes may use the CPU.
const CASE_DURATION_MAX: Duration = Duration::from_secs(20);
/// Stack of a case, as that of the server's threads.
const STACK_BYTES: usize = 2 << 20;

/// Cases to run.
struct Options {
    /// Time for all targets together.
    duration: Duration,
    /// Number of the first case of each target.
    from: u64,
    targets: Vec<&'static Target>,
    /// Runs only the first case of each target, and prints its input.
    is_single: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self {
            duration: Duration::from_secs(30),
            from: 0,
            targets: Vec::new(),
            is_single: false,
        };
        let number = |text: &str| -> Result<u64> {
            text.parse()
                .with_context(|| format!("`{text}` is not a number; {USAGE}"))
        };
        for pair in args.chunks(2) {
            match pair {
                [flag, text] if flag == "--seconds" => options.duration = Duration::from_secs(number(text)?),
                [flag, text] if flag == "--from" => options.from = number(text)?,
                [flag, name] if flag == "--target" => options.targets.push(target(name)?),
                [flag, case] if flag == "--case" => {
                    let (name, case) = case.split_once(':').context(USAGE)?;
                    options.targets = vec![target(name)?];
                    options.from = number(case)?;
                    options.is_single = true;
                }
                _ => bail!("unknown arguments `{}`; {USAGE}", pair.join(" ")),
            }
        }
        if options.targets.is_empty() {
            options.targets = TARGETS.iter().collect();
        }
        Ok(options)
    }
}

fn target(name: &str) -> Result<&'static Target> {
    let found = TARGETS.iter().find(|target| target.name == name);
    found.with_context(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        format!("unknown target `{name}`: use one of {}", known.join(", "))
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = Options::parse(&args).map(|options| run(&options));
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(faults) => {
            print(&format!("{faults} of the targets failed"));
            ExitCode::FAILURE
        }
        Err(err) => {
            print(&format!("error: {err:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report of the program")]
fn print(line: &str) {
    println!("{line}");
}

/// Runs the cases, and returns the number of targets with a failed case.
fn run(options: &Options) -> usize {
    let share = options.duration / u32::try_from(options.targets.len()).unwrap_or(u32::MAX);
    let mut failed = 0;
    for target in &options.targets {
        let begin = now();
        let mut case = options.from;
        let fault = loop {
            if let Err(fault) = check(target, case, options.is_single) {
                break Some(fault);
            }
            case += 1;
            if options.is_single || now() - begin >= share {
                break None;
            }
        };
        match fault {
            None => print(&format!("{}: {} cases passed", target.name, case - options.from)),
            Some(fault) => {
                failed += 1;
                let name = target.name;
                print(&format!(
                    "{name}: case {case} failed: {fault}\nto repeat: cargo xtask fuzz --case {name}:{case}"
                ));
            }
        }
    }
    failed
}

/// Runs a case in a thread of its own.
fn check(target: &'static Target, case: u64, shows_input: bool) -> Result<(), String> {
    let thread = thread::Builder::new()
        .name(format!("{}:{case}", target.name))
        .stack_size(STACK_BYTES);
    let checked = thread.spawn(move || {
        let mut source = Source::of_case(target.name, case);
        let begin = now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.check)(&mut source)));
        let took = now() - begin;
        let outcome = match outcome {
            Err(_) => Err("the function panicked".to_owned()),
            Ok(Ok(())) if took > CASE_DURATION_MAX => Err(format!("the case took {took:?}")),
            Ok(outcome) => outcome,
        };
        if shows_input {
            print(&source.shown());
        }
        outcome.map_err(|fault| format!("{fault}\n{}", source.shown()))
    });
    let joined = checked.map_err(|err| format!("starting a thread failed: {err}"))?;
    joined
        .join()
        .unwrap_or_else(|_| Err("showing the input panicked".to_owned()))
}

fn now() -> Instant {
    Clock::System.instant()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args)
    }

    #[test]
    fn all_targets_pass_their_first_cases() {
        let options = Options {
            duration: Duration::ZERO,
            ..parse("").expect("defaults")
        };
        assert_eq!(options.targets.len(), TARGETS.len());
        for from in 0..20 {
            assert_eq!(
                run(&Options {
                    from,
                    ..parse("--seconds 0").expect("valid")
                }),
                0
            );
        }
        assert_eq!(run(&options), 0);
    }

    #[test]
    fn same_case_has_the_same_input() {
        let text = |case| Source::of_case("t", case).text();
        assert_eq!(text(7), text(7));
        assert!((0..20).any(|case| text(case) != text(7)));
    }

    #[test]
    fn errors_of_arguments_name_the_remedy() {
        for (args, expect) in [
            ("--seconds many", "`many` is not a number"),
            ("--target nothing", "use one of"),
            ("--case cel", "usage"),
            ("--what 1", "unknown arguments `--what 1`"),
        ] {
            let err = parse(args).err().expect(args);
            assert!(format!("{err:#}").contains(expect), "{err:#}");
        }
        let single = parse("--case cel:12").expect("valid");
        assert_eq!(
            (single.from, single.targets[0].name, single.is_single),
            (12, "cel", true)
        );
    }
}
