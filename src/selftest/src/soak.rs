//! Soak: decodes with the tiny models for a time, compares every result with the stored logits, and
//! watches memory and speed.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::device;
use rooflet_model::config::FloatType;

use super::check::{Check, Group, Status};
use super::models::{ModelsError, TinyModels, difference, tolerance};
use rooflet_decoder::Decoder;
use rooflet_decoder::replay::{Case, Replay, larger};

/// Minimum number of rounds: the growth of memory is measured from the end of the first round.
const MIN_ROUNDS: usize = 2;
/// Largest growth of the engine's arrays. The caches of a finished case must be free.
const MAX_ENGINE_GROWTH: Bytes = Bytes(1 << 20);
/// Largest growth of the process, which also contains fragments and compiled kernels.
const MAX_PROCESS_GROWTH: Bytes = Bytes(64 << 20);

/// Observations of all rounds. A round runs one case of every model.
#[derive(Debug, Default)]
struct Soak {
    rounds: Vec<Round>,
    /// Number of cases that ran.
    iterations: usize,
    /// Results that differ by more than rounding: those of the first round from the stored
    /// results, later results from those of the first round.
    failures: usize,
    /// Later results that are not equal to those of the first round.
    changes: usize,
    /// Largest of these differences.
    difference: f32,
}

/// State at the end of a round.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// Mean time of a decode step.
    step: Duration,
    /// Memory of the engine's arrays.
    engine: Bytes,
    /// Peak memory of the process so far.
    process: Bytes,
}

/// Model with its longest prompt.
struct Subject {
    decoder: Decoder,
    case: Case,
}

/// Runs rounds until `duration` is over.
pub(super) fn run(backend: Backend, duration: Duration, clock: &Clock, report: &mut dyn FnMut(Check)) {
    let tolerance = tolerance(backend, FloatType::F32);
    match soak(backend, duration, tolerance, clock) {
        Ok(soak) => checks(&soak, tolerance).into_iter().for_each(report),
        Err(err) => report(Check::failed(Group::Soak, "soak", Chain(&err))),
    }
}

fn soak(backend: Backend, duration: Duration, tolerance: f32, clock: &Clock) -> Result<Soak, ModelsError> {
    let subjects = subjects()?;
    let end = clock.instant() + duration;
    let mut soak = Soak::default();
    let mut first: Vec<Replay> = Vec::new();
    while soak.rounds.len() < MIN_ROUNDS || clock.instant() < end {
        let (results, round) = run_round(&subjects, clock)?;
        soak.rounds.push(round);
        soak.iterations += results.len();
        if first.is_empty() {
            let cases = subjects.iter().map(|subject| &subject.case);
            let results: Vec<_> = results.iter().cloned().zip(cases).collect();
            soak.add(difference(backend, &results), tolerance);
            first = results.into_iter().map(|(replay, _)| replay).collect();
            continue;
        }
        for (first, later) in first.iter().zip(&results) {
            soak.changes += usize::from(first != later);
            soak.add(first.distance(later), tolerance);
        }
    }
    Ok(soak)
}

fn subjects() -> Result<Vec<Subject>, ModelsError> {
    let models = TinyModels::unpack()?;
    let mut subjects = Vec::with_capacity(models.cases.len());
    for (model, cases) in &models.cases {
        if let Some(case) = cases.iter().max_by_key(|case| case.prompt.len()) {
            subjects.push(Subject {
                decoder: models.load(model, FloatType::F32)?,
                case: case.clone(),
            });
        }
    }
    Ok(subjects)
}

/// Runs one case of every model.
fn run_round(subjects: &[Subject], clock: &Clock) -> Result<(Vec<Replay>, Round), ModelsError> {
    let start = clock.instant();
    let results = subjects
        .iter()
        .map(|Subject { decoder, case }| Replay::run(decoder, case));
    let results = results.collect::<Result<Vec<_>, _>>();
    let results = results.map_err(|err| ModelsError::Compute { err })?;
    let steps: usize = subjects.iter().map(|subject| subject.case.greedy.len()).sum();
    let steps = u32::try_from(steps).unwrap_or(u32::MAX).max(1);
    let round = Round {
        step: (clock.instant() - start) / steps,
        engine: Bytes(device::memory().active_bytes),
        process: process_memory(),
    };
    Ok((results, round))
}

impl Soak {
    fn add(&mut self, difference: f32, tolerance: f32) {
        let is_close = difference <= tolerance;
        self.failures += usize::from(!is_close);
        self.difference = larger(self.difference, difference);
    }
}

/// Returns the peak memory of this process so far.
fn process_memory() -> Bytes {
    let kilobytes_or_bytes = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss());
    let size = kilobytes_or_bytes.unsigned_abs();
    // macOS reports bytes, Linux kibibytes.
    Bytes(if cfg!(target_os = "macos") {
        size
    } else {
        size * 1024
    })
}

fn checks(soak: &Soak, tolerance: f32) -> Vec<Check> {
    let first = soak.rounds.first().copied().unwrap_or_default();
    let last = soak.rounds.last().copied().unwrap_or_default();
    let growth = |first: Bytes, last: Bytes| Bytes(last.0.saturating_sub(first.0));
    let (engine, process) = (
        growth(first.engine, last.engine),
        growth(first.process, last.process),
    );
    let memory = format!(
        "after the first round, the engine grew by {engine} (at most {MAX_ENGINE_GROWTH}), the process by {process} \
         (at most {MAX_PROCESS_GROWTH})"
    );
    let has_grown = engine > MAX_ENGINE_GROWTH || process > MAX_PROCESS_GROWTH;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let times = format!(
        "{:.2} ms in the first of {} rounds, {:.2} ms in the last",
        milliseconds(first.step),
        soak.rounds.len(),
        milliseconds(last.step)
    );
    let logits = format!(
        "{} iterations, {} failures, {} changed since the first round",
        soak.iterations, soak.failures, soak.changes
    );
    vec![
        Check::of_difference(Group::Soak, "logits", soak.difference, tolerance, logits),
        Check::new(
            Group::Soak,
            "memory",
            if has_grown { Status::Fail } else { Status::Ok },
            memory,
        ),
        Check::new(Group::Soak, "step time", Status::Ok, times),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soak(difference: f32, growth: Bytes) -> Soak {
        let round = |process| Round {
            process,
            ..Round::default()
        };
        let mut soak = Soak {
            rounds: vec![round(Bytes(1 << 30)), round(Bytes((1 << 30) + growth.0))],
            ..Soak::default()
        };
        soak.add(0.0, 0.5);
        soak.add(difference, 0.5);
        soak
    }

    fn statuses(soak: &Soak) -> Vec<Status> {
        checks(soak, 0.5).iter().map(|check| check.status).collect()
    }

    #[test]
    fn wrong_logits_and_growing_memory_fail() {
        let (ok, fail) = (Status::Ok, Status::Fail);
        assert_eq!(statuses(&soak(0.1, Bytes(1 << 20))), [ok, ok, ok]);
        assert_eq!(statuses(&soak(0.7, Bytes(1 << 20))), [fail, ok, ok]);
        assert_eq!(statuses(&soak(0.1, Bytes(65 << 20))), [ok, fail, ok]);
        let not_a_number = soak(f32::NAN, Bytes(0));
        assert_eq!(not_a_number.failures, 1);
        assert_eq!(statuses(&not_a_number), [fail, ok, ok]);
    }
}
