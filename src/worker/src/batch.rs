//! The rows that decode together: one forward pass gives each its next token. A pass is submitted before the tokens of
//! the one before are read, so that the device computes while this program handles them. Rows that are held to a format are
//! in that pass, too: only what of its logits may be chosen depends on the token before. A row that is alone may be
//! guessed ahead: one pass then chooses what follows each token of the guess, and what was chosen after a wrong one is
//! dropped. Each token is chosen as it would have been by itself.

pub(crate) mod event;
pub(crate) mod job;
mod lookup;
pub(crate) mod prefill;
mod prompt_output;
pub(crate) mod sequence;
pub(crate) mod step_error;
pub(crate) mod thinking;
pub(crate) mod transcript;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::concatenate;
use rooflet_mlx::mlx_rs::ops::indexing::take_axis;
use rooflet_mlx::mlx_rs::{Array, transforms};

use super::models::{Decoder, KvCache};
use crate::batch::lookup::Checked;
use crate::batch::sequence::{Sequence, token_row};
use crate::batch::step_error::StepError;
use crate::engine::schedule::RequestId;
use crate::sampling::choice::Choice;
use crate::sampling::logprobs::{Logprobs, TokenLogprobs};
use crate::sampling::sampler::Draw;

/// Tokens chosen by one forward pass and not read yet.
#[derive(Debug)]
struct Flight {
    /// One for each row; after a guess, one for each of its tokens and one more.
    tokens: Array,
    logprobs: Option<Logprobs>,
    rows: Vec<RequestId>,
    /// Rows of the pass that these were in, others included.
    pass_rows: usize,
    /// How the only row was guessed to go on; empty: not at all.
    guess: Vec<u32>,
}

/// Rows of a pass that was submitted and whose next tokens can be chosen when those before have been read.
#[derive(Debug)]
struct Undecided {
    /// `[rows, vocabulary]`.
    logits: Array,
    rows: Vec<RequestId>,
    pass_rows: usize,
}

/// A token that was read.
#[derive(Debug)]
pub(crate) struct Landed {
    pub id: RequestId,
    pub token: std::result::Result<u32, StepError>,
    /// The token's, where the request asks for them.
    pub logprobs: Option<TokenLogprobs>,
    /// Rows of the pass that chose it.
    pub rows: usize,
    /// It is the first of those that a pass over a guess chose.
    pub checked: Option<Checked>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    flights: Vec<Flight>,
    /// Between [`Batch::launch`] and [`Batch::launch_read`].
    undecided: Vec<Undecided>,
}

impl Batch {
    /// No token is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Waits until the device has computed what was submitted. What has failed is told when it is read.
    pub(crate) fn settle(&self) {
        for flight in &self.flights {
            drop(flight.tokens.eval());
        }
    }

    /// Sequences join with the tokens that their prompts led to; their caches stay where they are.
    pub(crate) fn join(&mut self, rows: Vec<RequestId>, first: Choice) {
        self.flights.push(Flight {
            pass_rows: rows.len(),
            tokens: first.tokens,
            logprobs: first.logprobs,
            rows,
            guess: Vec::new(),
        });
    }

    /// Submits a pass over every row that goes on, and returns the tokens that led to it, to be read while the device
    /// computes. Rows that are gone or have their last token are left out of the pass.
    pub(crate) fn launch(&mut self, model: &Decoder, sequences: &mut [Sequence]) -> Landing {
        let (checking, flights): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flights)
            .into_iter()
            .partition(|flight| !flight.guess.is_empty());
        let failed = self.submit(model, &flights, sequences);
        Landing {
            flights: checking.into_iter().chain(flights).collect(),
            failed,
        }
    }

    /// Submits what had to wait until the last tokens were read: the choice of rows that are held to a format, and a pass over
    /// a row that may be guessed. Returns those that failed.
    pub(crate) fn launch_read(&mut self, model: &Decoder, sequences: &mut [Sequence]) -> Vec<Landed> {
        let mut failures = Vec::new();
        let alone = are_alone(sequences);
        for row in sequences.iter_mut() {
            let is_passed = |undecided: &Undecided| undecided.rows.contains(&row.id());
            let Some(token) = row.last_token().filter(|_| !self.undecided.iter().any(is_passed)) else {
                continue;
            };
            let guess = if alone { row.guess().to_vec() } else { Vec::new() };
            let passed = if guess.is_empty() {
                pass(model, &token_list(&[token]), &mut [row])
            } else {
                check(model, token, guess, row)
            };
            match passed {
                Ok(passed) => self.take(passed),
                Err(err) => failures.push(failed(row.id(), err.into())),
            }
        }
        for undecided in std::mem::take(&mut self.undecided) {
            failures.extend(self.decide(undecided, sequences));
        }
        failures
    }

    /// Chooses the next tokens of those rows that are still there. Returns those that failed.
    fn decide(&mut self, undecided: Undecided, sequences: &mut [Sequence]) -> Vec<Landed> {
        let mut failures = Vec::new();
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        for row in sequences {
            let Some(place) = undecided.rows.iter().position(|id| *id == row.id()) else {
                continue;
            };
            match row.narrow() {
                Ok(()) => {
                    places.push(place);
                    rows.push(row);
                }
                Err(err) => failures.push(failed(row.id(), err)),
            }
        }
        if rows.is_empty() {
            return failures;
        }
        let mut choose = |places: &[usize], rows: &mut [&mut Sequence]| {
            let logits = rows_at(&undecided.logits, places)?;
            let draws: Vec<Draw<'_>> = rows.iter().map(|row| row.draw()).collect();
            let choice = Choice::submit(&logits, &draws)?;
            self.flights.push(chosen(choice, rows, undecided.pass_rows));
            Ok(())
        };
        match choose(&places, &mut rows) {
            Ok(()) => {}
            Err(err) if rows.len() == 1 => failures.push(failed(rows[0].id(), StepError::Engine(err))),
            // As below.
            Err(err) => {
                tracing::warn!(error = %err, rows = rows.len(), "a choice failed: its rows go on one by one");
                for (place, row) in places.into_iter().zip(rows) {
                    let id = row.id();
                    if let Err(err) = choose(&[place], &mut [row]) {
                        failures.push(failed(id, StepError::Engine(err)));
                    }
                }
            }
        }
        failures
    }

    /// Returns the rows that failed.
    fn submit(&mut self, model: &Decoder, flights: &[Flight], sequences: &mut [Sequence]) -> Vec<Landed> {
        let place = |id| {
            let mut places = flights.iter().flat_map(|flight| &flight.rows);
            places.position(|row| *row == id)
        };
        let alone = are_alone(sequences);
        let mut going: Vec<(usize, &mut Sequence)> = sequences
            .iter_mut()
            .filter(|sequence| sequence.goes_on())
            // It waits until its token is read: see `launch_read`.
            .filter(|sequence| !alone || sequence.guess().is_empty())
            .filter_map(|sequence| Some((place(sequence.id())?, sequence)))
            .collect();
        if going.is_empty() {
            return Vec::new();
        }
        going.sort_unstable_by_key(|(place, sequence)| (sequence.is_constrained(), *place));
        let (places, mut rows): (Vec<usize>, Vec<&mut Sequence>) = going.into_iter().unzip();
        match tokens_at(flights, &places).and_then(|tokens| pass(model, &tokens, &mut rows)) {
            Ok(passed) => {
                self.take(passed);
                Vec::new()
            }
            Err(err) if rows.len() == 1 => vec![failed(rows[0].id(), err.into())],
            // One row's failure must not be the others': each by itself, once.
            Err(err) => {
                tracing::warn!(error = %err, rows = rows.len(), "a pass failed: its rows go on one by one");
                let mut failures = Vec::new();
                for (place, row) in places.iter().zip(rows) {
                    let alone = tokens_at(flights, &[*place]);
                    let id = row.id();
                    match alone.and_then(|token| pass(model, &token, &mut [row])) {
                        Ok(passed) => self.take(passed),
                        Err(err) => failures.push(failed(id, err.into())),
                    }
                }
                failures
            }
        }
    }

    fn take(&mut self, passed: Passed) {
        self.flights.extend(passed.flight);
        self.undecided.extend(passed.undecided);
    }
}

/// Tokens about to be read.
#[derive(Debug)]
#[must_use]
pub(crate) struct Landing {
    flights: Vec<Flight>,
    failed: Vec<Landed>,
}

impl Landing {
    /// Waits for the tokens. Rows that failed come first.
    pub(crate) fn read(self) -> Vec<Landed> {
        let mut landed = self.failed;
        for flight in self.flights {
            landed.extend(read(flight));
        }
        landed
    }
}

/// Whether one row decodes at most. Beside others a guess costs more than it gains: the pass has rows enough.
fn are_alone(sequences: &[Sequence]) -> bool {
    sequences.iter().filter(|row| row.is_decoding()).count() <= 1
}

fn failed(id: RequestId, err: StepError) -> Landed {
    Landed {
        id,
        token: Err(err),
        logprobs: None,
        rows: 1,
        checked: None,
    }
}

/// The tokens at these places of all flights, on the device.
fn tokens_at(flights: &[Flight], places: &[usize]) -> Result<Array> {
    let all: Vec<&Array> = flights.iter().map(|flight| &flight.tokens).collect();
    let tokens = match all[..] {
        [one] => one.clone(),
        _ => concatenate(&all, 0)?,
    };
    let count = flights.iter().map(|flight| flight.rows.len()).sum();
    if places.iter().copied().eq(0..count) {
        return Ok(tokens);
    }
    take_axis(tokens, crate::sampling::sampler::indices(places), 0)
}

/// Some rows of logits.
fn rows_at(logits: &Array, places: &[usize]) -> Result<Array> {
    let count = logits.dim(0).unsigned_abs() as usize;
    if places.iter().copied().eq(0..count) {
        return Ok(logits.clone());
    }
    take_axis(logits, crate::sampling::sampler::indices(places), 0)
}

/// `[rows]`.
fn token_list(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[i32::try_from(tokens.len()).expect("rows are few")])
}

/// What a pass leads to.
struct Passed {
    flight: Option<Flight>,
    undecided: Option<Undecided>,
}

/// Submits one token of each row; those that are held to a format come last. After an error the rows are as before.
fn pass(model: &Decoder, tokens: &Array, rows: &mut [&mut Sequence]) -> Result<Passed> {
    let before: Vec<i32> = rows.iter().map(|row| row.cache().offset()).collect();
    let mut caches: Vec<&mut KvCache> = rows.iter_mut().map(|row| row.cache_mut()).collect();
    let logits = model.decode(tokens, &mut caches);
    let all: Vec<usize> = (0..rows.len()).collect();
    let free = rows.partition_point(|row| !row.is_constrained());
    let submit = |logits: Array| {
        let draws: Vec<Draw<'_>> = rows[..free].iter().map(|row| row.draw()).collect();
        let choice = match draws.is_empty() {
            true => None,
            false => Some(Choice::submit(&rows_at(&logits, &all[..free])?, &draws)?),
        };
        let undecided = match free == rows.len() {
            true => None,
            false => Some(rows_at(&logits, &all[free..])?),
        };
        transforms::async_eval(&undecided)?;
        Ok((choice, undecided))
    };
    match logits.and_then(submit) {
        Ok((choice, undecided)) => Ok(Passed {
            undecided: undecided.map(|logits| Undecided {
                logits,
                rows: rows[free..].iter().map(|row| row.id()).collect(),
                pass_rows: rows.len(),
            }),
            flight: choice.map(|choice| chosen(choice, &mut rows[..free], all.len())),
        }),
        Err(err) => {
            for (row, tokens) in rows.iter_mut().zip(before) {
                row.cache_mut().truncate(tokens);
            }
            Err(err)
        }
    }
}

/// The rows' next tokens are on their way.
fn chosen(choice: Choice, rows: &mut [&mut Sequence], pass_rows: usize) -> Flight {
    let ids = rows.iter().map(|row| row.id()).collect();
    for row in rows.iter_mut() {
        row.chose();
    }
    for (row, adjustment) in choice.adjustments {
        rows[row].adjust(adjustment);
    }
    Flight {
        tokens: choice.tokens,
        logprobs: choice.logprobs,
        rows: ids,
        pass_rows,
        guess: Vec::new(),
    }
}

/// Submits the last token of a row and a guess of what follows, and chooses what follows each. After an error the row is
/// as before.
fn check(model: &Decoder, token: u32, guess: Vec<u32>, row: &mut Sequence) -> Result<Passed> {
    let before = row.cache().offset();
    let tokens = token_row(&[&[token], &guess[..]].concat());
    let logits = model.forward_each(&tokens, row.cache_mut());
    let submit = |logits: Array| {
        let next = row.draw();
        let each = |ahead: usize| Draw {
            step: next.step + ahead as u64,
            ..next
        };
        Choice::submit(&logits, &(0..=guess.len()).map(each).collect::<Vec<_>>())
    };
    match logits.and_then(submit) {
        Ok(choice) => {
            row.chose();
            Ok(Passed {
                flight: Some(Flight {
                    tokens: choice.tokens,
                    logprobs: choice.logprobs,
                    rows: vec![row.id()],
                    pass_rows: 1,
                    guess,
                }),
                undecided: None,
            })
        }
        Err(err) => {
            row.cache_mut().truncate(before);
            Err(err)
        }
    }
}

fn read(flight: Flight) -> Vec<Landed> {
    let count = flight.rows.len();
    let landed = |id, token| Landed {
        id,
        token,
        logprobs: None,
        rows: flight.pass_rows,
        checked: None,
    };
    let tokens = flight.tokens.to_vec_exact::<u32>().map_err(|err| err.to_string());
    let logprobs = flight.logprobs.as_ref().map_or(Ok(Vec::new()), Logprobs::read);
    match tokens.and_then(|tokens| Ok((tokens, logprobs?))) {
        Ok((tokens, logprobs)) => {
            let right = flight.guess.iter().zip(&tokens);
            let right = right.take_while(|(guess, token)| guess == token).count();
            // What follows a wrong guess follows another text. Without a guess there is a token for each row.
            let used = tokens.into_iter().take(count + right);
            let rows = flight
                .rows
                .iter()
                .copied()
                .chain(std::iter::repeat_n(flight.rows[0], right));
            let mut all: Vec<Landed> = rows.zip(used).map(|(id, token)| landed(id, Ok(token))).collect();
            for (row, logprobs) in logprobs {
                if let Some(landed) = all.get_mut(row) {
                    landed.logprobs = Some(logprobs);
                }
            }
            if let (false, Some(first)) = (flight.guess.is_empty(), all.first_mut()) {
                let guessed = flight.guess.len();
                first.checked = Some(Checked { guessed, right });
            }
            all
        }
        Err(err) => {
            let error = |id| landed(id, Err(StepError::Read(err.clone())));
            flight.rows.into_iter().map(error).collect()
        }
    }
}

#[cfg(test)]
mod tests;
