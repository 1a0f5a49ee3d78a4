//! Throughput of concurrent answers, which share a batch, against sequential answers. Both modes
//! alternate in one run, with one engine and the same questions.

use std::thread;

use anyhow::anyhow;
use camino::{Utf8Path, Utf8PathBuf};
use sysinfo::System;

use super::models::SHAPES;
use super::{Args, PROMPT_TOKENS, written};
use crate::cli::ui::digits::three_digits;
use crate::cli::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_roofline::probing::spread;
use rooflet_worker::bench::BareEngine;

/// Bits of the random models' weights.
const BITS: u32 = 4;

/// Tokens per second of both modes in one round.
struct Round {
    together: f64,
    in_turn: f64,
}

pub(super) fn run(args: &Args, directory: &Utf8Path) -> Result<(), Failure> {
    let load_before = System::load_average().one;
    ui::output(
        "| model | streams | one after another, tokens/s | together, tokens/s | ratio, median (p10-p90) |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for (name, path) in models(args, directory)? {
        for streams in &args.streams {
            let rounds = measure(&path, *streams, args)?;
            let over = |of: fn(&Round) -> f64| spread(rounds.iter().map(of).collect());
            let (in_turn, together) = (over(|round| round.in_turn), over(|round| round.together));
            let ratio = over(|round| round.together / round.in_turn);
            let range = |of: &rooflet_api::v1alpha1::Spread| {
                let [median, low, high] = [of.median, of.p10, of.p90].map(|figure| three_digits(figure, 2));
                format!("{median} ({low}-{high})")
            };
            ui::output(&format!(
                "| {name} | {streams} | {} | {} | {:.2} ({:.2}-{:.2}) |\n",
                range(&in_turn),
                range(&together),
                ratio.median,
                ratio.p10,
                ratio.p90,
            ));
        }
    }
    ui::output(&format!(
        "\nLoad average {load_before:.1} before, {:.1} after.\n",
        System::load_average().one
    ));
    Ok(())
}

fn models(args: &Args, directory: &Utf8Path) -> anyhow::Result<Vec<(String, Utf8PathBuf)>> {
    if let Some(path) = &args.model {
        let name = path.file_name().unwrap_or(path.as_str());
        return Ok(vec![(name.to_owned(), path.clone())]);
    }
    let chosen = SHAPES
        .iter()
        .filter(|shape| args.sizes.iter().any(|size| size == shape.name));
    chosen
        .map(|shape| {
            let path = directory.join(shape.title(BITS));
            written(shape, BITS, &path)?;
            Ok((shape.title(BITS), path))
        })
        .collect()
}

fn measure(path: &Utf8Path, streams: u32, args: &Args) -> anyhow::Result<Vec<Round>> {
    let wrong = |err: anyhow::Error| anyhow!("{path}: {err}");
    let engine = BareEngine::load(path.to_owned().into_std_path_buf(), streams as usize)
        .map_err(|err| wrong(err.into()))?;
    let mut rounds = Vec::new();
    // The first round loads weights and kernels and is discarded. Both modes come first equally
    // often.
    for round in 0..=args.rounds {
        let together = || throughput(&engine, streams, args.tokens, true).map_err(wrong);
        let in_turn = || throughput(&engine, streams, args.tokens, false).map_err(wrong);
        rounds.push(if round % 2 == 0 {
            let together = together()?;
            Round {
                together,
                in_turn: in_turn()?,
            }
        } else {
            let in_turn = in_turn()?;
            Round {
                together: together()?,
                in_turn,
            }
        });
    }
    Ok(rounds.split_off(1))
}

/// Returns the tokens per second of `streams` questions until the last answer is complete.
fn throughput(engine: &BareEngine, streams: u32, tokens: u32, together: bool) -> anyhow::Result<f64> {
    // Question lengths differ, as in real traffic.
    let ask = |stream: u32| {
        let question = "a".repeat((PROMPT_TOKENS + stream) as usize);
        let answer = engine.chat(&question, tokens as usize)?;
        Ok(answer.completion_tokens)
    };
    let begin = Clock::System.instant();
    let counts: anyhow::Result<Vec<usize>> = if together {
        thread::scope(|scope| {
            let asking: Vec<_> = (0..streams)
                .map(|stream| scope.spawn(move || ask(stream)))
                .collect();
            let join = |asked: thread::ScopedJoinHandle<'_, anyhow::Result<usize>>| {
                asked.join().unwrap_or_else(|_| Err(anyhow!("a client panicked")))
            };
            asking.into_iter().map(join).collect()
        })
    } else {
        (0..streams).map(ask).collect()
    };
    let seconds = (Clock::System.instant() - begin).as_secs_f64();
    Ok(counts?.into_iter().sum::<usize>() as f64 / seconds)
}
